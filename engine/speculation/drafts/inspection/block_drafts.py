"""Block drafts (DFlash, DFlash2, DSpark): the parts of config.json that vLLM 0.32 reads, and the
tensors that it needs.

A block draft predicts a whole block of mask tokens in one pass, from hidden states of the target's
layers. The sources in vLLM, under ``vllm/model_executor/models/``, are ``qwen3_dflash``,
``qwen3_dflash2`` and ``qwen3_dspark``, and its ``get_eagle3_aux_layers_from_config``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eaglegate.engine.speculation.drafts.inspection.configs import (
    Dimension,
    DraftConfig,
    ExpectedTensor,
    add,
    expect_grouped_attention,
    expect_mlp,
    expect_vocabulary,
    multiply,
)
from eaglegate.engine.speculation.drafts.inspection.speculators import (
    BLOCK_LAYER_IDS,
    LAYER_IDS,
    get_int,
    get_mapping,
    get_strings,
)

DFLASH2 = "DFlash2DraftModel"
DFLASH_ARCHITECTURES = frozenset(
    {
        "DFlashDraftModel", DFLASH2, "LiLiCorrDraftModel", "MuseGlimmerAssistantModel",
        "DFlashMuseGlimmerAssistantModel", "DFlashLagunaForCausalLM",
    }
)  # fmt: skip
DSPARK_STANDALONE = frozenset(
    {"Qwen3DSparkModel", "Qwen3OmniDSparkModel", "Gemma4DSparkModel", "K3DSparkModel"}
)
"""DSpark drafts with their own checkpoint. The others ship inside their target."""
LISTED = frozenset({"DFlashDraftModel", DFLASH2, "Qwen3DSparkModel", "Qwen3OmniDSparkModel"})
"""Architectures whose tensors this module lists. All of them have Qwen3's layers."""


@dataclass(frozen=True, slots=True)
class CapturedLayers:
    """The target layers whose states a draft reads, with their ``ids`` as given under ``key``.

    ``first`` is the number that ``key`` uses for the output of the target's first layer.
    """

    key: str
    ids: list[Any]
    first: int


@dataclass(frozen=True, slots=True)
class BlockDraft:
    """Config.json of a block draft under the method ``dflash`` or ``dspark``."""

    draft: DraftConfig
    method: str

    @property
    def read(self) -> Mapping[str, Any]:
        return self.draft.read

    @property
    def inner(self) -> Mapping[str, Any]:
        return get_mapping(self.read, "dflash_config")

    @property
    def architecture(self) -> str:
        """The model name that vLLM looks up."""
        name = next(iter(get_strings(self.read, "architectures")), "")
        if self.method == "dspark":
            is_renamed = name == "DSparkDraftModel" and self.read.get("model_type") == "qwen3"
            return "Qwen3DSparkModel" if is_renamed else name
        if not name or name.startswith("DFlash") or name.endswith("DFlash"):
            return name
        return name if name in DFLASH_ARCHITECTURES else f"DFlash{name}"

    @property
    def in_target(self) -> bool:
        """True if vLLM takes the draft for the DSpark stages of a DeepSeek target."""
        return self.method == "dspark" and self.architecture not in DSPARK_STANDALONE

    @property
    def listed(self) -> bool:
        return self.architecture in LISTED

    @property
    def uses_aux(self) -> bool:
        config = {**self.draft.eagle_config, **self.inner}
        default = self.read.get("use_aux_hidden_state", True)
        return bool(config.get("use_aux_hidden_state", default))

    @property
    def captured(self) -> CapturedLayers | None:
        """The captured layers; None if config.json names no layers."""
        for key, part, base in (
            (LAYER_IDS, self.read, 1),
            ("target_layer_ids", self.inner, 0),
            ("dspark_target_layer_ids", self.read, 0),
            ("target_layer_ids", self.read, 0),
            ("layer_ids", self.inner, 1),
            ("layer_ids", self.draft.eagle_config, 1),
        ):
            ids = part.get(key)
            if isinstance(ids, list) and ids:
                is_speculators_key = key == LAYER_IDS and self.draft.speculators
                return CapturedLayers(BLOCK_LAYER_IDS if is_speculators_key else key, ids, base)
        return None

    @property
    def block_size(self) -> Any:
        """Block size as given. vLLM reads it only for DSpark, but the training fixed it for all
        drafts."""
        size = self.draft.raw.get("block_size") if self.draft.speculators else None
        keys = ("block_size", "dspark_block_size")
        sizes = (part.get(key) for key in keys for part in (self.read, self.inner))
        return (
            size
            if size is not None
            else next((value for value in sizes if value is not None), None)
        )

    @property
    def samples_anchor(self) -> bool:
        """True if the block's first position predicts a token, False if it holds the last accepted
        one."""
        if self.method == "dspark":
            return bool(self.read.get("sample_from_anchor", True))
        return bool(self.inner.get("sample_from_anchor", False))

    @property
    def capacity(self) -> int | None:
        """Number of tokens of one pass that the training covered; None if unknown."""
        size = self.block_size
        if not isinstance(size, int) or isinstance(size, bool):
            return None
        return size if self.samples_anchor else size - 1

    @property
    def markov_rank(self) -> int | None:
        return self.draft.number("markov_rank")


def list_block_tensors(block: BlockDraft) -> dict[str, ExpectedTensor]:
    """Return the expected tensors, without the prefix ``model.``; for ``listed`` architectures
    only."""
    draft, hidden_size = block.draft, block.draft.hidden_size
    norm = ExpectedTensor((hidden_size,), "hidden_size")
    tensors = {"norm.weight": norm, "hidden_norm.weight": norm}
    if block.uses_aux:
        width = multiply(draft.target_hidden_size, count_states(block))
        source = "the captured layers or target_hidden_size"
        tensors["fc.weight"] = ExpectedTensor((hidden_size, width), source)
    for index in range(draft.num_layers):
        tensors |= {f"layers.{index}.{name}": want for name, want in expect_block_layer(block)}
    tensors |= dict(expect_heads(block))
    return tensors | expect_vocabulary(draft)


def count_states(block: BlockDraft) -> int:
    """Count the states for which vLLM builds fc: the named layers, else as many as the draft has
    layers."""
    captured_layers = block.captured
    return len(captured_layers.ids) if captured_layers else block.draft.num_layers


def expect_block_layer(block: BlockDraft) -> Iterator[tuple[str, ExpectedTensor]]:
    draft = block.draft
    hidden_size = draft.hidden_size
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.weight", ExpectedTensor((hidden_size,), "hidden_size")
    yield from expect_mlp(draft)
    for name, want in expect_grouped_attention(draft, hidden_size):
        yield f"self_attn.{name}", want
    for name in ("q_norm", "k_norm"):
        yield f"self_attn.{name}.weight", ExpectedTensor((draft.head_dim,), "head_dim")
    if draft.flag("attention_bias"):
        yield "self_attn.o_proj.bias", ExpectedTensor((hidden_size,), "hidden_size")
    if has_sinks(block):
        yield "self_attn.attention_sink_bias", ExpectedTensor((draft.num_heads,), "the heads")
    if block.architecture == DFLASH2:
        yield from expect_convolutions(block)


def has_sinks(block: BlockDraft) -> bool:
    default = block.read.get("add_swa_attention_sink_bias", False)
    return bool(block.inner.get("attention_sink_bias", default))


def expect_convolutions(block: BlockDraft) -> Iterator[tuple[str, ExpectedTensor]]:
    hidden_size = block.draft.hidden_size
    taps, size = get_int(block.inner, "conv_kernel_size"), get_int(block.inner, "conv_group_size")
    groups = hidden_size // size if hidden_size is not None and size else None
    source = "conv_kernel_size, conv_group_size or hidden_size"
    for name in ("attention_conv", "mlp_conv"):
        yield f"{name}.base_kernel", ExpectedTensor((2, taps, hidden_size), source)
        rows = multiply(multiply(2, taps), groups)
        yield f"{name}.kernel_projection.weight", ExpectedTensor((rows, hidden_size), source)


def expect_heads(block: BlockDraft) -> Iterator[tuple[str, ExpectedTensor]]:
    """Yield the tensors of DFlash2's candidate selector, and of DSpark's Markov and confidence
    heads."""
    draft, hidden_size, rank = block.draft, block.draft.hidden_size, block.markov_rank
    if block.architecture == DFLASH2:
        selector_rank = get_int(block.inner, "selector_rank")
        book = ExpectedTensor((draft.vocab_size, selector_rank), "vocab_size or selector_rank")
        yield "candidate_selector.predecessor_codebook", book
        yield "candidate_selector.successor_codebook", book
        projection = ExpectedTensor((selector_rank, hidden_size), "selector_rank or hidden_size")
        yield "candidate_selector.hidden_projection.weight", projection
    if block.method != "dspark":
        return
    source = "vocab_size or markov_rank"
    yield "markov_head.markov_w1.weight", ExpectedTensor((draft.vocab_size, rank), source)
    source = "draft_vocab_size or markov_rank"
    yield "markov_head.markov_w2.weight", ExpectedTensor((draft.draft_vocab_size, rank), source)
    confidence_inputs: Dimension = (
        add(hidden_size, rank) if draft.flag("confidence_head_with_markov") else hidden_size
    )
    confidence_inputs = confidence_inputs if draft.flag("enable_confidence_head") else None
    source = "hidden_size, markov_rank or confidence_head_with_markov"
    for name, shape in (("weight", (1, confidence_inputs)), ("bias", (1,))):
        yield f"confidence_head.proj.{name}", ExpectedTensor(shape, source, required=False)
