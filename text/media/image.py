"""An image of a prompt."""

from __future__ import annotations

import math
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


class Picture(Struct, frozen=True):
    """The pixels of a decoded image, scaled down to what a model takes."""

    image_size: tuple[int, int]
    """Width and height of the whole image, as it is shown."""
    size: tuple[int, int]
    """Width and height of the picture."""
    data: bytes
    """Its pixels, as RGB by rows."""


def fit_size(width: int, height: int, max_pixels: int) -> tuple[int, int]:
    """Return the size of an image once it is scaled down to about ``max_pixels``.

    Sides are rounded up, which breaks no limit on their ratio that is a whole number.
    """
    scale = min(1.0, math.sqrt(max_pixels / (width * height)))
    return math.ceil(width * scale), math.ceil(height * scale)


def find_placeholder(config: Mapping[str, Any]) -> int | None:
    """Return the id of the token that stands for an image; None if a model's config names none."""
    ids = (config.get(name) for name in PLACEHOLDER_NAMES)
    return next((token_id for token_id in ids if isinstance(token_id, int)), None)
