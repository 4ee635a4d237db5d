"""The data of server-sent events, out of bytes as they come."""

from __future__ import annotations

MAX_LINE = 16 << 20
"""A worker that sends a longer line than this is no worker."""


class Payloads:
    """``feed`` bytes, get the data of every event they complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Raises ValueError for a line without an end."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            raise ValueError(f"a line of more than {MAX_LINE} bytes")
        out = []
        for line in lines:
            line = line.rstrip(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                out.append(b"\n".join(self._data))
                self._data = []
        return out
