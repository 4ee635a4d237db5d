"""Images for workers: sent as data, counted once, and refused where nobody would look at them."""

from __future__ import annotations

import sys
from dataclasses import replace as change

import pytest
from msgspec.structs import replace

from eaglegate.engine.errors import RequestRejected
from eaglegate.engine.remote import connection, wire
from eaglegate.engine.remote.text import TextEngine
from eaglegate.engine.remote.upstream import Upstream
from eaglegate.engine.types import ImageInput, Sampling, Step
from eaglegate.text.media.image import Image
from tests.engine.remote.stand_in_worker import ACCESS, MODEL, StandIn, chunk, end, running
from tests.engine.remote.test_remote_engine import request, steps_of

pytestmark = pytest.mark.thorough

PLACEHOLDER = 90
READING = change(MODEL, placeholder=PLACEHOLDER)
CAT = Image(b"cat", "png", 280, 280, "c")
DOG = Image(b"dog", "jpeg", 280, 140, "d")


def make_worker(image_tokens: int | None) -> StandIn:
    return StandIn(lambda _: [chunk(1, finish="length"), end()], image_tokens=image_tokens)


def about(*images: Image, prompt: tuple[int, ...] | None = None, **fields):
    asked = replace(request(**fields), images=images)
    return replace(asked, prompt=prompt or (5, *[PLACEHOLDER] * len(images), 6))


async def test_images_are_sent_as_data_and_counted_once():
    worker = make_worker(100)
    async with running(worker, model=READING) as engine:
        assert engine.info.image_input == ImageInput(PLACEHOLDER, 999)
        worker.counted.clear()
        asked = about(CAT, DOG, CAT)
        for image in asked.images * 2:
            assert await engine.count_image(image) == 100
        assert len(worker.counted) == 2
        await steps_of(engine, replace(asked, expanded_length=302))
    (body,) = worker.bodies
    assert body["token_ids"] == [5, PLACEHOLDER, PLACEHOLDER, PLACEHOLDER, 6]
    assert [part["url"] for part in body["content_parts"]] == [
        "data:image/png;base64,Y2F0",
        "data:image/jpeg;base64,ZG9n",
        "data:image/png;base64,Y2F0",
    ]


async def test_nothing_sent_is_kept_while_the_answer_comes(monkeypatch):
    """Each choice of an answer sends the images once more."""
    urls, contents, counts = [], [], []
    build_data_url, iterate = wire.build_data_url, connection._iterate
    monkeypatch.setattr(
        wire, "build_data_url", lambda image: urls.append(build_data_url(image)) or urls[-1]
    )
    monkeypatch.setattr(
        connection, "_iterate", lambda content: contents.append(content) or iterate(content)
    )

    class Sink:
        def is_open(self) -> bool:
            return True

        def push(self, step: Step) -> None:
            counts.append((sys.getrefcount(urls[0]), sys.getrefcount(contents[0])))

        async def drain(self) -> None: ...

    frames = [chunk(1), chunk(2, finish="length"), end()]
    worker = StandIn(lambda _: frames, image_tokens=100)
    async with running(worker, model=READING) as engine:
        for sent in (urls, contents):
            sent.clear()
        await engine.generate(about(CAT, expanded_length=102), Sink())
    assert counts[0] == (2, 2)  # the list above and the argument


async def test_a_prompt_without_images_says_nothing_of_them():
    worker = make_worker(100)
    async with running(worker, model=READING) as engine:
        await steps_of(engine, request())
    assert "content_parts" not in worker.bodies[0]


@pytest.mark.parametrize("model", [MODEL, READING], ids=["text model", "worker ignores images"])
async def test_a_worker_that_reads_text_only_gets_no_images(model):
    """It would answer without having looked at them."""
    worker = make_worker(None)
    async with running(worker, model=model) as engine:
        assert engine.info.image_input is None
        with pytest.raises(RequestRejected, match="reads text only"):
            await steps_of(engine, about(CAT))
        with pytest.raises(RequestRejected, match="reads text only"):
            await engine.count_image(CAT)
    assert not worker.bodies


@pytest.mark.parametrize(
    ("images", "prompt", "fields", "words"),
    [
        ((), (5, PLACEHOLDER), {}, "stands for an image"),
        ((CAT,), (5, 6), {}, "stands for an image"),
        ((CAT,), (5, PLACEHOLDER, PLACEHOLDER), {}, "stands for an image"),
        ((CAT,), None, {"sampling": Sampling(4, prompt_logprobs=0)}, "cannot be given"),
    ],
)
async def test_a_prompt_that_does_not_fit_its_images_is_refused(images, prompt, fields, words):
    worker = make_worker(100)
    async with running(worker, model=READING) as engine:
        with pytest.raises(RequestRejected, match=words):
            await steps_of(engine, about(*images, prompt=prompt, **fields))
    assert not worker.bodies


async def test_a_server_of_text_gets_no_images():
    engine = TextEngine(Upstream("http://127.0.0.1:9"), MODEL, ACCESS)
    with pytest.raises(RequestRejected, match="speaks text only"):
        engine._check_supported(about(CAT))
