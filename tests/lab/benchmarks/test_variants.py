"""Every gateway that lab/benchmarks/layers.py compares answers its request."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from eaglegate.engine.steps import read_steps
from eaglegate.engine.types import EngineRequest, Sampling
from eaglegate.lab.benchmarks.layers import write_request
from eaglegate.lab.benchmarks.observing import INFO, make_scripted_engine
from eaglegate.lab.benchmarks.variants import TABLE, TIMER_S, PacedEngine, Variant, make_app
from eaglegate.server.generation import generate

ENDS = ("data: [DONE]", "event: response.completed", "event: response.incomplete")


@pytest.mark.parametrize("variant", TABLE, ids=lambda variant: variant.name)
async def test_every_variant_answers(
    variant: Variant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "Account", generate.Account)  # a variant may exchange it
    head, _, body = write_request(variant, "Tell me a story.").partition(b"\r\n\r\n")
    lines = (line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    transport = httpx.ASGITransport(make_app(variant, tmp_path))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.post(variant.path, content=body, headers=dict(lines))
    assert answer.status_code == 200, answer.text
    assert any(end in answer.text for end in ENDS)


async def test_a_paced_engine_sleeps_until_its_next_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine that does not sleep would take a core of its own, which would count as the
    gateway's cost."""
    engine = PacedEngine(make_scripted_engine(400).script, INFO, 0.0004, None)
    sleeps: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        await real(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    request = EngineRequest("r", (1,), Sampling(max_tokens=400))
    tokens = [len(step.token_ids) async for step in read_steps(engine.generate, request)]
    assert sum(tokens) == 400
    assert all(seconds == 0 or seconds >= TIMER_S for seconds in sleeps)
    assert any(sleeps)
