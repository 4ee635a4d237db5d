"""Requests that an engine ran when it died: the evidence against a request that kills engines.

The engine's scheduler writes the requests that run and have no token yet into a file that it shares
with the gateway; memory that is mapped outlives the process that wrote it, however that ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

VARIABLE = "EAGLEGATE_FLIGHT_RECORD"
"""Variable that names the file to an engine process."""
CAPACITY = 1 << 18
"""Bytes: some thousands of requests."""
HEADER = 4


class FlightRecord:
    """The gateway's side. Raises OSError where there is no place for the file."""

    def __init__(self) -> None:
        number, name = tempfile.mkstemp(prefix="eaglegate-flight-")
        with os.fdopen(number, "r+b") as file:
            file.truncate(CAPACITY)
            self._memory = mmap.mmap(file.fileno(), CAPACITY)
        self._path = Path(name)
        self.variables: Mapping[str, str] = {VARIABLE: name}
        """Variables for the environment of the engine process."""

    def read(self) -> frozenset[str]:
        """The requests that ran without a token at the engine's last step."""
        size = int.from_bytes(self._memory[:HEADER], "big")
        return frozenset(self._memory[HEADER : HEADER + size].decode().split())

    def unlink(self) -> None:
        """The engine has opened the file, or never will: nothing of it is to stay behind."""
        self._path.unlink(missing_ok=True)


class FlightRecorder:
    """The engine's side; does nothing where no gateway reads."""

    def __init__(self, variables: Mapping[str, str] = os.environ) -> None:
        self._memory: mmap.mmap | None = None
        self._written = b""
        if path := variables.get(VARIABLE):
            with open(path, "r+b") as file:  # noqa: PTH123
                self._memory = mmap.mmap(file.fileno(), CAPACITY)

    def write(self, requests: Iterable[str]) -> None:
        """Write the requests before every step."""
        if self._memory is None:
            return
        names = " ".join(requests).encode()[: CAPACITY - HEADER]
        if names == self._written:
            return
        self._written = names
        self._memory[:HEADER] = bytes(HEADER)  # a reader must not take half of it for the whole
        self._memory[HEADER : HEADER + len(names)] = names
        self._memory[:HEADER] = len(names).to_bytes(HEADER, "big")
