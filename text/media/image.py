"""An image of a prompt."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

ImageFormat = Literal["png", "jpeg", "webp", "gif"]


class Image(Struct, frozen=True):
    """An image that was decoded once and is within all limits. Of a GIF the first frame counts."""

    data: bytes
    """The encoded image, as the client sent it."""
    format: ImageFormat
    width: int
    """Width in pixels."""
    height: int
    """Height in pixels."""
    digest: str
    """SHA-256 of ``data``, in hexadecimal."""

    def __repr__(self) -> str:
        """Return a description without the image's bytes."""
        return f"Image({self.format}, {self.width}x{self.height}, {self.digest[:12]})"
