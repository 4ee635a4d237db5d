"""Advisories of a worker: by its version, and by what it tells of itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eaglegate.engine.errors import EngineStartError
from eaglegate.engine.fleet.types import FindingKind
from eaglegate.engine.fleet.worker import WorkerReport
from eaglegate.engine.remote.probe import PROBE
from eaglegate.server.backends.plan import plan_gateway
from eaglegate.server.backends.remote import RemoteBackend
from eaglegate.server.cli.check import check_workers
from eaglegate.server.cli.command_line import read_command_line
from tests.engine.remote.stand_in_worker import ACCESS, MODEL, StandIn, running, serving

DEMO = Path(__file__).parents[3] / "engine" / "demo" / "target"
HYBRID = replace(MODEL, recurrent=True)
CACHE = 'vllm:cache_config_info{block_size="16",enable_prefix_caching="False",engine="0"} 1.0\n'
PIPELINE = {
    "vllm_config": {
        "speculative_config": {"method": "eagle3"},
        "parallel_config": {"pipeline_parallel_size": 2},
        "scheduler_config": {"async_scheduling": False},
    },
    "vllm_env": {"VLLM_USE_V2_MODEL_RUNNER": True},
}
BROKEN = {
    "vllm_config": {
        "speculative_config": "eagle3",
        "parallel_config": {"pipeline_parallel_size": "2"},
        "model_config": {"enable_sleep_mode": True, "sleep_preserve_parameter_names": 1},
    }
}
FIRST_RUNNER = PIPELINE | {"vllm_env": {"VLLM_USE_V2_MODEL_RUNNER": False}}


@pytest.mark.parametrize(
    ("worker", "model", "names"),
    [
        ({"version": "0.28.0"}, MODEL, ["prompt-logprobs"]),
        ({"version": "0.28.0", "speculates": False}, MODEL, []),
        ({"version": "0.33.0"}, HYBRID, []),
        ({"version": None}, HYBRID, []),
        (
            {"version": "0.28.0"},
            HYBRID,
            ["recurrent-counts", "recurrent-short-prompts", "prompt-logprobs"],
        ),
        (
            {"version": "0.28.0", "exposition": CACHE},
            HYBRID,
            ["recurrent-short-prompts", "prompt-logprobs"],
        ),
        ({"version": "0.33.0", "server_info": PIPELINE}, MODEL, ["pipeline-order"]),
        ({"version": "0.33.0", "server_info": FIRST_RUNNER}, MODEL, ["prompt-logprobs"]),
        ({"version": "0.28.0", "server_info": {"vllm_config": 7}}, MODEL, ["prompt-logprobs"]),
        ({"version": "0.28.0", "server_info": BROKEN}, MODEL, ["prompt-logprobs"]),
    ],
)
async def test_advisories_follow_from_what_a_worker_tells(
    worker: dict[str, Any], model: Any, names: list[str]
) -> None:
    async with running(StandIn(**worker), model=model) as engine:
        assert [row.name for row in engine.info.advisories] == names


async def test_a_strict_gateway_refuses_the_worker() -> None:
    strict = replace(ACCESS, strict_advisories=True)
    async with running(StandIn(version="0.33.0"), strict):
        pass
    with pytest.raises(EngineStartError, match=r"^--strict-advisories: \[prompt-logprobs\] "):
        async with running(StandIn(version="0.28.0"), strict):
            pass


@pytest.mark.parametrize("flags", [[], ["--strict-advisories"]])
async def test_check_shows_them_or_refuses(flags: list[str]) -> None:
    worker = StandIn(version="0.28.0")
    async with serving(worker.app()) as url:
        argv = [str(DEMO), "--upstream", url, "--upstream-probe-s", "0", "--port", "0", *flags]
        line = read_command_line("check", argv, lambda _: None)
        backend = RemoteBackend(line, lambda _: None)
        worker.tokens = list(backend.renderer.encode(PROBE, False))
        answers = await backend.ask_workers()
    report = check_workers({}, answers, plan_gateway(line.settings, line.model))
    assert "[prompt-logprobs] a draft model with piecewise CUDA graphs" in report.text
    assert "(vllm#53488, vllm#53520)" in report.text
    (answer,) = answers.values()
    if flags:
        assert report.status == 1
        assert isinstance(answer, EngineStartError)
    else:
        assert report.status == 0
        assert isinstance(answer, WorkerReport)
        assert [finding.kind for finding in answer.findings] == [FindingKind.ADVISORY]
