"""Advisories of real command lines and of real configurations of vLLM."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter
from vllm.config import VllmConfig
from vllm.config.compilation import CUDAGraphMode
from vllm.usage.usage_lib import UsageContext

from eaglegate.engine import preflight as preflight_module
from eaglegate.engine.advisories import ADVISORIES, describe, list_advisories
from eaglegate.engine.errors import EngineStartError
from eaglegate.engine.machine import GIB, Machine
from eaglegate.engine.preflight import make_plan, preflight
from eaglegate.engine.scripted import DEFAULT_INFO
from eaglegate.engine.vllm_backend.arguments import make_demo_arguments
from eaglegate.server.backends import in_process
from eaglegate.server.backends.plan import plan_gateway
from eaglegate.server.cli.check import check
from eaglegate.server.cli.command_line import read_command_line
from eaglegate.server.settings import Settings
from tests.engine.vllm_backend.drafters import TARGET
from tests.engine.vllm_backend.test_recurrent_targets import NGRAM, hybrid

__all__ = ["hybrid"]  # a fixture
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
SERVER = Machine("cuda", 64, 512 * GIB)
DRAFT = {
    "method": "eagle3", "model": str(TARGET.parent / "eagle3_1"), "num_speculative_tokens": 3,
}  # fmt: skip


def find_names(source: Any, version: str = "0.33.0") -> list[str]:
    return [row.name for row in list_advisories(describe(source, version))]


Line = tuple[str, str, dict[str, Any], list[str]]
"""Version, runner ("" for vLLM's choice), draft, and flags."""
CASES: dict[str, tuple[Line, Line]] = {
    "pipeline-order": (
        ("0.32.0", "", DRAFT, ["-pp", "2", "--no-async-scheduling"]),
        ("0.32.0", "", DRAFT, ["-pp", "2"]),
    ),
    "recurrent-counts": (
        ("0.33.0", "0", NGRAM, []),
        ("0.33.0", "0", NGRAM, ["--no-enable-prefix-caching"]),
    ),
    "recurrent-short-prompts": (
        ("0.33.0", "0", NGRAM, []),
        ("0.33.0", "0", NGRAM, ["--compilation-config", '{"cudagraph_mode": "PIECEWISE"}']),
    ),
    "recurrent-lookups": (("0.31.0", "", NGRAM, []), ("0.32.0", "", NGRAM, [])),
    "shared-noise": (
        ("0.28.0", "1", DRAFT | {"draft_sample_method": "probabilistic"}, []),
        ("0.29.0", "1", DRAFT | {"draft_sample_method": "probabilistic"}, []),
    ),
    "prompt-logprobs": (
        ("0.33.0", "0", DRAFT, []),
        ("0.33.0", "0", DRAFT | {"disable_padded_drafter_batch": True}, []),
    ),
    "sleep-draft": (
        ("0.32.0", "", DRAFT, ["--enable-sleep-mode"]),
        ("0.32.0", "", DRAFT,
         ["--enable-sleep-mode", "--sleep-preserve-parameter-names", "draft.*"]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_command_lines_match_or_do_not(
    name: str, hybrid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(line: Line) -> list[str]:
        version, runner, draft, flags = line
        model = hybrid if name.startswith("recurrent") else str(TARGET)
        monkeypatch.setenv(RUNNER, runner)
        monkeypatch.setattr(preflight_module, "get_vllm_version", lambda: version)
        argv = [model, "--speculative-config", json.dumps(draft), *flags]
        namespace = read_command_line("check", argv, lambda _: None).namespace
        report = preflight(make_plan(namespace), SERVER, lambda: None)
        return [row.name for row in report.advisories]

    match, other = CASES[name]
    assert name in find(match)
    assert name not in find(other)
    assert find(("0.33.0", "", DRAFT, [])) == []


def test_every_row_has_a_case() -> None:
    assert list(CASES) == [row.name for row in ADVISORIES]


def make_config(**choices: Any) -> VllmConfig:
    """On a CPU drafts of recurrent targets are refused by the gateway, but not by vLLM."""
    arguments = make_demo_arguments(**choices)
    return arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)


def test_configurations_of_pipelines_match(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(pipeline_parallel_size=2, async_scheduling=False)
    assert find_names(config) == []
    monkeypatch.setenv(RUNNER, "1")  # vLLM 0.32 refuses it on a CPU as it makes the configuration
    assert find_names(config) == ["pipeline-order"]
    config.scheduler_config.async_scheduling = True
    assert find_names(config) == []


def test_configurations_of_recurrent_targets_match(hybrid: str) -> None:
    def make(**choices: Any) -> VllmConfig:
        config = make_config(model=hybrid, speculative_config=NGRAM, **choices)
        config.scheduler_config.async_scheduling = True  # which vLLM switches off on a CPU
        return config

    config = make()
    assert config.cache_config.mamba_cache_mode == "align"
    assert find_names(config) == ["recurrent-counts"]
    assert find_names(config, "0.31.0") == ["recurrent-counts", "recurrent-lookups"]
    config.compilation_config.cudagraph_mode = CUDAGraphMode.FULL_AND_PIECEWISE
    assert find_names(config) == ["recurrent-counts", "recurrent-short-prompts"]
    assert find_names(make(enable_prefix_caching=False)) == []


def change_graphs(config: VllmConfig) -> None:
    config.compilation_config.cudagraph_mode = CUDAGraphMode.PIECEWISE


def change_sleep(config: VllmConfig) -> None:
    config.model_config.enable_sleep_mode = True


@pytest.mark.parametrize(
    ("change", "name"), [(change_graphs, "prompt-logprobs"), (change_sleep, "sleep-draft")]
)
def test_configurations_of_drafts_match(change: Callable[[VllmConfig], None], name: str) -> None:
    config = make_config()
    assert find_names(config) == []
    change(config)
    assert find_names(config) == [name]
    config.speculative_config = None
    assert find_names(config) == []


def test_a_configuration_and_its_json_are_described_alike() -> None:
    """A worker in development mode tells its configuration as JSON."""
    config = make_config(pipeline_parallel_size=2)
    document = TypeAdapter(VllmConfig).dump_python(config, mode="json", fallback=str)
    assert describe(json.loads(json.dumps(document)), "0.32.0", second_runner=False) == describe(
        config, "0.32.0"
    )


def test_builds_without_a_release_number_have_no_advisories() -> None:
    config = make_config()
    change_sleep(config)
    assert find_names(config, "0.1.dev493+g4d9600003") == find_names(config, "") == []
    assert find_names(config, "0.26.0") == []
    assert find_names(config, "0.40.1rc1") == ["sleep-draft"]


def test_the_gateway_reports_them_or_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "list_advisories", lambda _: ADVISORIES[:1])
    messages: list[str] = []

    def start(*flags: str) -> in_process.InProcessBackend:
        line = read_command_line("serve", ["--port", "0", *flags], lambda _: None)
        return in_process.InProcessBackend(line, messages.append)

    assert start().describe(DEFAULT_INFO).advisories == ADVISORIES[:1]
    assert f"WARNING: {ADVISORIES[0]}" in messages
    with pytest.raises(EngineStartError, match=r"^--strict-advisories: \[pipeline-order\]"):
        start("--strict-advisories")


def test_check_reports_them_or_fails() -> None:
    """On a CPU none of the rows can match, so the machine is another one."""
    _, _, draft, flags = CASES["pipeline-order"][0]
    line = ["--speculative-config", json.dumps(draft), *flags]
    namespace = read_command_line("check", [str(TARGET), *line], lambda _: None).namespace
    settings = Settings(port=0)
    for strict in (False, True):
        gateway_plan = plan_gateway(replace(settings, strict_advisories=strict), namespace)
        report = check(make_plan(namespace), gateway_plan, SERVER)
        prefix = "- --strict-advisories: " if strict else "  "
        assert f"{prefix}[pipeline-order] drafts with pipeline" in report.text
        assert ("--strict-advisories" in report.text.partition("cannot start")[2]) == strict
