"""Two gateways that start at once on one core: timing steps obeys its limit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import torch

from eaglegate.engine.vllm_backend.arguments import DEMO
from eaglegate.lab.training.cost_scaled import cost_scaled_demo
from tests.conftest import ADMIN, RunningGateway, serving
from tests.forks import Limits

pytestmark = pytest.mark.slow

LIMIT_S = 3.0
LATE_S = 3.0
"""A step that runs cannot be ended, and the clock is read on a core that others have."""
TIMED = re.compile(r"timed steps for (\d+\.\d) s")
IDENTITY_LAYERS = 32


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo with 40 layers."""
    out = tmp_path_factory.mktemp("large")
    drafts = [DEMO / "eagle3_1"]
    cost_scaled_demo(DEMO / "target", drafts, IDENTITY_LAYERS, out, torch.bfloat16)
    return out


@pytest.fixture(scope="module")
def gateways(
    tmp_path_factory: pytest.TempPathFactory, large: Path
) -> Iterator[list[RunningGateway]]:
    """One of the demo and one of the large model, both pinned to the same core."""
    logs = tmp_path_factory.mktemp("start_limit")
    auto = (*ADMIN, "--depth", "auto", "--kv-cache-memory-bytes", "268435456")
    draft = ("--spec-model", str(large / "eagle3_1"), "--spec-tokens", "7")
    arguments = [auto, (str(large / "target"), *draft, *auto)]
    with ExitStack() as stack, ThreadPoolExecutor(len(arguments)) as pool:
        started = pool.map(
            lambda numbered: stack.enter_context(
                serving(logs / f"{numbered[0]}.log", numbered[1], limits=Limits(cores=1))
            ),
            enumerate(arguments),
        )
        yield list(started)


def test_timing_ends_within_its_limit_on_a_throttled_core(gateways: list[RunningGateway]) -> None:
    for gateway in gateways:
        (taken,) = TIMED.findall(gateway.log.read_text())
        assert float(taken) < LIMIT_S + LATE_S


def test_untimed_steps_are_learnt_from_traffic(gateways: list[RunningGateway]) -> None:
    gateway = gateways[-1]

    def count_known_steps() -> int:
        answer = httpx.get(f"{gateway.operator}/admin/speculation", timeout=60)
        return int(answer.json()["planner"]["cost"]["steps"])

    before = count_known_steps()
    (model,) = httpx.get(f"{gateway.url}/v1/models", timeout=60).json()["data"]
    body = {
        "model": model["id"],
        "messages": [{"role": "user", "content": "Tell me a short story about a cat and a key."}],
        "max_tokens": 40,
    }
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    assert count_known_steps() > before
