"""An image of a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

PLACEHOLDER_NAMES = ("image_token_id", "image_token_index", "media_placeholder_token_id")
"""Fields of a model's configuration that name the token which stands for an image."""
ImageFormat = Literal["png", "jpeg", "webp", "gif"]


class Image(Struct, frozen=True):
    """An image that was decoded once and is within all limits. Of a GIF the first frame counts."""

    data: bytes
    """The encoded image, as the client sent it."""
    format: ImageFormat
    width: int
    """Width in pixels, as the image is shown."""
    height: int
    """Height in pixels, as the image is shown."""
    digest: str
    """SHA-256 of ``data``, in hexadecimal."""

    def __repr__(self) -> str:
        """Return a description without the image's bytes."""
        return f"Image({self.format}, {self.width}x{self.height}, {self.digest[:12]})"


def find_placeholder(config: Mapping[str, Any]) -> int | None:
    """Return the id of the token that stands for an image; None if a model's config names none."""
    ids = (config.get(name) for name in PLACEHOLDER_NAMES)
    return next((token_id for token_id in ids if isinstance(token_id, int)), None)
