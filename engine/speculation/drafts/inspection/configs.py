"""The config.json of a target and of a draft as vLLM 0.32 reads them, and the expected tensors.

vLLM reads a draft's keys in these places (checked in its source): `fc_norm`, `norm_output`,
`norm_before_residual`, `draft_vocab_size`, `target_hidden_size` and `num_aux_hidden_states` at the
top level only; `norm_before_fc` first in `eagle_config`; the layers to *capture* first at the top
level, then in `eagle_config`; the number of layers that *sizes* fc in `eagle_config` only, except
for Qwen3-shaped drafts. A speculators file is converted first: seven keys come from its top level,
all others from its `transformer_layer_config`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from eaglegate.engine.speculation.drafts.inspection.speculators import (
    LAYER_IDS,
    convert_as_vllm,
    get_int,
    get_mapping,
    get_strings,
    is_speculators,
)

MAX_LEVELS = 4
TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """Config of a target. ``config`` is the text model's part of config.json. Missing facts are
    None."""

    config: Mapping[str, Any]
    path: str = ""
    architectures: tuple[str, ...] = ()
    """Architectures at the top level of config.json."""
    reads_images: bool = False
    """True if the model has an encoder of images."""

    @property
    def hidden_size(self) -> int | None:
        return get_int(self.config, "hidden_size")

    @property
    def num_layers(self) -> int | None:
        return get_int(self.config, "num_hidden_layers")

    @property
    def vocab_size(self) -> int | None:
        return get_int(self.config, "vocab_size")

    @property
    def max_positions(self) -> int | None:
        return get_int(self.config, "max_position_embeddings")


def read_target(config: Mapping[str, Any], path: str = "") -> TargetConfig:
    return TargetConfig(
        find_text_config(config), path, get_strings(config, "architectures"),
        reads_images="vision_config" in config,
    )  # fmt: skip


def find_text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the text model's part, which multimodal models keep one or two levels down."""
    for _ in range(MAX_LEVELS):
        parts = (config.get(name) for name in TEXT_PARTS)
        part = next((part for part in parts if isinstance(part, Mapping)), None)
        if part is None:
            break
        config = part
    return config


DEFAULT_AUX = 3


class DecoderLayer(StrEnum):
    """The kind of decoder layer that a draft is built from."""

    LLAMA = "Llama-shaped"
    QWEN3 = "Qwen3-shaped"
    MLA = "MLA"


ARCHITECTURES: Mapping[str, DecoderLayer] = {
    "PEagleDraftModel": DecoderLayer.LLAMA,
    "PeagleLlamaForCausalLM": DecoderLayer.LLAMA,
    "Eagle3LlamaForCausalLM": DecoderLayer.LLAMA,
    "LlamaForCausalLMEagle3": DecoderLayer.LLAMA,
    "Eagle3MiniMaxM2ForCausalLM": DecoderLayer.LLAMA,
    "Eagle3Qwen2_5vlForCausalLM": DecoderLayer.LLAMA,
    "Eagle3Qwen3vlForCausalLM": DecoderLayer.LLAMA,
    "Eagle3Qwen3ForCausalLM": DecoderLayer.QWEN3,
    "PeagleQwen3ForCausalLM": DecoderLayer.QWEN3,
    "Eagle3DeepseekV2ForCausalLM": DecoderLayer.MLA,
    "Eagle3DeepseekV3ForCausalLM": DecoderLayer.MLA,
}
"""Architectures of EAGLE 3 drafts that vLLM 0.32 implements."""
DEFAULT_POSITIONS = {"llama": 2048, "qwen3": 32768, "deepseek_v2": 2048}
DEFAULT_POSITIONS |= {"deepseek_v3": 4096, "kimi_k2": 4096}
"""Defaults of max_position_embeddings by model_type."""


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """Config of a draft. ``raw`` is the file, ``read`` is vLLM's conversion of it. The properties
    describe an EAGLE 3 draft."""

    raw: Mapping[str, Any]
    read: Mapping[str, Any]

    @property
    def speculators(self) -> bool:
        return is_speculators(self.raw)

    @property
    def architecture(self) -> str:
        """The model name that vLLM looks up for the method eagle3."""
        names = self.read.get("architectures")
        name = str(names[0]) if isinstance(names, list) and names else ""
        if not name or name.startswith(("Eagle3", "Peagle")) or name.endswith("Eagle3"):
            return name
        return name if name == "PEagleDraftModel" else f"Eagle3{name}"

    @property
    def shape(self) -> DecoderLayer | None:
        return ARCHITECTURES.get(self.architecture)

    @property
    def eagle_config(self) -> Mapping[str, Any]:
        return get_mapping(self.read, "eagle_config")

    def number(self, key: str) -> int | None:
        return get_int(self.read, key)

    def flag(self, key: str) -> bool:
        return bool(self.read.get(key, False))

    @property
    def hidden_size(self) -> int | None:
        return self.number("hidden_size")

    @property
    def target_hidden_size(self) -> int | None:
        """Width of one captured state, as vLLM reads it."""
        return self.number("target_hidden_size") or self.hidden_size

    @property
    def num_layers(self) -> int:
        return self.number("num_hidden_layers") or 1

    @property
    def num_heads(self) -> int | None:
        return self.number("num_attention_heads")

    @property
    def num_kv_heads(self) -> int | None:
        return self.number("num_key_value_heads") or self.num_heads

    @property
    def head_dim(self) -> int | None:
        dimension = self.number("head_dim")
        if dimension is not None or self.hidden_size is None or not self.num_heads:
            return dimension
        return self.hidden_size // self.num_heads

    @property
    def vocab_size(self) -> int | None:
        return self.number("vocab_size")

    @property
    def draft_vocab_size(self) -> int | None:
        return self.number("draft_vocab_size") or self.vocab_size

    @property
    def max_positions(self) -> int | None:
        default = DEFAULT_POSITIONS.get(str(self.read.get("model_type", "")))
        return self.number("max_position_embeddings") or default

    @property
    def uses_aux(self) -> bool:
        """False if the draft reads only the target's last hidden state, without fc."""
        return bool(self.eagle_config.get("use_aux_hidden_state", True))

    @property
    def fc_norm(self) -> bool:
        return self.flag("fc_norm")

    @property
    def norm_output(self) -> bool:
        return self.flag("norm_output")

    @property
    def norm_before_fc(self) -> bool:
        if self.shape is DecoderLayer.MLA:
            return False
        return bool(self.eagle_config.get("norm_before_fc", self.flag("norm_before_fc")))

    @property
    def quantized(self) -> bool:
        return bool(self.read.get("quantization_config"))

    @property
    def captured(self) -> Sequence[Any] | None:
        """The target layers whose states are captured; None for vLLM's default."""
        ids = self.read.get(LAYER_IDS) or self.eagle_config.get(LAYER_IDS)
        return ids if isinstance(ids, list) and ids else None

    def layers_of(self, target: TargetConfig | None) -> Sequence[Any] | None:
        """Return the captured layers, or vLLM's default if the target is known."""
        if self.captured is not None:
            return self.captured
        layers = target.num_layers if target else None
        return None if layers is None else [2, layers // 2, layers - 3]

    @property
    def num_aux(self) -> int:
        """Number of states for which vLLM builds fc."""
        keys = ("num_aux_layers",) if self.shape is DecoderLayer.QWEN3 else ()
        for key in (*keys, "num_aux_hidden_states"):
            if self.number(key) is not None:
                return self.number(key) or DEFAULT_AUX
        ids = self.eagle_config.get(LAYER_IDS)
        if self.shape is DecoderLayer.QWEN3:
            ids = self.read.get(LAYER_IDS) or ids
        return len(ids) if isinstance(ids, list) and ids else DEFAULT_AUX


def read_draft(config: Mapping[str, Any]) -> DraftConfig:
    return DraftConfig(config, convert_as_vllm(config))


MASK_KEYS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
"""Keys of the mask token that vLLM reads after ``dflash_config.mask_token_id``, in this order."""


def find_mask_token(config: Mapping[str, Any]) -> tuple[str, Any] | None:
    """Return the key from which vLLM takes the mask token, and its value; None if there is none."""
    dflash_config = get_mapping(config, "dflash_config")
    if "mask_token_id" in dflash_config:
        return "mask_token_id", dflash_config["mask_token_id"]
    if config.get("mask_token_id") is not None:
        return "mask_token_id", config["mask_token_id"]
    return next(((key, config[key]) for key in MASK_KEYS[1:] if key in config), None)


Dimension = int | None


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """Expected shape of a tensor. ``by`` names the config keys that determine it. Unknown sizes are
    None."""

    shape: tuple[Dimension, ...]
    by: str
    required: bool = True


def list_expected_tensors(draft: DraftConfig) -> dict[str, ExpectedTensor]:
    """Return the expected tensors by vLLM's names, with `layers.0.` in place of `midlayer.`."""
    hidden_size = draft.hidden_size
    tensors = {"norm.weight": ExpectedTensor((hidden_size,), "hidden_size")}
    tensors |= dict(expect_fc(draft))
    for index in range(draft.num_layers):
        tensors |= {f"layers.{index}.{name}": want for name, want in expect_layer(draft, index)}
    return tensors | expect_vocabulary(draft)


def expect_vocabulary(draft: DraftConfig) -> dict[str, ExpectedTensor]:
    """Return the tensors that the target's may replace."""
    table = (draft.vocab_size, draft.hidden_size), "vocab_size or hidden_size"
    head = (draft.draft_vocab_size, draft.hidden_size), "draft_vocab_size"
    return {
        "embed_tokens.weight": ExpectedTensor(*table, required=False),
        "lm_head.weight": ExpectedTensor(*head, required=False),
    }


def expect_fc(draft: DraftConfig) -> Iterator[tuple[str, ExpectedTensor]]:
    """Yield the tensors that turn captured states into the first hidden state."""
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
    hidden_size = draft.hidden_size
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.weight", ExpectedTensor((hidden_size,), "hidden_size")
    yield "hidden_norm.weight", ExpectedTensor((hidden_size,), "hidden_size", required=index == 0)
    yield from expect_mlp(draft)
    inputs = None if hidden_size is None else hidden_size * (2 if index == 0 else 1)
    attention = (
        expect_latent_attention if draft.shape is DecoderLayer.MLA else expect_grouped_attention
    )
    for name, want in attention(draft, inputs):
        yield f"self_attn.{name}", want


def expect_mlp(draft: DraftConfig) -> Iterator[tuple[str, ExpectedTensor]]:
    hidden_size, intermediate_size = draft.hidden_size, draft.number("intermediate_size")
    source = "intermediate_size"
    for name in ("gate_proj", "up_proj"):
        yield f"mlp.{name}.weight", ExpectedTensor((intermediate_size, hidden_size), source)
    yield "mlp.down_proj.weight", ExpectedTensor((hidden_size, intermediate_size), source)


def expect_grouped_attention(
    draft: DraftConfig, inputs: Dimension
) -> Iterator[tuple[str, ExpectedTensor]]:
    """Yield queries, keys and values over heads. The first layer's input is twice as wide, because
    it joins embedding and state."""
    queries, keys = (
        multiply(draft.num_heads, draft.head_dim),
        multiply(draft.num_kv_heads, draft.head_dim),
    )
    source = "num_attention_heads, num_key_value_heads or head_dim"
    yield "q_proj.weight", ExpectedTensor((queries, inputs), source)
    yield "k_proj.weight", ExpectedTensor((keys, inputs), source)
    yield "v_proj.weight", ExpectedTensor((keys, inputs), source)
    yield "o_proj.weight", ExpectedTensor((draft.hidden_size, queries), source)
    if draft.flag("attention_bias"):
        for name, size in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            yield f"{name}.bias", ExpectedTensor((size,), source)
        if draft.shape is not DecoderLayer.QWEN3:
            yield "o_proj.bias", ExpectedTensor((draft.hidden_size,), "hidden_size")
    if draft.shape is DecoderLayer.QWEN3:
        yield "q_norm.weight", ExpectedTensor((draft.head_dim,), "head_dim")
        yield "k_norm.weight", ExpectedTensor((draft.head_dim,), "head_dim")


def expect_latent_attention(
    draft: DraftConfig, inputs: Dimension
) -> Iterator[tuple[str, ExpectedTensor]]:
    """Yield the tensors of MLA, with low-rank projections of queries and keys."""
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    rank, nope_dim, rope_dim, value_dim = (draft.number(name) for name in names)
    heads, source = draft.num_heads, "the MLA sizes"
    queries = multiply(heads, add(nope_dim, rope_dim))
    query_rank = draft.number("q_lora_rank")
    if query_rank is None:
        yield "q_proj.weight", ExpectedTensor((queries, inputs), source)
    else:
        yield "q_a_proj.weight", ExpectedTensor((query_rank, inputs), source)
        yield "q_a_layernorm.weight", ExpectedTensor((query_rank,), source)
        yield "q_b_proj.weight", ExpectedTensor((queries, query_rank), source)
    yield "kv_a_proj_with_mqa.weight", ExpectedTensor((add(rank, rope_dim), inputs), source)
    yield "kv_a_layernorm.weight", ExpectedTensor((rank,), source)
    yield (
        "kv_b_proj.weight",
        ExpectedTensor((multiply(heads, add(nope_dim, value_dim)), rank), source),
    )
    yield "o_proj.weight", ExpectedTensor((draft.hidden_size, multiply(heads, value_dim)), source)


def multiply(size: Dimension, factor: Dimension) -> Dimension:
    return None if size is None or factor is None else size * factor


def add(size: Dimension, addend: Dimension) -> Dimension:
    return None if size is None or addend is None else size + addend


def is_allowed(name: str, layout: Mapping[str, ExpectedTensor], draft: DraftConfig) -> bool:
    """Return True if vLLM's loader accepts the tensor, or drops it without complaint."""
    if name in layout or (name.startswith("input_norm.") and draft.shape is not DecoderLayer.MLA):
        return True
    if not draft.uses_aux and name.startswith("fc."):
        return True
    if ".mlp." in name and name.endswith(".bias"):
        return draft.flag("mlp_bias") and name.removesuffix("bias") + "weight" in layout
    return draft.quantized and f"{name.rpartition('.')[0]}.weight" in layout
