"""Pictures and URLs for tests."""

from __future__ import annotations

import base64
from io import BytesIO
from typing import Any

from PIL import Image as Pillow

from eaglegate.text.media.source import ImageSource


def encode(picture: Pillow.Image, form: str, **options: Any) -> bytes:
    file = BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def make_picture(form: str = "PNG", mode: str = "RGB", size: tuple[int, int] = (64, 48)) -> bytes:
    return encode(Pillow.radial_gradient("L").resize(size).convert(mode), form)


def to_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def to_source(data: bytes, param: str = "messages[0].content[1].image_url.url") -> ImageSource:
    return ImageSource(param, to_url(data))
