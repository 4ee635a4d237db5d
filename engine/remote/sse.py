"""The data of server-sent events, out of bytes as they come."""

from __future__ import annotations

from engine.remote.reading import WorkerProtocolError


class SseDecoder:
    """``feed`` bytes, get the data of every event they complete: none over ``most`` bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._idle = 0
        """Bytes since the last event: comments and what is no event at all."""

    def feed(self, data: bytes) -> list[bytes]:
        """Raises WorkerFault for an event that is too long."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        out = []
        for line in lines:
            line = line.rstrip(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._size += len(line)
            elif not line and self._data:
                out.append(b"\n".join(self._data))
                self._data, self._size = [], 0
            self._check(len(line))
        self._idle = 0 if out else self._idle + len(data)
        self._check(max(len(self._rest), self._idle - self._most))
        return out

    def _check(self, line: int) -> None:
        if max(line, self._size) > self._most:
            raise WorkerProtocolError(f"an event of the stream is longer than {self._most} bytes")
