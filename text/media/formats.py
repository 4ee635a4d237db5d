"""Formats of images, by the first bytes of a file."""

from __future__ import annotations

import re

from eaglegate.text.media.image import ImageFormat

FORMAT_NAMES: dict[ImageFormat, str] = {
    "png": "PNG", "jpeg": "JPEG", "webp": "WebP", "gif": "GIF",
}  # fmt: skip
SIGNATURES: tuple[tuple[ImageFormat, re.Pattern[bytes]], ...] = (
    ("png", re.compile(rb"\x89PNG\r\n\x1a\n")),
    ("jpeg", re.compile(rb"\xff\xd8\xff")),
    ("webp", re.compile(rb"RIFF.{4}WEBP", re.DOTALL)),
    ("gif", re.compile(rb"GIF8[79]a")),
)
"""Formats that Pillow recognizes by the same bytes."""
OTHER_SIGNATURES = (
    ("an SVG", re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:svg|\?xml|!DOCTYPE svg)", re.IGNORECASE)),
    ("a BMP", re.compile(rb"BM")),
    ("a TIFF", re.compile(rb"II\*\0|MM\0\*|II\+\0|MM\0\+")),
    ("an AVIF", re.compile(rb".{4}ftypavi[fs]", re.DOTALL)),
    ("a HEIC", re.compile(rb".{4}ftyp(?:hei|hev|mif1|msf1)", re.DOTALL)),
    ("a PDF", re.compile(rb"%PDF-")),
    ("an icon", re.compile(rb"\0\0[\1\2]\0")),
    ("an HTML page", re.compile(rb"\s*<(?:!DOCTYPE html|html)", re.IGNORECASE)),
)
HEAD_BYTES = 256


def detect_format(data: bytes) -> ImageFormat:
    """Return an image's format, whatever its URL says. Raises ValueError if it is another one."""
    head = data[:HEAD_BYTES]
    for name, signature in SIGNATURES:
        if signature.match(head):
            return name
    choices = ", ".join(FORMAT_NAMES.values())
    raise ValueError(f"An image is one of {choices}; this is {_describe(head)}. Convert it.")


def _describe(head: bytes) -> str:
    for description, signature in OTHER_SIGNATURES:
        if signature.match(head):
            return description
    return "none of these" if head else "empty"
