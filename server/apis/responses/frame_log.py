"""A compressed log of a background response's frames, for followers that join late or again."""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import dataclass
from typing import Any

BLOCK_BYTES = 64 << 10
"""Bytes of frames that are compressed together; frames repeat each other a lot."""
MOST_BYTES = 8 << 20
"""Per response, compressed; beyond it the oldest frames are dropped."""


@dataclass(frozen=True, slots=True)
class ResponseSnapshot:
    """A frame with the whole response, rendered from the only copy when it is read."""

    number: int
    type: str
    changed: dict[str, Any] | None = None
    """Members that differed at that time; None for the current response."""


class FrameLog:
    """Frames by their sequence number."""

    def __init__(self) -> None:
        self._blocks: deque[tuple[int, bytes]] = deque()
        """The number of the first frame, and frames with their lengths before them."""
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._wholes: dict[int, ResponseSnapshot] = {}
        self._cached: tuple[int, list[bytes]] = (-1, [])
        self.end = 0
        """The number of the next frame."""
        self.num_bytes = 0

    @property
    def begin(self) -> int:
        """The number of the oldest frame in the log."""
        return self._blocks[0][0] if self._blocks else self.end - len(self._open)

    def append(self, frame: bytes | ResponseSnapshot) -> None:
        if isinstance(frame, ResponseSnapshot):
            self._wholes[self.end] = frame
            frame = b""
        self._open.append(frame)
        self._open_bytes += len(frame)
        self.end += 1
        if self._open_bytes >= BLOCK_BYTES:
            self.compress()

    def compress(self) -> None:
        if not self._open:
            return
        first = self.end - len(self._open)
        lengths = b"".join(len(frame).to_bytes(4) for frame in self._open)
        content = len(self._open).to_bytes(4) + lengths + b"".join(self._open)
        self._blocks.append((first, zlib.compress(content, 1)))
        self.num_bytes += len(self._blocks[-1][1])
        self._open, self._open_bytes = [], 0
        while self.num_bytes > MOST_BYTES and len(self._blocks) > 1:
            self.num_bytes -= len(self._blocks.popleft()[1])

    def read(self, number: int) -> bytes | ResponseSnapshot:
        """Raises IndexError for a frame that does not exist or was dropped."""
        if not self.begin <= number < self.end:
            raise IndexError(number)
        if number in self._wholes:
            return self._wholes[number]
        first = self.end - len(self._open)
        if number >= first:
            return self._open[number - first]
        first, content = next(block for block in reversed(self._blocks) if block[0] <= number)
        if self._cached[0] != first:
            self._cached = first, _split_frames(zlib.decompress(content))
        return self._cached[1][number - first]


def _split_frames(content: bytes) -> list[bytes]:
    count = int.from_bytes(content[:4])
    at, frames = 4 + 4 * count, []
    for place in range(4, 4 + 4 * count, 4):
        length = int.from_bytes(content[place : place + 4])
        frames.append(content[at : at + length])
        at += length
    return frames
