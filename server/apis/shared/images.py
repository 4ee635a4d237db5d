"""Parts of messages that are images, in the formats of all APIs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from eaglegate.server.access.notices import Notices
from eaglegate.server.errors import InvalidRequest
from eaglegate.text.media.source import ImageSource

IMAGE_PARTS = ("image_url", "input_image", "image")
"""Types of images in chat completions, responses and messages."""
MEDIA_TYPE = re.compile(r"image/[a-z0-9.+-]{1,32}")


def read_source(part: Mapping[str, Any], path: str) -> ImageSource:
    """Return the source of an image. Base64 data becomes a data URL. Raises InvalidRequest."""
    _refuse_file(part, path)
    if part["type"] == "image":
        return _read_block(part.get("source"), f"{path}.source")
    url, name = part.get("image_url"), f"{path}.image_url"
    if isinstance(url, Mapping):
        url, name = url.get("url"), f"{name}.url"
    return ImageSource(name, _check_text(url, name))


def has_source(part: Mapping[str, Any]) -> bool:
    try:
        read_source(part, "")
    except InvalidRequest:
        return False
    return True


def _refuse_file(members: Mapping[str, Any], path: str) -> None:
    if members.get("file_id") is not None:
        raise InvalidRequest(
            f"'{path}.file_id' is not supported: this gateway stores no files. Send the image "
            "itself as a data URL.",
            param=f"{path}.file_id",
            code="unsupported_parameter",
        )


def _read_block(source: Any, path: str) -> ImageSource:
    """Return the source of an image in Anthropic's format."""
    members = source if isinstance(source, Mapping) else {}
    _refuse_file(members, path)
    match members.get("type"):
        case "url":
            return ImageSource(f"{path}.url", _check_text(members.get("url"), f"{path}.url"))
        case "base64":
            kind, data = members.get("media_type"), members.get("data")
            if not isinstance(kind, str) or not MEDIA_TYPE.fullmatch(kind):
                name = f"{path}.media_type"
                raise InvalidRequest(f"'{name}' must be a type such as 'image/png'.", param=name)
            data = _check_text(data, f"{path}.data")
            return ImageSource(f"{path}.data", f"data:{kind};base64,{data}")
    raise InvalidRequest(
        f"'{path}' must be an object of type 'base64', with 'media_type' and 'data', or of type "
        "'url', with 'url'.",
        param=path,
    )


def _check_text(value: Any, path: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(
            f"'{path}' is missing: an image needs its data, in a data URL or as the API has it.",
            param=path,
        )
    return value


def note_ignored(part: Mapping[str, Any], notices: Notices) -> None:
    """Name the fields of an image that have no effect.

    Every image is read at the same detail. ``uuid`` would name an image without sending it.
    """
    url = part.get("image_url")
    for members in (part, url if isinstance(url, Mapping) else {}):
        for name in ("detail", "uuid"):
            if members.get(name) not in (None, "auto"):
                notices.note(f"messages[].content[{part['type']}].{name}")
