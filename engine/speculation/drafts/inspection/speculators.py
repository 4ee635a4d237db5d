"""The speculators format: the types that vLLM loads, and vLLM's conversion of each to a flat
config.

``convert_as_vllm`` follows vLLM 0.32 (``vllm/transformers_utils/configs/speculators/algos.py``); a
test compares the two. The ``get_`` functions read single values of any config.json leniently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

TYPE = "speculators_model_type"
PART = "speculators_config"
LAYER_PART = "transformer_layer_config"
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
BLOCK_LAYER_IDS = "aux_hidden_state_layer_ids"
FROM_TOP = {
    "eagle3": ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"),
    "peagle": ("norm_before_residual", "norm_before_fc"),
}
"""Keys that the conversion of an EAGLE draft takes from the top level, absent or not."""
SELECTOR_KEYS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
DSPARK_KEYS = (
    "draft_vocab_size", "target_hidden_size", "mask_token_id", "markov_rank", "markov_head_type",
    "block_size", "enable_confidence_head", "confidence_head_with_markov", "use_aux_hidden_state",
)  # fmt: skip
DSPARK_ARCHITECTURES = ("Qwen3DSparkModel", "Qwen3OmniDSparkModel")
EAGLE_ARCHITECTURES = {
    ("eagle3", "llama"): "Eagle3LlamaForCausalLM",
    ("eagle3", "qwen3"): "Eagle3Qwen3ForCausalLM",
    ("peagle", "llama"): "PeagleLlamaForCausalLM",
    ("peagle", "qwen3"): "PeagleQwen3ForCausalLM",
}
METHOD_OF_TYPE: Mapping[str, str] = {
    "eagle3": "eagle3", "peagle": "eagle3", "dflash": "dflash", "dflash2": "dflash",
    "dspark": "dspark",
}  # fmt: skip
"""vLLM's method for each type that vLLM 0.32 and 0.33 load."""
NOT_LOADED: Mapping[str, str] = {
    "mtp": "merge it into its target with `speculators stitch-mtp` and serve that target with "
    '"method": "mtp"; vLLM 0.32 and 0.33 have no loader for the type itself',
    "xpress": "vLLM 0.33 runs XPress drafts in their plain format (architecture "
    "'Qwen3XPressModel'); neither 0.32 nor 0.33 loads their speculators format",
}
"""Advice for each type of speculators 0.9 that vLLM does not load."""


def is_speculators(source: Mapping[str, Any]) -> bool:
    return TYPE in source or PART in source


def convert_as_vllm(source: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the flat config after vLLM's conversion of the speculators format."""
    convert = CONVERSIONS.get(str(source.get(TYPE)))
    return {**get_mapping(source, LAYER_PART), **convert(source)} if convert else source


def convert_eagle(source: Mapping[str, Any]) -> dict[str, Any]:
    kind = source[TYPE]
    config = {"draft_vocab_size": source.get("draft_vocab_size")}
    config |= {key: source.get(key, False) for key in FROM_TOP[kind]}
    config["norm_before_residual"] = source.get("norm_before_residual", kind == "eagle3")
    config |= list_given(source, "target_hidden_size")
    if source.get(LAYER_IDS):
        config[LAYER_IDS] = source[LAYER_IDS]
    if kind == "peagle":
        config["pard_token"] = source.get("mask_token_id")
    model_type = get_mapping(source, LAYER_PART).get("model_type", "llama")
    shape = EAGLE_ARCHITECTURES.get((kind, str(model_type)))
    return config | {"architectures": [shape] if shape else []}


def convert_dflash(source: Mapping[str, Any]) -> dict[str, Any]:
    ids = source.get(BLOCK_LAYER_IDS)
    dflash_config: dict[str, Any] = {
        "mask_token_id": source.get("mask_token_id"),
        "target_layer_ids": count_from_zero(ids),
        "sample_from_anchor": source.get("sample_from_anchor", False),
        "causal": not source.get("sliding_window_non_causal", True),
    }
    config = {"draft_vocab_size": source.get("draft_vocab_size")}
    config |= list_given(source, "target_hidden_size")
    return config | {
        "architectures": ["DFlashDraftModel"],
        LAYER_IDS: ids,
        "dflash_config": dflash_config,
    }


def convert_dflash2(source: Mapping[str, Any]) -> dict[str, Any]:
    config = convert_dflash(source)
    config["dflash_config"] |= list_given(source, *SELECTOR_KEYS)
    return config | {"architectures": ["DFlash2DraftModel"]}


def convert_dspark(source: Mapping[str, Any]) -> dict[str, Any]:
    architectures = [
        name for name in get_strings(source, "architectures") if name in DSPARK_ARCHITECTURES
    ]
    samples_anchor, ids = source.get("sample_from_anchor", False), source.get(BLOCK_LAYER_IDS)
    return {
        "architectures": architectures or [DSPARK_ARCHITECTURES[0]],
        "sample_from_anchor": samples_anchor,
        "dspark_bonus_anchor": not samples_anchor,
        LAYER_IDS: ids,
        "target_layer_ids": count_from_zero(ids),
        **list_given(source, *DSPARK_KEYS),
    }


def list_given(source: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: source[key] for key in keys if source.get(key) is not None}


def count_from_zero(ids: Any) -> list[Any] | None:
    """Return DFlash's own ids, which count layers from 0. The speculators format counts layer
    outputs."""
    if not isinstance(ids, list):
        return None
    return [layer_id - 1 if isinstance(layer_id, int) else layer_id for layer_id in ids]


CONVERSIONS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "eagle3": convert_eagle,
    "peagle": convert_eagle,
    "dflash": convert_dflash,
    "dflash2": convert_dflash2,
    "dspark": convert_dspark,
}


def get_proposal(source: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first proposal method, the only one that vLLM reads."""
    methods = get_mapping(source, PART).get("proposal_methods")
    proposal = methods[0] if isinstance(methods, list) and methods else None
    return proposal if isinstance(proposal, Mapping) else {}


def get_proposed_depth(source: Mapping[str, Any]) -> int | None:
    return get_int(get_proposal(source), "speculative_tokens")


def get_verifier(source: Mapping[str, Any]) -> Mapping[str, Any]:
    return get_mapping(get_mapping(source, PART), "verifier")


def get_int(config: Mapping[str, Any], key: str) -> int | None:
    """Return an integer; None for anything else, including true and false."""
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def get_mapping(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


def get_strings(config: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the strings in a list; empty for anything else."""
    value = config.get(key)
    return (
        tuple(entry for entry in value if isinstance(entry, str)) if isinstance(value, list) else ()
    )
