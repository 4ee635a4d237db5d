"""Targets with recurrent layers: on a CPU they are refused with drafts, and serve without.

vLLM 0.32 alone, without eaglegate, wrote other text there with n-gram drafts than without: tiny
Mamba 2 models with random weights, in float32, at every depth, and at depth 0 as well. A gated
delta net died at a step with fewer tokens than the one before had accepted.
"""

from __future__ import annotations

import inspect
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from vllm.model_executor.layers.mamba.ops.cpu.causal_conv1d import causal_conv1d_update_cpu

from eaglegate.engine.machine import GIB, Machine
from eaglegate.engine.preflight import EnginePlan, preflight
from eaglegate.engine.speculation.drafts.inspection.recurrent import RECURRENT_ON_CPU, is_recurrent
from eaglegate.engine.vllm_backend.arguments import make_demo_arguments, make_engine_config
from tests.engine.vllm_backend.drafters import TARGET

HYBRID = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "hybrid_override_pattern": "M*M-",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "mamba_num_heads": 8,
    "mamba_head_dim": 32,
    "ssm_state_size": 16,
    "n_groups": 1,
    "chunk_size": 64,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}
NGRAM = {"method": "ngram_gpu", "num_speculative_tokens": 3}


@pytest.fixture
def hybrid(tmp_path: Path) -> str:
    """A checkpoint without weights: nothing is loaded."""
    (tmp_path / "config.json").write_text(json.dumps(HYBRID))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TARGET / name, tmp_path / name)
    return str(tmp_path)


def test_the_engine_does_not_start_with_drafts(hybrid: str) -> None:
    with pytest.raises(ValueError, match="recurrent layers") as refused:
        make_engine_config(make_demo_arguments(model=hybrid, speculative_config=NGRAM))
    assert str(refused.value) == RECURRENT_ON_CPU
    make_engine_config(make_demo_arguments(model=hybrid, speculative_config=None))


def test_check_says_so_before_the_start(hybrid: str) -> None:
    def look(platform: str, speculation: dict[str, Any] | None) -> bool:
        plan = EnginePlan(hybrid, speculative_config=speculation)
        found = preflight(plan, Machine(platform, 2, 16 * GIB), lambda: None)
        return RECURRENT_ON_CPU in found.obstacles

    assert look("cpu", NGRAM)
    assert not look("cpu", None)
    assert not look("cuda", NGRAM)


def test_the_reason_stands() -> None:
    """Look again when vLLM's kernel takes the accepted tokens."""
    assert "num_accepted_tokens" not in inspect.signature(causal_conv1d_update_cpu).parameters


@pytest.mark.parametrize(
    ("config", "recurrent"),
    [
        (HYBRID, True),
        ({"layer_types": ["linear_attention", "full_attention"]}, True),
        ({"layers_block_type": ["mamba", "attention"]}, True),
        ({"model_type": "mamba2"}, True),
        ({"model_type": "falcon_h1", "mamba_d_ssm": 256}, True),
        ({"layer_types": ["full_attention", "sliding_attention"]}, False),
        (json.loads((TARGET / "config.json").read_text()), False),
    ],
)
def test_recurrent_layers_are_found(config: dict[str, Any], recurrent: bool) -> None:
    assert is_recurrent(config) is recurrent
