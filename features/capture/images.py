"""Images in captured requests: a text with its digest replaces each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

IMAGE_TYPES = {
    "computer_screenshot": "input_text",
    "image": "text",
    "image_url": "text",
    "input_image": "input_text",
}
"""Types of parts with images, in each API, and the type of a text beside them."""


def may_have_images(body: bytes) -> bool:
    """Return False if a request's body has no image. JSON may escape any letter."""
    return b"image" in body or b"\\u" in body


def replace_images(value: Any) -> Any:
    """Return a copy of a request's body in which a text replaces each image in a data: URL.

    The copy can be sent again. An image at an http URL stays.
    """
    if isinstance(value, list):
        return [replace_images(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    kind = str(value.get("type"))
    url = find_url(value) if kind in IMAGE_TYPES else None
    if url is not None and url[:5].lower() == "data:":
        return {"type": IMAGE_TYPES[kind], "text": f"[image sha256:{hash_image(url)}]"}
    return {name: replace_images(item) for name, item in value.items()}


def find_url(part: Mapping[str, Any]) -> str | None:
    """Return the URL of a part with an image; None if it has none. The part's type decides where
    the URL is, as for the model."""
    if part.get("type") == "image":
        source = part.get("source")
        members = source if isinstance(source, Mapping) else {}
        data = members.get("data")
        url = f"data:;base64,{data}" if isinstance(data, str) else members.get("url")
    else:
        url = part.get("image_url")
        url = url.get("url") if isinstance(url, Mapping) else url
    return url if isinstance(url, str) else None


def hash_image(url: str) -> str:
    """Return the SHA-256 of a data: URL's data, or of the URL if it cannot be read."""
    from eaglegate.text.media.data_url import read_data_url

    try:
        data = read_data_url(url, len(url))
    except ValueError:
        data = url.encode(errors="surrogatepass")
    return hashlib.sha256(data).hexdigest()
