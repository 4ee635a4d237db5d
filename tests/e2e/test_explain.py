"""Explanations on a real engine: mixed requests and a kill of the engine, each adds up."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conftest import RunningGateway, serving
from tests.faults.engine_process import kill

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
REQUESTS, AT_ONCE, KILLED_AT = 64, 8, 30
WORD = "an unusual word nobody writes"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("explain")
    with serving(folder / "serve.log") as running:
        yield running


def make_body(at: int, dice: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": "demo",
        "messages": [{"role": "user", "content": f"{WORD} {at}: what is {at} plus {at * 7}?"}],
        "max_tokens": dice.choice([1, 8, 40, 160]),
        "temperature": dice.choice([0, 0.8]),
    }
    match at % 8:
        case 0:
            body["n"] = 2
        case 1:
            body["stream"] = True
        case 2:
            body["response_format"] = {"type": "json_object"}
        case 3:
            body["num_speculative_tokens"] = 0
        case 4:
            body["seed"] = at
        case 5:
            body["temperature"] = 3  # refused
        case 6:
            body |= {"stream": True, "stop": ["1"]}
    return body


async def send(client: httpx.AsyncClient, at: int, dice: random.Random) -> str:
    """The request id; one in eight streams is read slowly, one is left."""
    body = make_body(at, dice)
    name = f"explain-{at}"
    headers = {"x-request-id": name}
    if not body.get("stream"):
        await client.post("/v1/chat/completions", json=body, headers=headers)
        return name
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        async for _ in answer.aiter_raw():
            if at % 16 == 1:
                await asyncio.sleep(0.02)
            if at % 24 == 9:
                break
    return name


async def send_all(url: str, gateway_pid: int) -> list[str]:
    places, dice = asyncio.Semaphore(AT_ONCE), random.Random(5)
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def one(at: int) -> str:
            async with places:
                if at == KILLED_AT:
                    await asyncio.to_thread(kill, gateway_pid)
                return await send(client, at, dice)

        return await asyncio.gather(*map(one, range(REQUESTS)))


def test_every_request_adds_up_to_its_wall_time(gateway: RunningGateway) -> None:
    names = asyncio.run(send_all(gateway.url, gateway.process.pid))
    recovered, seen = 0, set()
    for name in names:
        answer = httpx.get(f"{gateway.operator}/debug/requests/{name}")
        assert answer.status_code == 200, (name, answer.text)
        row = answer.json()
        seen.add(row["outcome"])
        total = sum(part["ms"] for part in row["parts"])
        assert total == pytest.approx(row["wall_ms"], rel=0.02, abs=0.2), row
        assert all(part["ms"] >= 0 for part in row["parts"])
        assert WORD not in answer.text
        recovered += any(choice["interruptions"] for choice in row.get("choices", ()))
        for choice in row.get("choices", ()):
            assert sum(run["steps"] for run in choice["runs"]) == choice["steps"]
    assert {"completed", "refused"} <= seen
    assert recovered, "no request outlived a kill"


def test_the_command_explains_a_request(gateway: RunningGateway) -> None:
    command = [sys.executable, "-m", "eaglegate.server", "explain", "--url", gateway.operator]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"chatcmpl-\w+", listed)
    assert found is not None
    told = subprocess.run([*command, found[0]], capture_output=True, text=True, check=True).stdout
    assert "wall time" in told and "decode" in told and WORD not in told
    unknown = subprocess.run([*command, "nobody"], capture_output=True, text=True, check=False)
    assert unknown.returncode == 1 and "'nobody'" in unknown.stderr
