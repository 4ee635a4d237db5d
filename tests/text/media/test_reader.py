"""Images of all formats and modes are read; limits on a request's images."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from PIL import Image as Pillow

from eaglegate.text.media import reader as reader_module
from eaglegate.text.media.image import Image
from eaglegate.text.media.reader import LOOK_PIXELS, ImageReader
from eaglegate.text.media.source import ImageCharge, ImageLimits, ImageRefused, ImageSource
from tests.text.media.pictures import encode, make_picture, to_source, to_url

LIMITS = ImageLimits(max_pixels=1 << 20, max_images=3)


@pytest.fixture
async def reader() -> AsyncIterator[ImageReader]:
    reader = ImageReader(LIMITS)
    yield reader
    await reader.aclose()


async def refuse(reader: ImageReader, *sources: ImageSource) -> ImageRefused:
    with pytest.raises(ImageRefused) as refusal:
        await reader.read(sources)
    return refusal.value


async def test_every_format_is_read(reader) -> None:
    for form in ("PNG", "JPEG", "WEBP", "GIF"):
        data = make_picture(form)
        (image,) = await reader.read([to_source(data)])
        digest = hashlib.sha256(data).hexdigest()
        assert image == Image(data, form.lower(), 64, 48, digest)


async def test_images_keep_their_order(reader) -> None:
    sizes = [(10, 20), (1, 1), (30, 5)]
    sources = [to_source(make_picture(size=size)) for size in sizes]
    images = await reader.read(sources)
    assert [(image.width, image.height) for image in images] == sizes
    assert await reader.read([]) == ()


async def test_the_first_bytes_decide_the_format(reader) -> None:
    for media_type in ("image/jpeg", "image/png;charset=utf-8", "text/plain", ""):
        source = ImageSource("input[0]", to_url(make_picture("WEBP"), media_type))
        (image,) = await reader.read([source])
        assert image.format == "webp"


async def test_of_an_animation_the_first_frame_counts(reader) -> None:
    frames = [Pillow.new("RGB", (32, 16), color) for color in ("red", "green", "blue")]
    for form in ("GIF", "WEBP", "PNG"):
        data = encode(frames[0], form, save_all=True, append_images=frames[1:])
        (image,) = await reader.read([to_source(data)])
        assert (image.format, image.width, image.height) == (form.lower(), 32, 16)


async def test_a_refusal_names_the_part(reader) -> None:
    sources = [to_source(make_picture(), "input[0]"), to_source(b"%PDF-1.7", "input[1]")]
    refusal = await refuse(reader, *sources)
    assert refusal.param == "input[1]"
    assert refusal.rule == ("An image is one of PNG, JPEG, WebP, GIF; this is a PDF. Convert it.")


@pytest.mark.parametrize(
    "changes, fragments",
    [
        ({"max_images": 2}, ["at most 2 images", "this one has 3"]),
        ({"max_bytes": 100}, ["at most 100 bytes", "this one has"]),
        ({"max_request_bytes": 500}, ["at most 500 bytes together"]),
        ({"max_request_pixels": 7000}, ["at most 7000 pixels together"]),
        ({"max_pixels": 3000}, ["at most 3000 pixels", "this one has 64 x 48"]),
        ({"max_pixels": 1000}, ["at most 1000 pixels", "more than 2000"]),
    ],
)
async def test_limits(changes, fragments) -> None:
    reader = ImageReader(replace(LIMITS, **changes))
    sources = [to_source(make_picture(), f"input[{index}]") for index in range(3)]
    refusal = await refuse(reader, *sources)
    assert all(fragment in refusal.rule for fragment in fragments), refusal.rule
    await reader.aclose()


async def test_urls_of_other_kinds_are_refused(reader) -> None:
    for url in ("https://user:secret@a.example/cat.png?token=1", "file:///etc/passwd", "cat.png"):
        refusal = await refuse(reader, ImageSource("input[0]", url))
        assert refusal.rule == "This gateway fetches no images; send a data: URL."


class Turns(ImageCharge):
    """Records the pixels for which an image has its turn."""

    def __init__(self) -> None:
        self.pixels: list[int] = []

    @asynccontextmanager
    async def decode(self, num_pixels: int) -> AsyncIterator[None]:
        self.pixels.append(num_pixels)
        yield


async def test_an_image_has_a_turn_for_its_pixels(reader) -> None:
    turns = Turns()
    sources = [to_source(make_picture(size=size)) for size in ((64, 48), (20, 10))]
    await reader.read(sources, charge=turns)
    assert turns.pixels == [LOOK_PIXELS, 64 * 48, LOOK_PIXELS, 200]


async def test_an_owners_images_are_decoded_once(reader, monkeypatch) -> None:
    monkeypatch.setattr(reader_module, "MAX_SIZES", 2)
    turns = Turns()
    red, green, blue = (to_source(make_picture(size=(size, size))) for size in (8, 9, 10))
    cases = (
        ("a", red, 1), ("a", red, 1), ("b", red, 2), ("a", red, 2), (None, red, 3), (None, red, 4),
        ("a", green, 5), ("a", red, 5), ("a", blue, 6), ("a", red, 6), ("a", green, 7),
    )  # fmt: skip
    for owner, source, num_decoded in cases:
        (image,) = await reader.read([source], owner, turns)
        assert image.width == {red: 8, green: 9, blue: 10}[source]
        assert len(turns.pixels) == 2 * num_decoded


async def test_the_size_of_an_image_is_the_one_that_is_shown(reader) -> None:
    exif = Pillow.Exif()
    exif[0x112] = 6
    for form in ("JPEG", "PNG", "WEBP"):
        data = encode(Pillow.new("RGB", (64, 48)), form, exif=exif)
        (image,) = await reader.read([to_source(data)])
        assert (image.width, image.height) == (48, 64)


async def test_refused_images_are_not_remembered(reader) -> None:
    for _ in range(2):
        with pytest.raises(ImageRefused, match="at most 200 times"):
            await reader.read([to_source(make_picture(size=(1000, 1)))], "a")


def test_no_description_shows_an_image_or_a_url() -> None:
    source = to_source(make_picture())
    assert repr(source) == f"ImageSource({source.param})"
