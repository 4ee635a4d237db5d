"""Faults of speculation in a served gateway: the gateway switches it off, an operator on again.

The engine starts with the fault (``faulty.INJECTED``) and keeps it.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ADMIN, ROOT, RunningGateway, serving
from tests.engine.vllm_backend import faulty
from tests.engine.vllm_backend.test_audits import WORKER
from tests.faults import streams

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FLAGS = (*ADMIN, "--dtype=float32", "--depth=3", f"--worker-extension-cls={WORKER}")
ANSWERS_PER_S = 5
SHARE = 0.2
LOST_WITHIN_S = 150  # audits wait for a share of the engine's time
TOKENS = 16
DRAFTED, STEPS = "eaglegate_drafted_tokens_total", "eaglegate_verify_steps_total"


def command(gateway: RunningGateway, *arguments: str) -> str:
    """The output of ``eaglegate audit``."""
    line = [sys.executable, "-m", "eaglegate.server", "audit", *arguments]
    line += ["--url", gateway.operator]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def count(gateway: RunningGateway, name: str) -> float:
    return gateway.metric(name) or 0.0


async def ask_until(
    gateway: RunningGateway, is_reached: Callable[[], bool], within_s: float, **sampling: Any
) -> float:
    """Ask ``ANSWERS_PER_S`` questions a second; the seconds until ``is_reached``."""
    began, asked = time.monotonic(), set[asyncio.Task[httpx.Response]]()
    async with httpx.AsyncClient(base_url=gateway.url, timeout=120) as client:
        for number in itertools.count():
            body = streams.request("chat", number, TOKENS) | {"stream": False, **sampling}
            del body["stream_options"]
            asked.add(asyncio.create_task(client.post("/v1/chat/completions", json=body)))
            await asyncio.sleep(began + (number + 1) / ANSWERS_PER_S - time.monotonic())
            took_s = time.monotonic() - began
            if number % ANSWERS_PER_S == 0 and await asyncio.to_thread(is_reached):
                break
            assert took_s < within_s, command(gateway, "show")
        answers = await asyncio.gather(*asked)
    assert {answer.status_code for answer in answers} == {200}
    return took_s


def test_a_faulty_engine_loses_speculation_until_it_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(faulty.INJECTED, faulty.IGNORES_SEED)
    sampling: dict[str, Any] = {"temperature": 1.0, "seed": 7}
    with serving(tmp_path / "serve.log", (*FLAGS, f"--audit-share={SHARE}")) as gateway:

        def is_held() -> bool:
            return bool(count(gateway, "eaglegate_audit_hold"))

        asyncio.run(ask_until(gateway, is_held, LOST_WITHIN_S, **sampling))
        time.sleep(2)  # what runs keeps its drafts
        drafted = count(gateway, DRAFTED)
        body = streams.request("chat", 0, TOKENS) | sampling
        (heard,) = asyncio.run(streams.hear_all(gateway.url, [body]))
        assert heard.whole
        assert count(gateway, DRAFTED) == drafted
        assert "chat: no speculation" in command(gateway, "show")
        assert command(gateway, "release", "chat") == "chat is released\n"
        (heard,) = asyncio.run(streams.hear_all(gateway.url, [body]))
        assert heard.whole
        assert count(gateway, DRAFTED) > drafted


def test_drafts_that_kill_the_engine_twice_are_bounded_until_they_are_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream goes on through both deaths and says what it says without drafts."""
    monkeypatch.setenv(faulty.INJECTED, faulty.DIES_DRAFTING)
    with serving(tmp_path / "serve.log", FLAGS) as gateway:

        def hear(tokens: int = 100, **fields: Any) -> Any:
            before = count(gateway, DRAFTED), count(gateway, STEPS)
            body = streams.request("chat", 3, tokens) | fields
            (heard,) = asyncio.run(streams.hear_all(gateway.url, [body]))
            assert heard.whole, heard.error
            drafted, steps = count(gateway, DRAFTED) - before[0], count(gateway, STEPS) - before[1]
            return heard.said, drafted / steps if steps else 0.0

        wanted, depth = hear(num_speculative_tokens=0)
        assert depth == 0
        assert hear()[0] == wanted
        assert gateway.metric("eaglegate_draft_deaths_total", depth="3") == 2
        assert gateway.metric("eaglegate_draft_hold", depth="3") == 1
        assert count(gateway, "eaglegate_engine_losses_total") == 2
        assert hear() == (wanted, 1.0), "a depth of one kills nothing"
        assert count(gateway, "eaglegate_engine_losses_total") == 2
        assert "eagle3.1, depth 3: in use again" in command(gateway, "release", "--drafts")
        assert hear(tokens=faulty.DEEP_STEPS_TO_DEATH)[1] > 1
