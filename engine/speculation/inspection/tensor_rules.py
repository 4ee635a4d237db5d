"""Rules about the tensors of an EAGLE 3 draft: names, shapes, types and small values.

The expected tensors and their shapes follow from config.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np

from engine.speculation.inspection.case import (
    InspectionCase,
    InspectionRule,
    Violation,
    error,
    note,
)
from engine.speculation.inspection.configs import DecoderLayer, DraftConfig
from engine.speculation.inspection.weights import TensorEntry, read_array

Dimension = int | None


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """``by`` names the config keys the shape comes from. Unknown sizes are None."""

    shape: tuple[Dimension, ...]
    by: str
    required: bool = True


def list_expected_tensors(draft: DraftConfig) -> dict[str, ExpectedTensor]:
    """Names as vLLM sees them after `midlayer.` has become `layers.0.`."""
    hidden = draft.hidden_size
    found = {"norm.weight": ExpectedTensor((hidden,), "hidden_size")}
    found |= dict(expect_fc(draft))
    for index in range(draft.num_layers):
        found |= {f"layers.{index}.{name}": want for name, want in expect_layer(draft, index)}
    table = ExpectedTensor((draft.vocab_size, hidden), "vocab_size or hidden_size", required=False)
    head = ExpectedTensor((draft.draft_vocab_size, hidden), "draft_vocab_size", required=False)
    return found | {"embed_tokens.weight": table, "lm_head.weight": head}


def expect_fc(draft: DraftConfig) -> Iterator[tuple[str, ExpectedTensor]]:
    """What turns captured states into the first hidden state."""
    width, count = draft.target_hidden_size, draft.num_aux
    total = width * count if width is not None else None
    if draft.uses_aux:
        yield "fc.weight", ExpectedTensor((draft.hidden_size, total), "target_hidden_size")
    if draft.fc_norm:
        for index in range(count):
            yield f"fc_norm.{index}.weight", ExpectedTensor((width,), "target_hidden_size")
    if draft.norm_before_fc:
        yield "input_norm.weight", ExpectedTensor((total,), "target_hidden_size")


def expect_layer(draft: DraftConfig, index: int) -> Iterator[tuple[str, ExpectedTensor]]:
    hidden, wide = draft.hidden_size, draft.number("intermediate_size")
    norms = ["input_layernorm", "post_attention_layernorm"]
    for name in norms:
        yield f"{name}.weight", ExpectedTensor((hidden,), "hidden_size")
    yield "hidden_norm.weight", ExpectedTensor((hidden,), "hidden_size", required=index == 0)
    for name in ("gate_proj", "up_proj"):
        yield f"mlp.{name}.weight", ExpectedTensor((wide, hidden), "intermediate_size")
    yield "mlp.down_proj.weight", ExpectedTensor((hidden, wide), "intermediate_size")
    taken = None if hidden is None else hidden * (2 if index == 0 else 1)
    attention = (
        expect_latent_attention if draft.shape is DecoderLayer.MLA else expect_grouped_attention
    )
    for name, want in attention(draft, taken):
        yield f"self_attn.{name}", want


def expect_grouped_attention(
    draft: DraftConfig, taken: Dimension
) -> Iterator[tuple[str, ExpectedTensor]]:
    """Query, key and value over heads; the first layer takes embedding and state, twice as wide."""
    queries, keys = (
        multiply(draft.num_heads, draft.head_dim),
        multiply(draft.num_kv_heads, draft.head_dim),
    )
    by = "num_attention_heads, num_key_value_heads or head_dim"
    yield "q_proj.weight", ExpectedTensor((queries, taken), by)
    yield "k_proj.weight", ExpectedTensor((keys, taken), by)
    yield "v_proj.weight", ExpectedTensor((keys, taken), by)
    yield "o_proj.weight", ExpectedTensor((draft.hidden_size, queries), by)
    if draft.flag("attention_bias"):
        for name, size in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            yield f"{name}.bias", ExpectedTensor((size,), by)
        if draft.shape is not DecoderLayer.QWEN3:
            yield "o_proj.bias", ExpectedTensor((draft.hidden_size,), "hidden_size")
    if draft.shape is DecoderLayer.QWEN3:
        yield "q_norm.weight", ExpectedTensor((draft.head_dim,), "head_dim")
        yield "k_norm.weight", ExpectedTensor((draft.head_dim,), "head_dim")


def expect_latent_attention(
    draft: DraftConfig, taken: Dimension
) -> Iterator[tuple[str, ExpectedTensor]]:
    """MLA: queries and keys through low-rank projections."""
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    rank, plain, turned, value = (draft.number(name) for name in names)
    heads, by = draft.num_heads, "the MLA sizes"
    queries = multiply(heads, add(plain, turned))
    low = draft.number("q_lora_rank")
    if low is None:
        yield "q_proj.weight", ExpectedTensor((queries, taken), by)
    else:
        yield "q_a_proj.weight", ExpectedTensor((low, taken), by)
        yield "q_a_layernorm.weight", ExpectedTensor((low,), by)
        yield "q_b_proj.weight", ExpectedTensor((queries, low), by)
    yield "kv_a_proj_with_mqa.weight", ExpectedTensor((add(rank, turned), taken), by)
    yield "kv_a_layernorm.weight", ExpectedTensor((rank,), by)
    yield "kv_b_proj.weight", ExpectedTensor((multiply(heads, add(plain, value)), rank), by)
    yield "o_proj.weight", ExpectedTensor((draft.hidden_size, multiply(heads, value)), by)


def multiply(left: Dimension, right: Dimension) -> Dimension:
    return None if left is None or right is None else left * right


def add(left: Dimension, right: Dimension) -> Dimension:
    return None if left is None or right is None else left + right


def is_allowed(name: str, wanted: Mapping[str, ExpectedTensor], draft: DraftConfig) -> bool:
    """Whether vLLM's loader takes or drops the tensor without complaint."""
    if name in wanted or (name.startswith("input_norm.") and draft.shape is not DecoderLayer.MLA):
        return True
    if not draft.uses_aux and name.startswith("fc."):
        return True
    if ".mlp." in name and name.endswith(".bias"):
        return draft.flag("mlp_bias") and name.removesuffix("bias") + "weight" in wanted
    return draft.quantized and f"{name.rpartition('.')[0]}.weight" in wanted


SHOWN = 3
SMALL_BYTES = 262_144
FLOATS = ("F16", "BF16", "F32", "F64")


def map_vllm_names(tensors: Mapping[str, TensorEntry]) -> dict[str, str]:
    """vLLM's name of each tensor -> its name on disk; those it skips are left out."""
    return {
        re.sub(r"midlayer\.", "layers.0.", name, count=1): name
        for name in tensors
        if not any(mark in name for mark in ("t2d", "d2t", "mask_hidden", "rotary_emb."))
    }


def format_names(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def check_prefix(case: InspectionCase) -> Iterator[Violation]:
    prefixed = [name for name in case.tensors if name.startswith("model.")]
    if prefixed:
        yield error(
            f"{len(prefixed)} tensors carry the prefix 'model.' ({prefixed[0]}), "
            "which vLLM adds itself",
            "strip it: export for vLLM",
        )


def check_unknown_tensors(case: InspectionCase) -> Iterator[Violation]:
    wanted = list_expected_tensors(case.draft)
    here = map_vllm_names(case.tensors)
    strange = [
        name
        for name in sorted(here)
        if not name.startswith("model.") and not is_allowed(name, wanted, case.draft)
    ]
    if not strange:
        return
    absent = [name for name in wanted if name not in here]
    near = get_close_matches(strange[0], absent, 1, 0.75)
    yield error(
        f"vLLM's draft has no {format_names([here[name] for name in strange])}",
        advise_unknown(strange[0], near),
    )


def advise_unknown(name: str, near: list[str]) -> str:
    if name.startswith("fc_norm."):
        return 'add "fc_norm": true at the top level of config.json'
    if ".q_norm." in name or ".k_norm." in name:
        return "a Qwen3-shaped layer: use the architecture 'Eagle3Qwen3ForCausalLM'"
    if name.endswith(".bias"):
        return "write attention_bias (or mlp_bias) true, or drop the biases"
    if re.match(r"layers\.\d+\.", name):
        return "raise num_hidden_layers to the layers there are, or drop them"
    return f"did you mean {near[0]!r}?" if near else "drop it, or export the draft again"


def check_missing_tensors(case: InspectionCase) -> Iterator[Violation]:
    if case.draft.quantized or any(name.startswith("model.") for name in case.tensors):
        return
    here = map_vllm_names(case.tensors)
    wanted = list_expected_tensors(case.draft)
    absent = [name for name, want in wanted.items() if want.required and name not in here]
    norms = [name for name in absent if name.startswith("fc_norm.")]
    if norms and len(norms) == case.draft.num_aux:
        yield error(
            '"fc_norm" is true and the file has no fc_norm tensors; vLLM leaves them at one',
            'set "fc_norm" to false, or export the draft again',
        )
        absent = [name for name in absent if name not in norms]
    if absent:
        yield error(
            f"missing: {format_names(absent)}; vLLM starts with whatever the memory holds",
            "export the draft again, complete",
        )


def check_shapes(case: InspectionCase) -> Iterator[Violation]:
    if case.draft.quantized:
        return
    here = map_vllm_names(case.tensors)
    for name, want in list_expected_tensors(case.draft).items():
        if name not in here or name == "fc.weight" or None in want.shape:
            continue
        shape = case.tensors[here[name]].shape
        if shape != want.shape:
            yield error(
                f"{here[name]} is {list(shape)}, by config.json it would be {list(want.shape)}",
                f"correct {want.by} in config.json, or export the draft again",
            )


def check_fc_rows(case: InspectionCase) -> Iterator[Violation]:
    shape, rows = case.shape_of("fc.weight"), case.draft.hidden_size
    if shape and rows is not None and shape[0] != rows and not case.draft.quantized:
        yield error(f"fc.weight has {shape[0]} rows for hidden size {rows}", "correct hidden_size")


def check_input_norm(case: InspectionCase) -> Iterator[Violation]:
    if "input_norm.weight" in case.tensors and not case.draft.norm_before_fc:
        yield error(
            "the file has input_norm.weight and 'norm_before_fc' is off: vLLM drops the tensor",
            'add "norm_before_fc": true',
        )


def check_parallel_hidden(case: InspectionCase) -> Iterator[Violation]:
    wanted = case.settings.get("parallel_drafting") or (
        case.draft.raw.get("speculators_model_type") == "peagle"
    )
    there = any("mask_hidden" in name for name in case.tensors)
    if wanted and not there:
        yield error(
            "parallel drafting needs the tensor mask_hidden", "set parallel_drafting to false"
        )


def check_quantised(case: InspectionCase) -> Iterator[Violation]:
    if case.draft.quantized:
        yield note(
            "the draft is quantised: its shapes, and whether tensors are missing, were not checked",
            "watch acceptance, or use the draft as it was trained",
        )


def check_finite(case: InspectionCase) -> Iterator[Violation]:
    """Norms and biases are small enough to look at; a diverged training shows there."""
    for name, tensor in case.tensors.items():
        if len(tensor.shape) != 1 or tensor.dtype not in FLOATS or tensor.num_bytes > SMALL_BYTES:
            continue
        values = read_array(tensor)
        if not np.isfinite(values).all():
            yield error(f"{name} holds NaN or infinity", "take an earlier training checkpoint")
        elif "norm" in name and values.size and not values.any():
            yield error(f"{name} is all zeros", "export the draft again")


RULES = (
    InspectionRule("tensor-prefix", "names carry no 'model.'", check_prefix),
    InspectionRule("tensor-unknown", "every tensor is one of vLLM's draft", check_unknown_tensors),
    InspectionRule("tensor-missing", "no tensor is missing", check_missing_tensors),
    InspectionRule("tensor-shape", "shapes follow from config.json", check_shapes),
    InspectionRule("fc-rows", "fc gives the draft's hidden size", check_fc_rows),
    InspectionRule("input-norm", "input_norm comes with its flag", check_input_norm),
    InspectionRule("parallel-hidden", "parallel drafting has its mask", check_parallel_hidden),
    InspectionRule("tensor-quantised", "tensors are as trained", check_quantised),
    InspectionRule("tensor-finite", "norms are finite and not zero", check_finite),
)
