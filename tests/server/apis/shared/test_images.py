"""Images in the messages of a model that reads them, in every API."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from PIL import Image as Pillow

from eaglegate.engine.errors import EngineDead, EngineFailed, RequestRejected
from eaglegate.engine.types import EngineRequest, StepSink
from eaglegate.server.access.fair_order import Priority
from eaglegate.server.access.quota import KeyQuota
from eaglegate.server.errors import Unavailable
from eaglegate.server.generation.images import DECODED_PIXELS
from eaglegate.text.media.fetch import CONNECTIONS
from eaglegate.text.media.image import Image
from eaglegate.text.media.reader import ImageReader
from eaglegate.text.media.source import ImageCharge, ImageLimits, ImageSource
from tests.server.conftest import Answer, make_key, wait_until
from tests.server.seeing_lab import (
    PartsRenderer,
    QuickReader,
    SeeingEngine,
    SeeingLab,
    picture,
    url,
)
from tests.text.media.pictures import encode, to_url
from tests.text.rendering.conversations import IMAGES, IN_PARTS

HEADER = "x-eaglegate-ignored-fields"


@pytest.fixture
def lab() -> SeeingLab:
    lab = SeeingLab()
    lab.says("a cat")
    return lab


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def image(width: int = 20, **members: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(width), **members}}


def block(width: int = 20) -> dict[str, Any]:
    data = url(width).partition(",")[2]
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def input_image(width: int = 20) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url(width), "detail": "auto"}


def input_text(content: str) -> dict[str, Any]:
    return {"type": "input_text", "text": content}


async def refuse(lab: SeeingLab, url: str = "/v1/chat/completions", **body: Any) -> Any:
    answer = await lab.post(url, body)
    assert answer.status == 400
    assert lab.engine.requests == []
    return answer.json["error"]


def check_refusal(error: Any, param: str, rule: str) -> None:
    assert error["param"] == param
    assert rule in error["message"]


async def test_the_images_of_a_chat_keep_their_order(lab):
    parts = [text("a"), image(10), text("b"), {"type": "image_url", "image_url": url(12)}]
    answer = await lab.chat(messages=[user(*parts), user(input_image(14))])
    assert answer.status == 200
    assert lab.prompt == "user: a<pad>b<pad>;user: <pad>;"
    assert lab.widths == [10, 12, 14]
    assert lab.engine.requests[-1].images[0].data == picture(10)
    assert HEADER not in answer.headers


async def test_the_model_s_card(lab):
    card = (await lab.get("/v1/models/demo")).json
    assert card["input_modalities"] == ["text", "image"]


class RestartingEngine(SeeingEngine):
    """Counts nothing until it has been asked three times."""

    num_asked = 0

    def capability(self, kind: Any) -> Any:
        self.num_asked += 1
        return super().capability(kind) if self.num_asked > 2 else None

    async def count_image(self, image: Image) -> int:
        if self.num_asked < 4:
            raise EngineDead("killed")
        return await super().count_image(image)


async def test_counting_waits_for_an_engine_that_restarts():
    lab = SeeingLab(engine=RestartingEngine())
    lab.says("a cat")
    error = (await lab.chat(messages=[user(image())])).json["error"]
    assert error["code"] == "engine_dead"
    images = dataclasses.replace(lab.gateway.pipeline.images, wait_s=5)
    lab.gateway.pipeline = dataclasses.replace(lab.gateway.pipeline, images=images)
    assert (await lab.chat(messages=[user(image())])).status == 200


@pytest.mark.parametrize(
    ("failure", "status"), [(RequestRejected("too wide"), 400), (EngineFailed("no"), 500)]
)
async def test_the_engine_may_refuse_images(lab, failure, status):
    async def count_image(_: object) -> int:
        raise failure

    lab.engine.count_image = count_image
    for path in ("/v1/chat/completions", "/tokenize"):
        answer = await lab.post(path, {"messages": [user(image())]})
        assert (answer.status, answer.json["error"]["message"]) == (status, str(failure))


async def test_images_count_as_prompt_tokens(lab):
    answer = await lab.chat(messages=[user(text("a"), image(50))])
    request = lab.engine.requests[-1]
    assert request.num_prompt == len(request.prompt) + 49
    assert answer.json["usage"]["prompt_tokens"] == request.num_prompt
    body = {"messages": [user(text("a"), image(50))]}
    counted = (await lab.post("/tokenize", body)).json
    assert counted["count"] == request.num_prompt
    assert counted["tokens"] == [*request.prompt]


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
async def test_images_of_other_roles_are_named_and_left_out(lab, role):
    messages = [{"role": role, "content": [text("a"), image()]}, user(text("b"))]
    answer = await lab.chat(messages=messages)
    assert answer.headers[HEADER] == "messages[].content[image_url]"
    assert "a\n[image omitted: this model cannot read it here]" in lab.prompt
    assert lab.widths == []


async def test_other_media_are_refused(lab):
    audio = {"type": "input_audio", "input_audio": {"data": "A", "format": "wav"}}
    error = await refuse(lab, messages=[user(image(), audio)])
    check_refusal(error, "messages[0].content[1]", "this model reads text and images only")


async def test_ignored_members_are_named(lab):
    answer = await lab.chat(messages=[user(image(detail="low", uuid="x"), image(detail="auto"))])
    names = ("messages[].content[image_url].detail", "messages[].content[image_url].uuid")
    assert answer.headers[HEADER] == ", ".join(names)


@pytest.mark.parametrize(
    ("part", "param", "rule"),
    [
        ({"type": "image_url"}, ".image_url", "is missing"),
        ({"type": "image_url", "image_url": {"url": 3}}, ".image_url.url", "is missing"),
        ({"type": "input_image", "file_id": "f"}, ".file_id", "stores no files"),
        ({"type": "image"}, ".source", "must be an object"),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, ".source.file_id", "files"),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png;x,", "data": "A"}},
         ".source.media_type", "image/png"),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png"}},
         ".source.data", "is missing"),
        ({"type": "image_url", "image_url": to_url(b"no image")}, ".image_url", "whole"),
    ],
)  # fmt: skip
async def test_images_without_data_are_refused(lab, part, param, rule):
    error = await refuse(lab, messages=[user(text("a"), part)])
    check_refusal(error, f"messages[0].content[1]{param}", rule)


async def test_too_many_images_are_refused(lab):
    error = await refuse(lab, messages=[user(*[image()] * 4)])
    check_refusal(
        error, "messages[0].content[3].image_url.url", "at most 3 of them here, and this one has 4"
    )
    assert lab.reader.sources == []


async def test_placeholders_without_images_are_refused(lab):
    token = lab.renderer.tokenizer.token_to_id("<pad>")
    for prompt in ([5, token], "a <pad>", [[5], [token]]):
        error = await refuse(lab, "/v1/completions", prompt=prompt)
        check_refusal(error, "prompt", "stands for an image")
    assert (await lab.post("/v1/completions", {"prompt": [5, 6]})).status == 200


async def test_a_template_that_shows_no_image_is_named(lab):
    lab.renderer = PartsRenderer(IN_PARTS)
    lab.gateway.open(lab.path())
    error = await refuse(lab, messages=[user(image())])
    check_refusal(error, "messages", "wrote 0 placeholders for 1 images")


USER_ONLY = IMAGES.replace("m.content is string", "m.role == 'tool' or m.content is string")
"""Shows images in messages of the user only."""


@pytest.mark.parametrize(
    ("message", "end"),
    [
        ([user(text("b"))], "user: <pad><pad>b;"),
        ([{"role": "assistant", "content": "b"}], "user: <pad><pad>;assistant: b;"),
        ([], "user: <pad><pad>;"),
    ],
)
async def test_images_of_results_go_where_a_template_shows_them(lab, message, end):
    lab.renderer = PartsRenderer(USER_ONLY)
    lab.gateway.open(lab.path())
    results = [
        {"role": "tool", "tool_call_id": "c", "content": [text("x"), image(width), text("y")]}
        for width in (10, 12)
    ]
    messages = [user(text("a"), image(8)), *results, *message]
    assert (await lab.chat(messages=messages)).status == 200
    assert lab.prompt == f"user: a<pad>;tool: x\ny;tool: x\ny;{end}"
    assert lab.widths == [8, 10, 12]
    assert (await lab.post("/tokenize", {"messages": messages})).status == 200


class TurnReader(QuickReader):
    """Decodes each image in a turn of its own, and lets others arrive meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[int] = []

    async def read(
        self, sources: Sequence[ImageSource], owner: str, charge: ImageCharge
    ) -> tuple[Image, ...]:
        images = await super().read(sources, owner, charge)
        for image in images:
            async with charge.decode(DECODED_PIXELS):
                self.order.append(image.width)
                for _ in range(100):
                    await asyncio.sleep(0)
        return images


async def test_images_are_decoded_in_the_order_of_admission():
    """One by one, whoever sent them: classes first, then keys by the pixels they had decoded."""
    lab = SeeingLab(reader=TurnReader())
    lab.says("a cat")
    classes = {"a": Priority.NORMAL, "b": Priority.NORMAL, "high": Priority.HIGH}
    lab.admit(*(make_key(name, priority=priority) for name, priority in classes.items()))
    sends = {"a": [8, 8, 8], "b": [9], "high": [10]}
    chats = (
        lab.chat(key=name, messages=[user(*map(image, widths))]) for name, widths in sends.items()
    )
    await asyncio.gather(*chats)
    assert lab.reader.order == [8, 10, 9, 8, 8]


def make_bomb() -> bytes:
    """Make an image of few bytes and 32 megapixels."""
    picture = Pillow.new("RGBA", (8192, 4096), (1, 2, 3, 4))
    return encode(picture, "WEBP", lossless=True)


async def test_the_memory_of_an_image_is_checked_before_it_is_decoded():
    lab = SeeingLab(reader=ImageReader(ImageLimits()))
    lab.says("a cat")
    sizes: list[int] = []

    def check_memory(num_bytes: int) -> None:
        sizes.append(num_bytes)
        if num_bytes > 100 << 20:
            raise Unavailable("short of memory", code="memory_pressure", retry_after_s=5)

    lab.gateway.budget.check_memory = check_memory
    part = {"type": "image_url", "image_url": to_url(make_bomb())}
    try:
        answer = await lab.chat(messages=[user(part)])
        assert (answer.status, answer.json["error"]["code"]) == (503, "memory_pressure")
        assert sizes[-1] == 16 * 8192 * 4096
        assert (await lab.chat(messages=[user(image())])).status == 200
    finally:
        await lab.reader.aclose()


async def test_an_engine_gets_one_large_image_at_a_time(lab):
    """Pixels count in the turns of prompts, and memory is checked once more."""
    begun, may_end, sizes = [], asyncio.Event(), []
    generate = lab.engine.generate

    async def wait(request: EngineRequest, sink: StepSink) -> None:
        begun.append(request.id)
        await may_end.wait()
        await generate(request, sink)

    async def count_image(_: Image) -> int:
        return 1

    lab.engine.generate, lab.engine.count_image = wait, count_image
    lab.gateway.budget.check_memory = sizes.append
    messages = [user({"type": "image_url", "image_url": to_url(make_bomb())})]
    answers = [asyncio.create_task(lab.chat(messages=messages)) for _ in range(2)]
    await wait_until(lambda: lab.gateway.require().admission.running == 2)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(begun) == 1
    may_end.set()
    assert [answer.status for answer in await asyncio.gather(*answers)] == [200, 200]
    assert sizes == [16 * 8192 * 4096] * 2


async def test_a_key_pays_for_the_tokens_of_images(lab):
    quota = KeyQuota("a", tokens=100_000, clock=lambda: 0.0)
    lab.admit(make_key("a", quota=quota))
    usage = (await lab.chat(key="a", messages=[user(image(100))])).json["usage"]
    assert usage["prompt_tokens"] > 100
    assert 100_000 - quota._tokens.level == usage["total_tokens"]


async def test_a_prompt_that_is_too_long_names_its_images(lab):
    error = await refuse(lab, messages=[user(text("a"), image(300))])
    assert "Images have 300 of these tokens." in error["message"]
    assert error["code"] == "context_length_exceeded"
    body = {"max_tokens": 9, "messages": [user(block(300))]}
    error = await refuse(lab, "/v1/messages", **body)
    assert error["message"].startswith("prompt is too long: 3")
    assert error["message"].endswith("> 256 maximum Images have 300 of these tokens.")


@pytest.mark.parametrize(("name", "value"), [("truncate_prompt_tokens", 9), ("prompt_logprobs", 0)])
async def test_fields_about_prompt_tokens_are_refused(lab, name, value):
    error = await refuse(lab, messages=[user(image())], **{name: value})
    check_refusal(error, name, "does not work with images")


async def ask(lab: SeeingLab, *messages: Any, **fields: Any) -> Answer:
    return await lab.post("/v1/messages", {"max_tokens": 9, "messages": [*messages], **fields})


async def test_the_images_of_messages(lab):
    use = {"type": "tool_use", "id": "t", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text("b"), block(12)]}
    messages = [
        user(text("a"), text("b"), block(10), text("c")),
        {"role": "assistant", "content": [use]},
        user(result, block(14), text("d")),
    ]
    answer = await ask(lab, *messages)
    assert answer.status == 200
    assert lab.prompt == "user: a\nb<pad>c;assistant: ;tool: b<pad>;user: <pad>d;"
    assert lab.widths == [10, 12, 14]
    num_prompt = lab.engine.requests[-1].num_prompt
    assert answer.json["usage"]["input_tokens"] == num_prompt
    counted = await lab.post("/v1/messages/count_tokens", {"messages": messages})
    assert counted.json == {"input_tokens": num_prompt}
    start = (await ask(lab, *messages, stream=True)).body.partition(b"message_start")[2]
    assert f'"input_tokens":{num_prompt},'.encode() in start


async def respond(lab: SeeingLab, *items: Any, **fields: Any) -> Answer:
    return await lab.post("/v1/responses", {"input": [*items], **fields})


async def test_the_images_of_responses(lab):
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": [input_image(12)]}
    items = [user(input_text("a"), input_image(10), input_text("b")), call, output]
    answer = await respond(lab, *items)
    assert answer.status == 200
    assert lab.prompt == "user: a<pad>b;assistant: ;tool: <pad>;"
    assert lab.widths == [10, 12]
    num_prompt = lab.engine.requests[-1].num_prompt
    assert answer.json["usage"]["input_tokens"] == num_prompt
    counted = await lab.post("/v1/responses/input_tokens", {"input": items})
    assert counted.json["input_tokens"] == num_prompt


async def test_a_stored_response_keeps_its_images(lab):
    first = (await respond(lab, user(input_text("a"), input_image(10)))).json
    items = (await lab.get(f"/v1/responses/{first['id']}/input_items")).json["data"]
    assert items[0]["content"][1]["image_url"] == url(10)
    answer = await respond(lab, user(input_image(12)), previous_response_id=first["id"])
    assert answer.status == 200
    assert lab.prompt == "user: a<pad>;assistant: a cat;user: <pad>;"
    assert lab.widths == [10, 12]


async def test_the_places_of_refused_images_in_responses(lab):
    items = [user(input_text("a")), {"type": "web_search_call", "id": "w"}]
    items.append(user({"type": "input_image", "image_url": to_url(b"broken")}))
    error = await refuse(lab, "/v1/responses", input=items)
    check_refusal(error, "input[2].content[0].image_url", "whole")
    error = await refuse(lab, "/v1/responses", input=[user({"type": "input_image"})])
    check_refusal(error, "input[0].content[0].image_url", "is missing")


async def test_dropped_messages_take_their_images_along(lab):
    turns = [user(input_text("a"), input_image(100)), {"role": "assistant", "content": "x"}]
    items = [*turns, user(input_text("b"), input_image(90)), user(input_image(80))]
    answer = await respond(lab, *items, truncation="auto", max_output_tokens=20)
    assert answer.status == 200
    assert lab.widths == [90, 80]
    assert lab.prompt == "assistant: x;user: b<pad>;user: <pad>;"
    assert (await respond(lab, *items, max_output_tokens=20)).status == 400


async def test_messages_with_too_many_images_are_dropped(lab):
    system = {"role": "system", "content": "s"}
    items = [system, *(user(input_text("a"), input_image(width)) for width in (10, 11, 12, 13))]
    assert (await respond(lab, *items, truncation="auto")).status == 200
    assert lab.widths == [11, 12, 13]
    assert lab.prompt.startswith("system: s;user: a<pad>;user: a")
    lab.engine.requests.clear()
    error = await refuse(lab, "/v1/responses", input=items)
    check_refusal(error, "input[4].content[1].image_url", "at most 3")
    crowd = [*items, user(*[input_image()] * 4)]
    error = await refuse(lab, "/v1/responses", input=crowd, truncation="auto")
    check_refusal(error, "input[5].content[3].image_url", "at most 3")


class Fetcher:
    """Returns one picture for every URL."""

    def __init__(self) -> None:
        self.urls: list[str] = []

    async def fetch(self, url: str, max_bytes: int) -> bytes:
        self.urls.append(url)
        return picture() + bytes(10_000)

    async def aclose(self) -> None: ...


@pytest.fixture
async def fetching_lab():
    fetcher = Fetcher()
    lab = SeeingLab(reader=ImageReader(ImageLimits(), fetcher))
    lab.fetcher = fetcher
    lab.says("a cat")
    yield lab
    await lab.reader.aclose()


def fetched_image(name: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"http://images.example/{name}"}}


async def test_a_fetched_image_is_charged_before_the_next_one_is_fetched(fetching_lab):
    lab = fetching_lab
    images = [fetched_image(name) for name in "abc"]
    lab.gateway.budget.bodies.most = 15_000
    answer = await lab.chat(messages=[user(*images)])
    assert (answer.status, answer.json["error"]["code"]) == (429, "request_bytes_exceeded")
    assert lab.fetcher.urls == ["http://images.example/a", "http://images.example/b"]
    assert lab.gateway.budget.held == 0


async def test_a_client_whose_hosts_are_silent_holds_up_no_other(fetching_lab):
    lab, silent = fetching_lab, asyncio.Event()
    fetch = lab.fetcher.fetch

    async def wait(url: str, max_bytes: int) -> bytes:
        data = await fetch(url, max_bytes)
        if "silent" in url:
            await silent.wait()
        return data

    lab.fetcher.fetch = wait
    lab.admit("a", "b")

    async def send(key: str, name: str) -> int:
        return (await lab.chat(key=key, messages=[user(fetched_image(name))])).status

    waiting = [asyncio.create_task(send("a", "silent")) for _ in range(CONNECTIONS)]
    assert await send("b", "cat") == 200
    assert lab.fetcher.urls.count("http://images.example/silent") == CONNECTIONS // 2
    silent.set()
    assert await asyncio.gather(*waiting) == [200] * CONNECTIONS


async def test_images_are_remembered_for_their_key_alone(lab):
    lab.admit("a", "b")
    for name in "ab":
        await lab.chat(key=name, messages=[user(image())])
    assert lab.reader.owners == ["a", "b"]


async def test_a_key_has_images_per_minute(lab):
    now = 0.0
    quota = KeyQuota("a", images=2, clock=lambda: now)
    lab.admit(make_key("a", quota=quota))

    async def send(num_images: int) -> Answer:
        messages = [user(*[image()] * num_images, text("a"))]
        return await lab.chat(key="a", messages=messages, max_tokens=9)

    assert (await send(2)).headers["x-ratelimit-remaining-images"] == "0"
    refusal = await send(1)
    assert (refusal.status, refusal.json["error"]["code"]) == (429, "key_images_exceeded")
    assert refusal.headers["retry-after"] == "30"
    assert (await send(0)).status == 200
    assert len(lab.reader.sources) == 2
    now = 30.0
    assert (await send(1)).status == 200
    refusal = await send(3)
    assert (refusal.status, refusal.json["error"]["code"]) == (400, "images_exceed_key_minute")
