"""Preflight: what an engine would be and what would stop it, without loading anything."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eaglegate.engine.gpus import GpuDevice
from eaglegate.engine.machine import GIB, Machine
from eaglegate.engine.preflight import EnginePlan, make_plan, preflight
from eaglegate.engine.preflight.context import overlay_config
from tests.engine.stand_ins import kimi, kimi_draft

DEMO = Path(__file__).parents[2] / "engine" / "demo"
LAPTOP = Machine("cpu", cores=2, free_memory=16 * GIB)
SERVER = Machine("cuda", 64, 900 * GIB, gpus=(GpuDevice("B200", 180 * GIB, 178 * GIB),) * 4)


def demo(**changes: Any) -> EnginePlan:
    speculation = {
        "model": str(DEMO / "eagle3_1"),
        "method": "eagle3",
        "num_speculative_tokens": 3,
    }
    given = {"model": str(DEMO / "target"), "speculative_config": speculation}
    return EnginePlan(**(given | changes))


def offline() -> str | None:
    return "HF_HUB_OFFLINE is set"


def online() -> str | None:
    return None


def test_nothing_stops_the_demo():
    found = preflight(demo(), LAPTOP, offline)
    assert (found.obstacles, found.remarks) == ((), ())
    assert found.draft is not None and found.draft.method == "eagle3.1"
    assert found.facts["dtype"] == "auto, here bfloat16"
    assert found.facts["max_model_len"] == "auto, here 4096"


@pytest.mark.parametrize(
    ("plan", "machine", "words"),
    [
        (demo(tensor_parallel_size=4), LAPTOP, "4 workers need a core each, and there are 2"),
        (demo(), Machine("cuda", 2, 16 * GIB), "none is visible to this process"),
        (demo(tensor_parallel_size=8), SERVER, "8 workers need as many GPUs, and 4 are visible"),
        (demo(tensor_parallel_size=3), SERVER, "attention heads do not divide over 3 ranks"),
        (demo(kv_cache_bytes=64 * GIB), LAPTOP, "64.0 GiB of memory, 16.0 GiB are free"),
        (demo(kv_transfers=("NixlConnector",)), LAPTOP, "NixlConnector splits prefill and decode"),
        (demo(max_model_len=9000), LAPTOP, "max_model_len is 9000, the model supports 4096"),
        (demo(model="/nowhere"), LAPTOP, "/nowhere does not exist"),
        (demo(model="org/name"), LAPTOP, "org/name is not on this machine"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_obstacle_is_named(plan: EnginePlan, machine: Machine, words: str):
    assert words in " | ".join(preflight(plan, machine, offline).obstacles)


@pytest.mark.parametrize(
    ("content", "words"), [("[" * 5000, "is nested too deeply"), ("{", "is not JSON")]
)
def test_unreadable_sampling_defaults_are_an_obstacle_unless_nobody_reads_them(
    tmp_path: Path, content: str, words: str
):
    target = tmp_path / "target"
    shutil.copytree(DEMO / "target", target)
    (target / "generation_config.json").write_text(content)
    [obstacle] = preflight(demo(model=str(target)), LAPTOP, offline).obstacles
    assert f"generation_config.json {words}" in obstacle
    assert "--generation-config vllm" in obstacle
    plan = demo(model=str(target), generation_config="vllm")
    assert preflight(plan, LAPTOP, offline).obstacles == ()


def test_a_bad_draft_is_an_obstacle():
    settings = {"model": str(DEMO / "target"), "method": "eagle3", "num_speculative_tokens": 3}
    obstacles = preflight(demo(speculative_config=settings), LAPTOP, offline).obstacles
    assert any("draft-is-target" in text for text in obstacles)


def test_a_model_on_the_hub_is_downloaded_where_the_hub_answers():
    found = preflight(demo(model="org/name", speculative_config=None), LAPTOP, online)
    assert found.obstacles == ()
    assert found.remarks == ("org/name is not on this machine; serve would download it",)


def kimi_plan(where: Path) -> EnginePlan:
    return EnginePlan(
        model=str(kimi(where / "nvidia/Kimi-K2.6-NVFP4")),
        tensor_parallel_size=4,
        attention_backend="TOKENSPEED_MLA",
        speculative_config={
            "model": str(kimi_draft(where / "lightseekorg/kimi-k2.6-eagle3.1-mla")),
            "method": "eagle3",
            "num_speculative_tokens": 3,
        },
    )


def test_kimi_on_four_gpus(tmp_path: Path):
    plan = kimi_plan(tmp_path)
    started = time.perf_counter()
    found = preflight(plan, SERVER, offline)
    assert time.perf_counter() - started < 1
    assert found.obstacles == ()
    assert found.draft is not None and found.draft.findings == ()
    assert found.draft.summary == (
        "EAGLE 3.1: fc_norm x3, norm_output, MLA; "
        "1 layer, draft vocabulary 163840 of 163840; K=3"
    )  # fmt: skip
    assert found.facts["quantisation"] == "modelopt NVFP4"


@pytest.mark.parametrize("name", ["s3://bucket/model", "org/model-GGUF:Q4_K_M"])
def test_uninspected_model_files_are_no_obstacle(name: str):
    found = preflight(demo(model=name, speculative_config=None), LAPTOP, offline)
    assert found.obstacles == ()
    assert found.remarks[0].startswith("the model's files were not inspected")


def test_mistrals_own_format_is_no_obstacle(tmp_path: Path):
    (tmp_path / "params.json").write_text("{}")
    settings = {"model": str(tmp_path), "method": "eagle", "num_speculative_tokens": 3}
    found = preflight(demo(model=str(tmp_path), speculative_config=settings), LAPTOP, offline)
    assert found.obstacles == ()
    assert found.draft is not None and found.draft.warnings[0].rule == "not-inspected"


def test_workers_of_other_nodes_need_nothing_here():
    plan = demo(tensor_parallel_size=4, pipeline_parallel_size=2, nodes=2)
    found = preflight(plan, SERVER, offline)
    assert found.obstacles == ()
    assert found.remarks == ("2 nodes: only this node was checked, with 4 of the workers",)


def test_ray_places_workers_itself():
    found = preflight(
        demo(tensor_parallel_size=4, pipeline_parallel_size=2, executor="ray"), SERVER, offline
    )
    assert found.obstacles == ()
    assert "Ray places the workers" in found.remarks[0]


def test_a_plan_comes_from_the_engine_arguments():
    arguments = SimpleNamespace(
        model="m", attention_backend=SimpleNamespace(name="CPU_ATTN"), tensor_parallel_size=2,
        speculative_config={"method": "ngram"}, nnodes=2, pipeline_parallel_size=2,
    )  # fmt: skip
    plan = make_plan(arguments)
    assert (plan.model, plan.attention_backend, plan.workers) == ("m", "CPU_ATTN", 2)
    assert plan.speculative_config == {"method": "ngram"}


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (None, ()),
        ({"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}, ()),
        ({"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}, ()),
        (SimpleNamespace(kv_connector="NixlConnector", kv_role="kv_both"), ("NixlConnector",)),
        ({"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_consumer"}, ("LMCacheConnectorV1",)),
        (
            {
                "kv_connector": "MultiConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {
                    "connectors": [
                        {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"},
                        {"kv_connector": "NixlPullConnector", "kv_role": "kv_both"},
                    ]
                },
            },
            ("NixlPullConnector",),
        ),
    ],
)
def test_connectors_between_prefill_and_decode_are_told_from_storage(config, names):
    plan = make_plan(SimpleNamespace(model="m", kv_transfer_config=config))
    assert plan.kv_transfers == names


def test_a_plan_comes_from_a_parsed_command_line():
    assert make_plan(SimpleNamespace(model_tag="named")).model == "named"


def test_overrides_of_the_configuration_are_what_is_checked():
    longer = {"max_position_embeddings": 16384, "rope_scaling": {"factor": 4.0}}
    plan = demo(max_model_len=9000, hf_overrides=longer)
    found = preflight(plan, LAPTOP, offline)
    assert not any("the model supports" in text for text in found.obstacles)
    shorter = demo(max_model_len=4000, hf_overrides={"max_position_embeddings": 2048})
    assert "the model supports 2048" in "".join(preflight(shorter, LAPTOP, offline).obstacles)
    heads = demo(tensor_parallel_size=2, hf_overrides={"num_attention_heads": 3})
    obstacles = preflight(heads, LAPTOP, offline).obstacles
    assert any("3 attention heads do not divide" in text for text in obstacles)


def test_overrides_reach_the_text_part_and_the_draft():
    nested = {"text_config": {"num_hidden_layers": 8, "hidden_size": 64}, "rope": {"a": 1}}
    assert overlay_config(nested, {"text_config": {"hidden_size": 32}, "rope": {"b": 2}}) == {
        "text_config": {"num_hidden_layers": 8, "hidden_size": 32},
        "rope": {"b": 2},
    }
    found = preflight(demo(hf_overrides={"hidden_size": 640}), LAPTOP, offline)
    assert any("draft cannot work" in text for text in found.obstacles)


def test_overrides_come_from_the_command_line_and_a_function_is_left_out():
    assert make_plan(SimpleNamespace(model="m", hf_overrides={"a": 1})).hf_overrides == {"a": 1}
    assert make_plan(SimpleNamespace(model="m", hf_overrides=len)).hf_overrides == {}
