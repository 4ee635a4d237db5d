"""Drafts that are slow for ten seconds: the planner shows it, and drafts as before soon after."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from statistics import mean
from typing import Any

import httpx
import pytest
import torch

from eaglegate.engine.vllm_backend.arguments import DEMO
from eaglegate.lab.training.cost_scaled import cost_scaled_demo
from tests.conftest import ADMIN, RunningGateway, serving
from tests.engine.vllm_backend import faulty
from tests.engine.vllm_backend.test_audits import WORKER
from tests.faults import streams

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

IDENTITY_LAYERS = 8
SLOW_FOR_S = 10
STEPS_BEFORE = 60
MOST_STEPS_AFTER = 1000
THREADS = "VLLM_CPU_OMP_THREADS_BIND"


def ask(gateway: RunningGateway, tokens: int) -> None:
    (model,) = httpx.get(f"{gateway.url}/v1/models", timeout=60).json()["data"]
    body = streams.request("chat", 3, tokens) | {"model": model["id"]}
    (heard,) = asyncio.run(streams.hear_all(gateway.url, [body]))
    assert heard.whole, heard.error


def read_planner(gateway: RunningGateway) -> dict[str, Any]:
    planner = httpx.get(f"{gateway.operator}/debug/speculation", timeout=60).json()["planner"]
    assert isinstance(planner, dict)
    return planner


def count_steps(planner: dict[str, Any]) -> int:
    return sum(planner["steps_by_depth"])


def get_mean_depth(planner: dict[str, Any]) -> float:
    """Mean depth of the newest 50 steps."""
    return mean(row["drafted"] for row in planner["recent"])


def test_the_planner_drafts_again_after_ten_slow_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost_scaled_demo(DEMO / "target", [DEMO / "eagle3_1"], IDENTITY_LAYERS, tmp_path, torch.float32)
    slow = tmp_path / "slow"
    monkeypatch.setenv(faulty.SLOW_DRAFTS, str(slow))
    monkeypatch.setenv(THREADS, str(min(os.sched_getaffinity(0))))
    draft = ("--spec-model", str(tmp_path / "eagle3_1"), "--spec-tokens", "2")
    flags = (*ADMIN, *draft, "--dtype=float32", "--depth=auto", f"--worker-extension-cls={WORKER}")
    with serving(tmp_path / "serve.log", (str(tmp_path / "target"), *flags)) as gateway:
        while count_steps(planner := read_planner(gateway)) < STEPS_BEFORE:
            ask(gateway, tokens=40)
        depth_before = get_mean_depth(planner)
        assert depth_before > 1
        slow.touch()
        start = time.monotonic()
        while time.monotonic() < start + SLOW_FOR_S:
            ask(gateway, tokens=8)
        slow.unlink()
        planner = read_planner(gateway)
        slow_steps = [
            row for row in planner["recent"] if row["seconds"] > faulty.SLOW_S and row["drafted"]
        ]
        assert len(slow_steps) > 3, "the page has no trace of the slow steps"
        last_step = count_steps(planner) + MOST_STEPS_AFTER
        ask(gateway, tokens=40)
        while get_mean_depth(planner := read_planner(gateway)) < 0.8 * depth_before:
            assert count_steps(planner) < last_step, planner["cost"]
            ask(gateway, tokens=40)
