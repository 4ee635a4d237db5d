"""Images are decoded in few prompts at a time, and refused by name if they are too large."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from eaglegate.engine.errors import RequestRejected
from eaglegate.engine.types import EngineRequest, ImageInput, Sampling
from eaglegate.engine.vllm_backend import images
from eaglegate.engine.vllm_backend.images import PROMPTS, ImageRenderer, decode_images
from eaglegate.text.media.image import Image
from tests.text.media.pictures import make_picture

PICTURE = Image(b"", "png", 8, 8, "digest")


class SlowRenderer:
    """Keeps each prompt until ``may_end`` is set."""

    mm_processor_cache = None

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def render_cmpl_async(self, prompts: list[Any], **options: Any) -> list[Any]:
        await self.may_end.wait()
        return [{"prompt_token_ids": [1, 2, 3]}]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    monkeypatch.setattr(images, "decode_images", lambda pictures: calls.append(pictures))
    return calls


class Outputs:
    """Takes every request."""

    async def send(self, llm: Any, request: EngineRequest, *_: Any) -> str:
        return request.id

    async def close_request(self, *_: Any) -> None: ...


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0.01)


async def test_images_of_few_prompts_are_decoded_at_once(decoded: list[Any]) -> None:
    slow = SlowRenderer()
    llm: Any = SimpleNamespace(renderer=slow)
    outputs: Any = Outputs()
    renderer = ImageRenderer(llm, outputs, ImageInput(1, 3))
    requests = [
        EngineRequest(f"r{number}", (1,), Sampling(max_tokens=4), images=(PICTURE,))
        for number in range(3)
    ]
    work = [asyncio.create_task(renderer.open_request(request, None)) for request in requests]
    counts = [asyncio.create_task(renderer.count((1,), [PICTURE])) for _ in range(3)]
    await settle()
    assert len(decoded) == PROMPTS
    work[0].cancel()  # begun: its images stay until they are prepared
    work[2].cancel()  # waits: its images are never decoded
    await settle()
    assert len(decoded) == PROMPTS
    slow.may_end.set()
    assert await work[1] == "r1"
    assert await asyncio.gather(*counts) == [3, 3, 3]
    assert len(decoded) == 5


def test_an_image_beyond_pillows_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator may allow more pixels than Pillow does."""
    monkeypatch.setattr(images.PIL.Image, "MAX_IMAGE_PIXELS", 10)
    picture = Image(make_picture(size=(64, 48)), "png", 64, 48, "digest")
    with pytest.raises(RequestRejected, match=r"Image 0 cannot be read.*3072 pixels"):
        decode_images([picture])
