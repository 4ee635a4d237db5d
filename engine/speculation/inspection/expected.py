"""The tensors vLLM's EAGLE 3 drafts have, with the shapes that follow from config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.speculation.inspection.draft import DecoderLayer, DraftConfig

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
