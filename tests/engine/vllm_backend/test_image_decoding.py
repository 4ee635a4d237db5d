"""vLLM gets the pixels of images: those it would read itself, no more of them than its model takes,
and of few prompts at a time.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from functools import partial
from io import BytesIO
from typing import Any

import numpy
import PIL.Image
import pytest
from vllm.multimodal.media.image import ImageMediaIO

from eaglegate.engine.errors import RequestRejected
from eaglegate.engine.types import EngineRequest, ImageInput, Sampling
from eaglegate.engine.vllm_backend.image_sizes import fit_pixels
from eaglegate.engine.vllm_backend.images import PROMPTS, ImageRenderer
from eaglegate.text.media.image import Image, ImageFormat
from tests.text.media.hostile_images import make_chunk, make_png
from tests.text.media.pictures import encode, make_picture

MAX_PIXELS = 100_000


class Llm:
    """Keeps the pictures of each prompt. A prompt is prepared once ``may_end`` is set."""

    mm_processor_cache = None

    def __init__(self) -> None:
        self.renderer = self
        self.pictures: list[list[PIL.Image.Image]] = []
        self.is_full = asyncio.Event()
        """Set once as many prompts were begun as may be prepared at once."""
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def render_cmpl_async(self, prompts: list[Any], **options: Any) -> list[Any]:
        self.pictures.append(prompts[0]["multi_modal_data"]["image"])
        if len(self.pictures) == PROMPTS:
            self.is_full.set()
        await self.may_end.wait()
        return [{"prompt_token_ids": [1, 2, 3]}]


class Outputs:
    """Takes every request."""

    async def send(self, llm: Any, request: EngineRequest, *_: Any) -> str:
        return request.id

    async def close_request(self, *_: Any) -> None: ...


@pytest.fixture
def llm() -> Llm:
    return Llm()


@pytest.fixture
async def renderer(llm: Llm) -> AsyncIterator[ImageRenderer]:
    engine: Any = llm
    outputs: Any = Outputs()
    fit = partial(fit_pixels, max_pixels=MAX_PIXELS)
    renderer = ImageRenderer(engine, outputs, ImageInput(1, 4), fit)
    yield renderer
    await renderer.aclose()


def make_image(data: bytes, form: str, width: int, height: int) -> Image:
    name: Any = form.lower()
    return Image(data, name, width, height, "digest")


def ask(*images: Image, name: str = "r") -> EngineRequest:
    return EngineRequest(name, (1,) * len(images), Sampling(max_tokens=4), images=images)


async def open_picture(renderer: ImageRenderer, llm: Llm, image: Image) -> PIL.Image.Image:
    await renderer.open_request(ask(image), None)
    return llm.pictures[-1][0]


@pytest.mark.parametrize(
    ("form", "modes"),
    [
        ("PNG", ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
        ("JPEG", ("L", "RGB", "CMYK")),
        ("WEBP", ("RGB", "RGBA")),
        ("GIF", ("L", "P", "RGB")),
    ],
)
async def test_pictures_are_those_of_vllm(
    renderer: ImageRenderer, llm: Llm, form: ImageFormat, modes: tuple[str, ...]
) -> None:
    for mode in modes:
        data = make_picture(form, mode)
        picture = await open_picture(renderer, llm, make_image(data, form, 64, 48))
        assert picture.mode == "RGB"
        assert numpy.array_equal(picture, ImageMediaIO().load_bytes(data).media), mode


async def test_transparent_parts_are_white(renderer: ImageRenderer, llm: Llm) -> None:
    red = PIL.Image.new("P", (8, 8))
    red.putpalette([255, 0, 0])
    clear = PIL.Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    for data in (encode(red, "GIF", transparency=0), encode(clear, "PNG")):
        form = "GIF" if data.startswith(b"GIF") else "PNG"
        picture = await open_picture(renderer, llm, make_image(data, form, 8, 8))
        assert picture.getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
async def test_pictures_are_upright_and_have_no_exif(
    renderer: ImageRenderer, llm: Llm, form: str
) -> None:
    drawing = PIL.Image.open(BytesIO(make_picture())).crop((0, 0, 64, 20))
    for orientation in range(10):
        exif = PIL.Image.Exif()
        exif[0x112] = orientation
        data = encode(drawing, form, exif=exif)
        size = (20, 64) if 5 <= orientation <= 8 else (64, 20)
        picture = await open_picture(renderer, llm, make_image(data, form, *size))
        assert numpy.array_equal(picture, ImageMediaIO().load_bytes(data).media)
        assert not picture.getexif()


async def test_no_other_decoder_reads_an_image(renderer: ImageRenderer, llm: Llm) -> None:
    """vLLM tries the decoder of Photo CD first, which looks at byte 2048."""
    data = make_png(make_chunk(b"prVt", bytes(2048 - 41) + b"PCD_" + bytes(1 << 20)))
    assert data[2048:2052] == b"PCD_"
    picture = await open_picture(renderer, llm, make_image(data, "png", 4, 1))
    assert picture.size == (4, 1)


async def test_large_images_are_scaled_down_outside_this_process(
    renderer: ImageRenderer, llm: Llm
) -> None:
    """98 bytes of a WebP with 32 megapixels."""
    size = 8192, 4096
    data = encode(PIL.Image.new("RGBA", size, (1, 2, 3, 255)), "WEBP", lossless=True)
    image = make_image(data, "webp", *size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await renderer.open_request(ask(*[image] * 4), None)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (16 << 10)
    for picture in llm.pictures[0]:
        assert picture.size == (448, 224)
        assert picture.getpixel((0, 0)) == (1, 2, 3)


async def test_the_size_of_an_image_decides_its_tokens(renderer: ImageRenderer, llm: Llm) -> None:
    for image in (make_image(b"any", "png", 8192, 4096), make_image(b"other", "png", 8192, 4096)):
        assert await renderer.count(image) == 3
    assert [[picture.size for picture in pictures] for pictures in llm.pictures] == [[(448, 224)]]


async def test_images_that_were_not_checked_are_refused(renderer: ImageRenderer) -> None:
    data = make_picture()
    for image in (
        make_image(data, "png", 48, 64),
        make_image(data, "webp", 64, 48),
        make_image(data[:-40], "png", 64, 48),
    ):
        with pytest.raises(RequestRejected, match="Image 0 cannot be read"):
            await renderer.open_request(ask(image), None)


async def test_few_prompts_are_prepared_at_once(renderer: ImageRenderer, llm: Llm) -> None:
    llm.may_end.clear()
    image = make_image(make_picture(), "png", 64, 48)
    requests = [ask(image, name=f"r{number}") for number in range(PROMPTS + 2)]
    work = [asyncio.create_task(renderer.open_request(request, None)) for request in requests]
    await llm.is_full.wait()
    work[0].cancel()  # begun: it is sent all the same
    work[PROMPTS].cancel()  # waits: it is dropped
    await asyncio.gather(work[0], work[PROMPTS], return_exceptions=True)
    assert len(llm.pictures) == PROMPTS
    llm.may_end.set()
    assert await work[1] == "r1"
    assert await work[-1] == f"r{PROMPTS + 1}"
    assert len(llm.pictures) == PROMPTS + 1
