"""Detection of targets with recurrent layers (Mamba, gated delta nets, short convolutions)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RECURRENT_ON_CPU = (
    "a model with recurrent layers writes other text with drafts, or dies, on vLLM's CPU backend: "
    "its kernels do not roll the state back to the accepted tokens; leave --speculative-config out"
)
SIZES = (
    "ssm_state_size",
    "mamba_d_state",
    "mamba_d_ssm",
    "linear_num_value_heads",
    "linear_conv_kernel_dim",
    "conv_L_cache",
)
"""Keys that only models with recurrent layers have."""
LAYERS = frozenset({"linear_attention", "mamba", "mamba2", "conv", "recurrent"})
MODEL_TYPES = frozenset({"mamba", "mamba2", "falcon_mamba"})


def is_recurrent(config: Mapping[str, Any]) -> bool:
    """Return True if some layers keep a state of fixed size instead of keys and values."""
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if isinstance(kinds, list):
        return not LAYERS.isdisjoint(map(str, kinds))
    return config.get("model_type") in MODEL_TYPES or any(config.get(key) for key in SIZES)
