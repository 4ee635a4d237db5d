"""The requests of one client keep nobody waiting and take bounded memory.

Each test takes a sample; ``python -m tests.attacks.run`` tries every field.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import orjson
import pytest

from tests.attacks.fields import attacks
from tests.attacks.run import run, running
from tests.attacks.watch import Watch

pytestmark = pytest.mark.alone

P99_S = 0.1
GROWTH = 1 << 30
SAMPLE = 8
"""One attack of so many is tried."""


def test_health_answers_while_fields_grow():
    seen = run(list(attacks())[::SAMPLE], 8_000_000)
    assert not seen.get("5xx"), seen
    assert not seen.get("hang"), seen
    assert seen["p99"] < P99_S + 2 * seen["calm p99"], seen
    assert seen["grown"] < GROWTH, seen


def message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


async def _together(url: str, bodies: list[tuple[str, Any]]) -> list[int]:
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        headers = {"content-type": "application/json"}
        sent = (client.post(at, content=orjson.dumps(b), headers=headers) for at, b in bodies)
        return [answer.status_code for answer in await asyncio.gather(*sent)]


def test_large_texts_at_the_same_time_take_bounded_memory():
    text = "The cat sat on the mat. " * 330_000
    chat = {"model": "demo", "messages": [{"role": "user", "content": text}]}
    bodies = [("/tokenize", {"prompt": text})] * 3
    bodies += [("/v1/messages/count_tokens", chat), ("/v1/chat/completions", chat)] * 2
    bodies += [("/v1/completions", {"model": "demo", "prompt": " " * 7_900_000})] * 2
    with running() as (url, pid):
        httpx.post(f"{url}/tokenize", json={"prompt": "warm"})
        with Watch(url, pid) as watch:
            statuses = asyncio.run(_together(url, bodies))
    assert set(statuses) <= {400, 429}
    assert watch.seen["grown"] < GROWTH, watch.seen


def test_a_conversation_that_grows_takes_bounded_memory():
    text = "The cat sat on the mat. " * 325_000
    with running() as (url, pid), httpx.Client(base_url=url, timeout=120) as client:
        talk = client.post("/v1/conversations", json={}).json()["id"]
        with Watch(url, pid) as watch:
            added = [
                client.post(f"/v1/conversations/{talk}/items", json={"items": [message(text)]})
                for _ in range(5)
            ]
            body = {"model": "demo", "conversation": talk, "input": "and?", "truncation": "auto"}
            answer = client.post("/v1/responses", json=body)
    assert [one.status_code for one in added] == [200, 400, 400, 400, 400]
    assert answer.status_code in (200, 400)
    assert watch.seen["grown"] < GROWTH, watch.seen
