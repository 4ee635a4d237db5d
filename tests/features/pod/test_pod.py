"""A pod's settings, record and gauges, and its start in vLLM's front end."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

pytest.importorskip("vllm")

from vllm import envs
from vllm.config import VllmConfig
from vllm.config.compilation import CUDAGraphMode
from vllm.engine.arg_utils import EngineArgs

import eaglegate.vllm
from eaglegate.engine.advisories import ADVISORIES
from eaglegate.engine.vllm_backend.arguments import DEMO, DEMO_SPECULATION
from eaglegate.engine.vllm_backend.class_names import WORKER
from eaglegate.engine.vllm_contract import DRAFT_K, LEFT_OUT, POD_RECORD, POD_SCHEDULER
from eaglegate.features.pod.engine import gauges
from eaglegate.features.pod.engine.gauges import PodCollector
from eaglegate.features.pod.engine.record import PodNumbers, PodRecord
from eaglegate.features.pod.engine.settings import KEY, PodSettings
from tests.engine.vllm_backend.test_recurrent_targets import NGRAM, hybrid

__all__ = ["hybrid"]  # a fixture
START = "eaglegate.features.pod.engine.start"
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
TARGET = str(DEMO / "target")


def test_settings_come_from_the_entry_or_the_environment() -> None:
    environment = {"EAGLEGATE_DEPTH": "2", "EAGLEGATE_LOOKUP": "7", "EAGLEGATE_PREFLIGHT": "off"}
    assert PodSettings.read({}, {}) == PodSettings()
    settings = PodSettings.read({KEY: {"depth": 3}}, environment)
    assert settings == PodSettings(depth="3", lookup=7, preflight=False)
    assert PodSettings.read({KEY: asdict(settings)}, {}) == settings


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dept": 3}, "has no 'dept': use .*'depth'"),
        ({"depth": "deep"}, "depth must be a number or auto, given 'deep'"),
        ({"lookup": "-1"}, "lookup must be int, given '-1'"),
        ({"strict_advisories": "perhaps"}, "strict_advisories must be bool, given 'perhaps'"),
        ("auto", "must be an object, given 'auto'"),
    ],
)
def test_wrong_settings_are_named(entry: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PodSettings.read({KEY: entry}, {})


@pytest.fixture
def record() -> Iterator[PodRecord]:
    pod_record, path = PodRecord.create()
    yield pod_record
    Path(path).unlink()


def test_gauges_show_the_ranks_that_have_begun(record: PodRecord) -> None:
    record.write(1, PodNumbers(3, 5, 4, 12, 7, planned=1, acceptance_length=2.75, token_rate=80))
    registry = CollectorRegistry()
    registry.register(PodCollector(record, {"depth": "auto"}))
    page = generate_latest(registry).decode()
    for line in (
        'eaglegate_pod_info{depth="auto"} 1.0',
        'eaglegate_pod_verify_steps_total{engine="1"} 4.0',
        'eaglegate_pod_draft_tokens_total{engine="1"} 12.0',
        'eaglegate_pod_undrafted_steps_total{engine="1",reason="planned"} 1.0',
        'eaglegate_pod_acceptance_length{engine="1"} 2.75',
    ):
        assert line in page
    assert 'engine="0"' not in page


def test_each_scrape_of_several_servers_has_the_gauges(
    record: PodRecord, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(MultiProcessCollector, "__init__", MultiProcessCollector.__init__)
    gauges.publish(PodCollector(record, {"depth": "3"}))
    try:
        for _ in range(2):
            registry = CollectorRegistry()
            MultiProcessCollector(registry, str(tmp_path))
            assert 'eaglegate_pod_info{depth="3"}' in generate_latest(registry).decode()
    finally:
        REGISTRY.unregister(gauges.published.pop())


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """vLLM's front end with the plug-in; it and the environment are restored."""
    for name in (POD_RECORD, LEFT_OUT):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(MultiProcessCollector, "__init__", MultiProcessCollector.__init__)
    own = getattr(EngineArgs.create_engine_config, "__wrapped__", EngineArgs.create_engine_config)
    monkeypatch.setattr(EngineArgs, "create_engine_config", own)
    monkeypatch.setattr("vllm.plugins.load_endpoint_plugins", lambda *_: ["another"])
    monkeypatch.setattr(
        "vllm.v1.engine.input_processor.InputProcessor._validate_params", lambda *_: None
    )
    eaglegate.vllm.load()
    eaglegate.vllm.load()
    yield
    while gauges.published:
        REGISTRY.unregister(gauges.published.pop())
    if path := os.environ.get(POD_RECORD):
        Path(path).unlink(missing_ok=True)


def make_arguments(**changes: Any) -> EngineArgs:
    values = {"model": TARGET, "enforce_eager": True, "speculative_config": dict(DEMO_SPECULATION)}
    return EngineArgs(**values | changes)


@pytest.mark.usefixtures("plugged")
def test_nothing_happens_unasked() -> None:
    plain = EngineArgs.create_engine_config.__wrapped__(make_arguments())
    config = make_arguments().create_engine_config()
    assert repr(config) == repr(plain).replace(plain.instance_id, config.instance_id)
    assert POD_RECORD not in os.environ
    assert LEFT_OUT not in os.environ
    assert envs.VLLM_PLUGINS is None


@pytest.mark.usefixtures("plugged")
def test_a_pod_gets_the_worker_and_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLEGATE_LOOKUP", "8")
    arguments = make_arguments(scheduler_cls=POD_SCHEDULER, async_scheduling=False)
    config = arguments.create_engine_config()
    assert config.parallel_config.worker_extension_cls == WORKER
    assert config.additional_config[KEY] == asdict(PodSettings(lookup=8))
    assert config.additional_config[DRAFT_K] == 3
    assert config.speculative_config.num_speculative_tokens == 8
    assert Path(os.environ[POD_RECORD]).exists()
    again = arguments.create_engine_config()
    assert again.speculative_config.num_speculative_tokens == 8
    assert again.additional_config == config.additional_config


@pytest.mark.usefixtures("plugged")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculative_config": DEMO_SPECULATION | {"model": TARGET}}, "draft-is-target"),
        ({"additional_config": {KEY: {"depth": "x"}}}, "depth must be a number or auto"),
        ({"additional_config": {KEY: {"lookup": 40}}}, "--lookup must be from 1 to 32"),
    ],
)
def test_a_pod_that_would_be_wrong_does_not_start(changes: dict[str, Any], message: str) -> None:
    arguments = make_arguments(scheduler_cls=POD_SCHEDULER, async_scheduling=True, **changes)
    with pytest.raises(SystemExit, match=f"^eaglegate: .*{message}"):
        arguments.create_engine_config()


@pytest.mark.usefixtures("plugged")
def test_the_route_needs_the_name_in_vllms_list(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import plugins

    monkeypatch.setenv(POD_RECORD, "/tmp/record")
    assert plugins.load_endpoint_plugins(()) == ["another"]
    monkeypatch.setenv("VLLM_PLUGINS", "eaglegate,another")
    _, route = plugins.load_endpoint_plugins(())
    assert route.name == "eaglegate"


MIXED = CUDAGraphMode.FULL_AND_PIECEWISE
ADVISED: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "pipeline-order": ({"pipeline_parallel_size": 2, "async_scheduling": False}, {}, "1", "0.33.0"),
    "recurrent-counts": ({}, {"scheduler_config.async_scheduling": True}, "0", "0.33.0"),
    "recurrent-short-prompts": ({}, {"compilation_config.cudagraph_mode": MIXED}, "0", "0.33.0"),
    "recurrent-lookups": ({}, {}, "0", "0.31.0"),
    "shared-noise": (
        {},
        {"speculative_config.draft_sample_method": "probabilistic"},
        "1",
        "0.28.0",
    ),
    "prompt-logprobs": ({}, {"compilation_config.cudagraph_mode": MIXED}, "0", "0.33.0"),
    "sleep-draft": ({}, {"model_config.enable_sleep_mode": True}, "0", "0.33.0"),
}
"""Arguments, what vLLM switches off on a CPU as it makes the configuration, runner and version."""


@pytest.mark.usefixtures("plugged")
@pytest.mark.parametrize("name", [row.name for row in ADVISORIES])
def test_an_advisory_is_logged_once_or_ends_the_start(
    name: str, hybrid: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    arguments, fields, runner, version = ADVISED[name]
    if name.startswith("recurrent"):
        arguments = {"model": hybrid, "speculative_config": dict(NGRAM)}

    def complete(config: VllmConfig) -> None:
        for path, value in fields.items():
            part, field = path.split(".")
            setattr(getattr(config, part), field, value)
        monkeypatch.setenv(RUNNER, runner)

    def start() -> None:
        monkeypatch.setenv(RUNNER, "0")
        make_arguments(scheduler_cls=POD_SCHEDULER, **arguments).create_engine_config()

    monkeypatch.setattr(f"{START}.refuse_config", complete)
    monkeypatch.setenv("EAGLEGATE_PREFLIGHT", "0")  # which refuses recurrent layers on a CPU
    monkeypatch.setattr(f"{START}.get_vllm_version", lambda: version)
    logger = logging.Logger("start")
    logger.addHandler(caplog.handler)
    monkeypatch.setattr(f"{START}.log", logger)
    for _ in range(2):  # each API server makes the configuration
        start()
    (row,) = (row for row in ADVISORIES if row.name == name)
    assert [text for text in caplog.messages if f"[{name}]" in text] == [f"eaglegate: {row}"]
    monkeypatch.setenv("EAGLEGATE_STRICT_ADVISORIES", "1")
    with pytest.raises(SystemExit, match=rf"^eaglegate: strict_advisories: .*\[{name}\]"):
        start()
