"""Pictures through the SDKs of OpenAI and Anthropic, on a real engine that reads images, and that
is killed."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.conftest import ADMIN, RunningGateway, serving
from tests.faults.engine_process import kill
from tests.vision_demo import VisionDemo, draw_picture

pytestmark = pytest.mark.slow

QUESTION = "Describe the weather in one line."
CONTEXT = 1024


def write_flags(demo: VisionDemo) -> Iterator[str]:
    """Yield the flags of an engine with the demo's arguments."""
    for name, value in demo.arguments(max_model_len=CONTEXT).items():
        text = json.dumps(value) if isinstance(value, dict) else value
        yield f"--{name.replace('_', '-')}={text[0] if isinstance(text, list) else text}"


@pytest.fixture(scope="module")
def gateway(
    vision_demo: VisionDemo, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningGateway]:
    log = tmp_path_factory.mktemp("gateway") / "log"
    flags = [*ADMIN, *write_flags(vision_demo), "--responses-store", "sqlite://"]
    with serving(log, flags) as running:
        yield running
        assert "base64" not in log.read_text()


@pytest.fixture(scope="module")
def openai(gateway: RunningGateway) -> OpenAI:
    return OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)


def draw(seed: int = 1, width: int = 224, height: int = 112) -> bytes:
    return draw_picture(seed, width, height).data


def to_url(picture: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def ask(*pictures: bytes, text: str = QUESTION, **fields: Any) -> dict[str, Any]:
    images = [{"type": "image_url", "image_url": {"url": to_url(data)}} for data in pictures]
    messages = [{"role": "user", "content": [{"type": "text", "text": text}, *images]}]
    options = {"model": "vision-demo", "temperature": 0, "max_tokens": 40}
    return {**options, "messages": messages, **fields}


def at_depth(depth: int) -> dict[str, Any]:
    return {"extra_body": {"num_speculative_tokens": depth}}


def test_the_gateway_says_that_it_reads_images(gateway, openai):
    assert "input        text and images" in gateway.banner
    (card,) = openai.models.list().data
    assert card.input_modalities == ["text", "image"]


def test_a_chat_about_a_picture(gateway, openai):
    answers = [openai.chat.completions.create(**ask(draw()), **at_depth(depth)) for depth in (3, 0)]
    text, other = (answer.choices[0].message.content for answer in answers)
    assert text == other
    counted = httpx.post(f"{gateway.url}/tokenize", json={"messages": ask(draw())["messages"]})
    assert answers[0].usage.prompt_tokens == counted.json()["count"]
    assert counted.json()["count"] - len(counted.json()["tokens"]) == 8 * 4 - 1
    stream = openai.chat.completions.create(**ask(draw()), stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == text
    page = httpx.get(f"{gateway.operator}/debug/speculation").json()
    assert page["slices"]["input"]["images"]["requests"] == 3
    assert gateway.metric("eaglegate_input_accepted_tokens_total", input="images") > 0


def test_answers_survive_their_engine(gateway, openai):
    """One goes on from its tokens; the other has a penalty and is replayed."""
    bodies = [
        ask(draw(20), draw(21), max_tokens=300, extra_body={"ignore_eos": True}, **fields)
        for fields in ({}, {"presence_penalty": 0.2})
    ]
    expected = [
        openai.chat.completions.create(**body).choices[0].message.content for body in bodies
    ]
    parts = [read_parts(openai.chat.completions.create(**body, stream=True)) for body in bodies]
    begun = [next(part) for part in parts]
    assert kill(gateway.process.pid)
    assert [first + "".join(part) for first, part in zip(begun, parts, strict=True)] == expected
    for outcome in ("resumed", "replayed"):
        assert gateway.metric("eaglegate_interrupted_requests_total", outcome=outcome) == 1


def read_parts(stream: Any) -> Iterator[str]:
    for chunk in stream:
        for choice in chunk.choices:
            if choice.delta.content:
                yield choice.delta.content
