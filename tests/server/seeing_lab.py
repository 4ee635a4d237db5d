"""A tiny gateway whose scripted engine reads images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from io import BytesIO
from typing import Any

from PIL import Image as Pillow

from eaglegate.engine.base import CountsImages
from eaglegate.engine.scripted import ScriptedEngine
from eaglegate.engine.types import ImageInput
from eaglegate.server.generation.images import PromptImages
from eaglegate.server.generation.pipeline import Pipeline
from eaglegate.text.media.data_url import read_data_url
from eaglegate.text.media.image import Image
from eaglegate.text.media.source import ImageCharge, ImageRefused, ImageSource
from eaglegate.text.rendering.renderer import ModelFiles, TemplateRenderer
from tests.server.conftest import DEMO, Lab, PlainRenderer
from tests.text.media.pictures import make_picture, to_url
from tests.text.rendering.conversations import IMAGES

MAX_IMAGES = 3
PLACEHOLDER = "<pad>"


def picture(width: int = 20) -> bytes:
    return make_picture(size=(width, 8))


def url(width: int = 20) -> str:
    return to_url(picture(width))


class QuickReader:
    """Reads data URLs in this process."""

    def __init__(self) -> None:
        self.sources: list[ImageSource] = []
        self.owners: list[str | None] = []

    async def read(
        self, sources: Sequence[ImageSource], owner: str, charge: ImageCharge
    ) -> tuple[Image, ...]:
        self.sources += sources
        self.owners.append(owner)
        return tuple(map(self._read, sources))

    def _read(self, source: ImageSource) -> Image:
        try:
            data = read_data_url(source.url, 1 << 20)
            size = Pillow.open(BytesIO(data)).size
        except (ValueError, OSError):
            raise ImageRefused(source.param, "An image must be whole.") from None
        return Image(data, "png", *size, sha256(data).hexdigest())


@dataclass
class SeeingEngine(ScriptedEngine, CountsImages):
    """Takes one token per pixel of an image's width."""

    async def count_image(self, image: Image) -> int:
        return image.width


class PartsRenderer(PlainRenderer):
    """Runs a template that writes ``<pad>`` for an image."""

    def __init__(self, template: str = IMAGES) -> None:
        super().__init__()
        self.template = TemplateRenderer(ModelFiles.find(str(DEMO), None, None), template)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        **options: Any,
    ) -> list[int]:
        self.seen.append({"messages": messages})
        return self.template.render_chat(messages, tools, **options)


@dataclass
class SeeingLab(Lab):
    renderer: PlainRenderer = field(default_factory=PartsRenderer)
    engine: ScriptedEngine = field(default_factory=SeeingEngine)
    reader: Any = field(default_factory=QuickReader)

    def path(self) -> Pipeline:
        pipeline = super().path()
        placeholder = self.renderer.tokenizer.token_to_id(PLACEHOLDER)
        image_input = ImageInput(placeholder, MAX_IMAGES)
        return replace(
            pipeline,
            info=replace(pipeline.info, image_input=image_input),
            served_model=replace(pipeline.served_model, images=image_input),
            images=PromptImages(self.engine, self.reader, placeholder),
        )

    @property
    def prompt(self) -> str:
        """The text of the newest prompt in the engine."""
        return self.renderer.decode(self.engine.requests[-1].prompt)

    @property
    def widths(self) -> list[int]:
        """The widths of the newest prompt's images in the engine."""
        return [image.width for image in self.engine.requests[-1].images]
