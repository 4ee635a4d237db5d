"""Images through a gateway with a real engine: the text does not depend on drafts, and an answer
survives its engine.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conftest import ADMIN, RunningGateway, serving
from tests.faults.engine_process import kill

pytestmark = pytest.mark.slow

QUESTION = "Count from one to twenty."


@pytest.fixture(scope="module")
def gateway(vision_demo, tmp_path_factory) -> Iterator[RunningGateway]:
    settings = vision_demo.arguments()
    arguments = (
        settings["model"],
        *ADMIN,
        "--served-model-name=vision-demo",
        "--dtype=float32",
        "--max-model-len=1024",
        "--kv-cache-memory-bytes=67108864",
        f"--speculative-config={json.dumps(settings['speculative_config'])}",
        f"--limit-mm-per-prompt={json.dumps(settings['limit_mm_per_prompt'])}",
        f"--mm-processor-kwargs={json.dumps(settings['mm_processor_kwargs'])}",
    )
    with serving(tmp_path_factory.mktemp("images") / "serve.log", arguments) as started:
        yield started


def make_body(*seeds: int, **fields: Any) -> dict[str, Any]:
    from tests.vision_demo import draw_picture

    urls = [b64encode(draw_picture(seed, 224, 168).data).decode() for seed in seeds]
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{url}"}} for url in urls
    ]
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}]
    greedy = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
    return {"model": "vision-demo", "messages": messages, **greedy, **fields}


async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def make_client(gateway: RunningGateway) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=gateway.url, timeout=120)


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


async def test_texts_are_the_same_with_and_without_drafts(gateway) -> None:
    async with make_client(gateway) as client:
        drafted = await ask(client, make_body(1, 2))
        plain = await ask(client, make_body(1, 2, num_speculative_tokens=0))
        none = await ask(client, make_body())
        page = (await client.get(f"{gateway.operator}/debug/speculation")).json()
    assert text_of(drafted) == text_of(plain)
    images = drafted["usage"]["prompt_tokens"] - none["usage"]["prompt_tokens"]
    assert images == 2 * (8 * 6 + 2)
    assert page["slices"]["input"]["images"]["requests"] == 2
    assert gateway.metric("eaglegate_input_accepted_tokens_total", input="images") > 0


async def test_an_answer_survives_its_engine(gateway) -> None:
    body = make_body(20, 21, max_tokens=300)
    async with make_client(gateway) as client:
        expected = text_of(await ask(client, body))
        text = ""
        streamed = client.stream("POST", "/v1/chat/completions", json=body | {"stream": True})
        async with streamed as answer:
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                for choice in json.loads(line[6:])["choices"]:
                    fresh = choice["delta"].get("content") or ""
                    if fresh and not text:
                        assert kill(gateway.process.pid)
                    text += fresh
    assert text == expected
    assert gateway.metric("eaglegate_engine_starts_total") == 2
