"""Record of the requests that an engine ran when it died, as evidence against a lethal request.

The engine's scheduler writes the running requests without a token to a file that it shares with the
gateway. Mapped memory outlives the process that wrote it, however that process ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

VARIABLE = "EAGLEGATE_FLIGHT_RECORD"
"""Environment variable with the path of the file, for an engine process."""
CAPACITY = 1 << 18
"""Size of the file in bytes, enough for some thousands of requests."""
HEADER = 4


class FlightRecord:
    """The gateway's side of the record. Raises OSError if the file cannot be created."""

    def __init__(self) -> None:
        number, name = tempfile.mkstemp(prefix="eaglegate-flight-")
        with os.fdopen(number, "r+b") as file:
            file.truncate(CAPACITY)
            self._memory = mmap.mmap(file.fileno(), CAPACITY)
        self._path = Path(name)
        self.variables: Mapping[str, str] = {VARIABLE: name}
        """Environment variables for the engine process."""

    def read(self) -> frozenset[str]:
        """Return the requests that ran without a token at the engine's last step."""
        size = int.from_bytes(self._memory[:HEADER], "big")
        return frozenset(self._memory[HEADER : HEADER + size].decode().split())

    def unlink(self) -> None:
        """Remove the file once the engine has opened it, or never will."""
        self._path.unlink(missing_ok=True)


class FlightRecorder:
    """The engine's side of the record. Does nothing without a gateway that reads it."""

    def __init__(self, variables: Mapping[str, str] = os.environ) -> None:
        self._memory: mmap.mmap | None = None
        self._content = b""
        if path := variables.get(VARIABLE):
            with open(path, "r+b") as file:  # noqa: PTH123
                self._memory = mmap.mmap(file.fileno(), CAPACITY)

    def write(self, requests: Iterable[str]) -> None:
        """Write the requests. Called before every step."""
        if self._memory is None:
            return
        names = " ".join(requests).encode()[: CAPACITY - HEADER]
        if names == self._content:
            return
        self._content = names
        self._memory[:HEADER] = bytes(HEADER)  # so that a reader never reads a partial write
        self._memory[HEADER : HEADER + len(names)] = names
        self._memory[:HEADER] = len(names).to_bytes(HEADER, "big")
