"""``--lookup`` is added to vLLM's arguments, or refused with what to do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms.cpu import CpuPlatform
from vllm.usage.usage_lib import UsageContext

from eaglegate.engine.errors import EngineStartError
from eaglegate.engine.types import DepthReason, Drafter, EngineInfo, SpeculationInfo
from eaglegate.engine.vllm_backend import arguments as arguments_module
from eaglegate.engine.vllm_backend.arguments import (
    DEMO,
    TABLE,
    make_demo_arguments,
    make_engine_arguments,
    make_engine_config,
)
from eaglegate.engine.vllm_backend.graphs import choose_sizes
from eaglegate.engine.vllm_contract import DRAFT_K
from eaglegate.engine.vllm_fields import mark_other_drafter, pack_depth, unpack_depth
from eaglegate.features.lookups.engine.arguments import add_lookups
from eaglegate.features.lookups.engine.contract import LOOKUP, read_lookup
from eaglegate.features.lookups.engine.engine_plugin import refuse_lookups
from eaglegate.features.lookups.feature import LookupFeature
from eaglegate.features.lookups.settings import LookupSettings
from eaglegate.server.backends.in_process import InProcessBackend
from eaglegate.server.cli.command_line import read_command_line
from eaglegate.server.cli.feature import Core
from eaglegate.server.errors import ConfigError
from tests.engine.vllm_backend.drafters import custom_class, draft_model, p_eagle, pard
from tests.engine.vllm_backend.test_arguments import Gpu, parse
from tests.engine.vllm_backend.test_recurrent_targets import hybrid

__all__ = ["hybrid"]  # a fixture


def make_arguments(width: int, **choices: Any) -> AsyncEngineArgs:
    configure = partial(add_lookups, width=width)
    return make_demo_arguments(configure=configure, **choices)


def test_vllms_depth_becomes_the_longest_lookup() -> None:
    arguments = make_arguments(8)
    assert arguments.speculative_config["num_speculative_tokens"] == 8
    assert arguments.additional_config == {LOOKUP: 8, DRAFT_K: 3}
    assert make_arguments(2).speculative_config["num_speculative_tokens"] == 3


@pytest.mark.parametrize(
    ("width", "choices", "message"),
    [
        (8, {"speculative_config": None}, "--lookup works beside a draft"),
        (8, {"scheduler_cls": "my.Scheduler"}, "leave out --scheduler-cls my.Scheduler"),
    ],
)
def test_arguments_without_a_draft_are_rejected(
    width: int, choices: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_arguments(width, **choices)


SECOND = {"use_v2_model_runner": True, "async_scheduling": True}


@pytest.mark.parametrize("width", [33, -1])
def test_other_widths_are_refused(width: int) -> None:
    with pytest.raises(ConfigError, match=f"must be from 1 to 32, or 0 for none; given {width}"):
        LookupSettings(lookup=width)


def make_config(**changes: Any) -> Any:
    values = {
        "use_v2_model_runner": False,
        "async_scheduling": False,
        "method": "eagle3",
        "draft_sample_method": "greedy",
        "data_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "is_hybrid": False,
        "width": 8,
        "graphs": CUDAGraphMode.FULL_AND_PIECEWISE,
        "is_deep": False,
    } | changes
    sizes = SimpleNamespace(
        data_parallel_size=values["data_parallel_size"],
        pipeline_parallel_size=values["pipeline_parallel_size"],
    )
    return SimpleNamespace(
        additional_config={LOOKUP: values["width"], DRAFT_K: 3},
        use_v2_model_runner=values["use_v2_model_runner"],
        scheduler_config=SimpleNamespace(async_scheduling=values["async_scheduling"]),
        speculative_config=SimpleNamespace(
            method=values["method"],
            num_speculative_tokens=values["width"],
            draft_sample_method=values["draft_sample_method"],
            use_multi_module_mtp=lambda: values["is_deep"],
        ),
        compilation_config=SimpleNamespace(cudagraph_mode=values["graphs"]),
        parallel_config=sizes,
        model_config=SimpleNamespace(
            is_hybrid=values["is_hybrid"], is_attention_free=False, max_model_len=4096
        ),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (SECOND, "use --lookup 7"),
        (SECOND | {"width": 5}, "use --lookup 7"),
        (SECOND | {"width": 14}, "use --lookup 11"),
        (SECOND | {"method": "draft_model"}, "draft_model drafts K tokens"),
        (SECOND | {"method": "mtp", "is_deep": True}, "set VLLM_USE_V2_MODEL_RUNNER=0"),
        (SECOND | {"draft_sample_method": "probabilistic", "width": 7}, "to greedy"),
        ({"method": "medusa"}, "medusa drafts K tokens"),
        ({"method": "suffix"}, "suffix looks drafts up itself"),
    ],
)
def test_configurations_are_rejected_with_a_way_out(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"--lookup .*{message}"):
        refuse_lookups(make_config(**changes))


def make_real_config(width: int = 8, **choices: Any) -> VllmConfig:
    return make_engine_config(make_arguments(width, async_scheduling=False, **choices))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"speculative_config": {"draft_sample_method": "probabilistic"}},
            "would be verified by the draft's probabilities, .*; set draft_sample_method to greedy",
        ),
        ({"data_parallel_size": 2}, "works without data parallelism, .*; run one gateway each"),
        (
            {"pipeline_parallel_size": 2},
            "works without pipeline parallelism; use --tensor-parallel-size",
        ),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
            "works beside a draft model, and ngram looks drafts up itself; leave it out",
        ),
    ],
)
def test_vllms_own_configurations_are_rejected(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^--lookup {message}$"):
        make_real_config(**choices)


@pytest.mark.parametrize("make", [p_eagle, pard, custom_class])
def test_drafts_that_always_have_k_tokens_are_rejected(
    make: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="works beside a draft whose depth varies"):
        make_real_config(**make(tmp_path / "draft"))


@pytest.mark.parametrize("choices", [{}, {"tensor_parallel_size": 2}, draft_model(Path())])
def test_vllms_own_configurations_are_accepted(choices: dict[str, Any]) -> None:
    config = make_real_config(**choices)
    assert config.speculative_config.num_speculative_tokens == 8
    assert read_lookup(config.additional_config) == (8, 3)


@pytest.fixture
def kept_scheduling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep asynchronous scheduling, which vLLM switches off on CPUs."""
    check = CpuPlatform.check_and_update_config

    def check_and_keep(config: VllmConfig) -> None:
        is_asynchronous = config.scheduler_config.async_scheduling
        check(config)
        config.scheduler_config.async_scheduling = is_asynchronous

    monkeypatch.setattr(CpuPlatform, "check_and_update_config", staticmethod(check_and_keep))


@pytest.mark.usefixtures("kept_scheduling")
@pytest.mark.parametrize("is_asynchronous", [True, None])
def test_vllms_asynchronous_scheduling_is_rejected(is_asynchronous: bool | None) -> None:
    """Also as vLLM's default."""
    arguments = make_arguments(8, async_scheduling=is_asynchronous)
    with pytest.raises(ValueError, match=r"^--lookup works with synchronous .*; add --no-async"):
        make_engine_config(arguments)
    make_real_config()


def test_recurrent_targets_have_a_state_for_every_draft_token(hybrid: str) -> None:
    """On a CPU they are refused with any draft, so vLLM's configuration is made alone."""

    def refuse(width: int) -> None:
        arguments = make_arguments(width, model=hybrid, async_scheduling=False)
        refuse_lookups(arguments.create_engine_config(UsageContext.OPENAI_API_SERVER))

    with pytest.raises(ValueError, match=r"of 8 is longer than .* use --lookup 3$"):
        refuse(8)
    refuse(3)


def test_other_configurations_are_accepted() -> None:
    refuse_lookups(make_config())
    refuse_lookups(make_config(is_hybrid=True, width=3))
    for width, graphs in ((7, "FULL_AND_PIECEWISE"), (2, "FULL"), (8, "NONE"), (8, "PIECEWISE")):
        refuse_lookups(make_config(**SECOND, width=width, graphs=CUDAGraphMode[graphs]))
    refuse_lookups(SimpleNamespace(additional_config={}))  # type: ignore[arg-type]
    assert read_lookup(make_config().additional_config) == (8, 3)


def make_backend(*flags: str) -> tuple[InProcessBackend, list[str]]:
    messages: list[str] = []
    line = read_command_line("serve", ["--lookup=8", "--no-async-scheduling", *flags], print)
    return InProcessBackend(line, messages.append), messages


async def test_the_banner_shows_the_drafts_own_depth() -> None:
    backend, messages = make_backend()
    assert any(message.startswith("draft:") and "K=3" in message for message in messages)
    speculation = SpeculationInfo("eagle3", 3, lookup=8)
    info = backend.describe(EngineInfo("demo", 4096, 2048, speculation))
    assert info.speculation.summary.endswith("K=3, lookups of up to 8 tokens")
    await backend.aclose()


def test_a_fixed_depth_is_within_the_drafts_own() -> None:
    with pytest.raises(EngineStartError, match="--depth must be from 0 to 3"):
        make_backend("--depth=5")


def test_workers_get_no_lookups() -> None:
    core = SimpleNamespace(backend=SimpleNamespace(fleet=object()))
    with pytest.raises(ConfigError, match="--lookup looks up in the engine of this process"):
        LookupFeature(cast("Core", core), LookupSettings(lookup=8))


@pytest.mark.parametrize("reason", [None, *DepthReason])
def test_the_drafter_is_packed_with_the_depth(reason: DepthReason | None) -> None:
    packed = pack_depth(7, reason)
    assert unpack_depth(packed) == (7, reason, Drafter.DRAFT)
    assert unpack_depth(mark_other_drafter(packed)) == (7, reason, Drafter.LOOKUP)


@pytest.mark.parametrize(
    ("depth", "lookup", "declared"),
    [("auto", 15, [0, 1, 3, 15]), ("3", 7, [3, 7]), ("auto", 2, [0, 1, 3])],
)
def test_the_width_of_lookups_gets_graphs_beside_the_drafts(
    depth: str, lookup: int, declared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments_module, "current_platform", Gpu())
    draft = '{"method": "eagle3", "model": "d", "num_speculative_tokens": 3}'
    given = parse(str(DEMO / "target"), "--speculative-config", draft)
    arguments = make_engine_arguments(given, depth, partial(add_lookups, width=lookup))
    assert [depth for *_, depth in arguments.speculative_config[TABLE]] == declared
    assert arguments.speculative_config["num_speculative_tokens"] == declared[-1]
    assert arguments.cudagraph_capture_sizes == choose_sizes(declared)
