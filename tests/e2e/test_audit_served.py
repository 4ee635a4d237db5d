"""A served gateway loses speculation by itself when its drafts are at fault."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conftest import RunningGateway, serving
from tests.engine.vllm_backend import faulty

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

WORKER = "tests.engine.vllm_backend.faulty.FaultyWorker"
PER_S = 5
LIMIT_S = 60.0
SHARE = 0.2


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("audited")
    flags = ["--audit-share", str(SHARE), "--audit-evidence", str(folder / "evidence")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(faulty.INJECTED, faulty.ACCEPTS_WITHIN_A_WINDOW)
        with serving(folder / "log", [*flags, "--worker-extension-cls", WORKER]) as running:
            yield running


def make_body(number: int) -> dict[str, Any]:
    content = f"Tell me story number {number} about a cat, a key and the rain."
    return {
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 48,
    }


async def test_speculation_goes_off_within_a_minute(gateway: RunningGateway) -> None:
    """The drafts are accepted in a lossy window, at five answers a second."""
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as client:
        began, number, asked = time.monotonic(), 0, set()
        held: dict[str, Any] = {}
        while not held and time.monotonic() < began + LIMIT_S:
            number += 1
            asked.add(asyncio.create_task(ask(client, number)))
            await asyncio.sleep(1 / PER_S)
            if number % PER_S == 0:
                held = (await client.get("/admin/audit")).json()["holds"]
        took_s = time.monotonic() - began
        await asyncio.gather(*asked)
        assert held, (await client.get("/admin/audit")).json()
        assert held["chat"]["evidence"].endswith(".json")
        print(f"held after {took_s:.1f} s and {number} answers: {held['chat']['reason']}")
        before = gateway.metric("eaglegate_verify_steps_total")
        await ask(client, number + 1)
        assert gateway.metric("eaglegate_verify_steps_total") == before, "it drafts still"
        assert gateway.metric("eaglegate_audit_hold", workload="chat") == 1
        released = await client.post("/admin/audit/release", json={"workload": "chat"})
        assert released.status_code == 200
        await ask(client, number + 2)
        assert gateway.metric("eaglegate_verify_steps_total") > before


async def ask(client: httpx.AsyncClient, number: int) -> None:
    answer = await client.post("/v1/chat/completions", json=make_body(number))
    assert answer.status_code == 200, answer.text
