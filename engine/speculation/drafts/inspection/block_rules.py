"""Rules about block drafts: DFlash, DFlash2 and DSpark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from eaglegate.engine.speculation.drafts.inspection import config_rules, tensor_rules
from eaglegate.engine.speculation.drafts.inspection.block_drafts import (
    DFLASH2,
    DFLASH_ARCHITECTURES,
    BlockDraft,
    CapturedLayers,
    list_block_tensors,
)
from eaglegate.engine.speculation.drafts.inspection.case import (
    InspectionCase,
    RuleCheck,
    Severity,
    Violation,
    error,
    warning,
)
from eaglegate.engine.speculation.drafts.inspection.configs import ExpectedTensor
from eaglegate.engine.speculation.drafts.inspection.general_rules import check_mask_id
from eaglegate.engine.speculation.drafts.inspection.speculators import (
    BLOCK_LAYER_IDS,
    get_int,
    get_proposed_depth,
)
from eaglegate.engine.speculation.drafts.inspection.tensor_rules import TensorLayout

UNDEFAULTED = ("num_key_value_heads", "rms_norm_eps", "hidden_act", "max_position_embeddings")
"""Keys without a default in the speculators format, because vLLM reads them from a bare config."""
LAYER_TYPES = ("full_attention", "sliding_attention")
OWN = "use the draft made for this target"


def check_block_architecture(case: InspectionCase) -> Iterator[Violation]:
    name = BlockDraft(case.draft, case.method).architecture
    if case.method == "dflash" and name not in DFLASH_ARCHITECTURES:
        matches = get_close_matches(name, DFLASH_ARCHITECTURES, 1)
        yield error(
            f"architectures is {case.draft.read.get('architectures')!r}, for which vLLM has no "
            "DFlash draft",
            f"did you mean {matches[0] if matches else 'DFlashDraftModel'!r}?",
        )


def check_block_sizes(case: InspectionCase) -> Iterator[Violation]:
    draft = case.draft
    keys = config_rules.SIZES + (UNDEFAULTED if draft.speculators else ())
    absent_keys = [key for key in keys if draft.read.get(key) is None]
    if absent_keys:
        section = "transformer_layer_config" if draft.speculators else "config.json"
        yield error(
            f"{section} gives no {', '.join(absent_keys)}",
            "write the values the draft was trained with",
        )
    invalid_keys = [
        key
        for key in config_rules.SIZES
        if draft.read.get(key) is not None and not draft.number(key)
    ]
    invalid_keys += [key for key in config_rules.SIZES if (draft.number(key) or 0) < 0]
    for key in invalid_keys:
        yield error(f"{key} is {draft.read.get(key)!r}", "give a whole number of at least 1")


def check_block_layers(case: InspectionCase) -> Iterator[Violation]:
    block = BlockDraft(case.draft, case.method)
    if not block.uses_aux:
        return
    captured_layers = block.captured
    if captured_layers is None:
        key = BLOCK_LAYER_IDS if case.draft.speculators else "dflash_config.target_layer_ids"
        yield error(
            f"config.json names no layers of the target to read ({key})",
            "write the ids the draft was trained with",
        )
        return
    yield from check_ids(captured_layers, case.target.num_layers if case.target else None)


def check_ids(captured_layers: CapturedLayers, layers: int | None) -> Iterator[Violation]:
    max_id = None if layers is None else layers - 1 + captured_layers.first
    ids = captured_layers.ids
    strays = [
        layer_id for layer_id in ids if not isinstance(layer_id, int) or isinstance(layer_id, bool)
    ]
    if strays:
        yield error(f"{captured_layers.key} holds {strays[0]!r}", "give whole numbers")
        return
    for layer_id in ids:
        if layer_id < 0 or (max_id is not None and layer_id > max_id):
            yield error(
                f"{captured_layers.key} holds {layer_id}; this target has 0 to {max_id}",
                f"{OWN}, or its true ids",
            )
            return
    if len(set(ids)) < len(ids):
        yield error(
            f"{captured_layers.key} {ids} repeats a layer; vLLM hands each out once",
            "give each layer once",
        )
    elif ids != sorted(ids):
        yield warning(
            f"{captured_layers.key} {ids} are not ascending; "
            "vLLM hands the states out in layer order",
            "sort the ids if it was trained so, else permute fc's columns",
        )


def check_block_width(case: InspectionCase) -> Iterator[Violation]:
    return config_rules.compare_widths(case, BlockDraft(case.draft, case.method).uses_aux)


def check_block_size(case: InspectionCase) -> Iterator[Violation]:
    """Check the depth. The training covers K tokens, and each position of the block is one of
    them."""
    block = BlockDraft(case.draft, case.method)
    size, limit = block.block_size, block.capacity
    if size is not None and (limit is None or limit < 1):
        yield error(f"block_size is {size!r}", "write the block size the draft was trained with")
        return
    depth = get_int(case.settings, "num_speculative_tokens")
    if depth is None and case.method == "dspark" and size is None:
        yield error(
            "neither num_speculative_tokens nor block_size is given",
            "write the block size the draft was trained with",
        )
    if limit is None:
        return
    if depth is not None and depth > limit:
        yield error(
            f"num_speculative_tokens is {depth}; a block of {size} was trained for {limit}",
            f"give at most {limit}",
        )
        return
    proposal = get_proposed_depth(case.draft.raw)
    if proposal is not None and proposal > limit:
        yield warning(
            f"speculators_config proposes {proposal} tokens; a block of {size} was trained for "
            f"{limit}",
            f'write "speculative_tokens": {limit}',
        )


def check_anchor(case: InspectionCase) -> Iterator[Violation]:
    block = BlockDraft(case.draft, case.method)
    if case.method == "dflash" and block.samples_anchor:
        yield error(
            "sample_from_anchor is true, which vLLM's DFlash does not do",
            "train it with false, or as DSpark",
        )
    is_unsaid = case.draft.speculators and "sample_from_anchor" not in case.draft.raw
    if case.method == "dspark" and is_unsaid:
        yield warning(
            "'sample_from_anchor' is absent: vLLM takes false, the speculators library true",
            "write the value it was trained with",
        )


def check_block_attention(case: InspectionCase) -> Iterator[Violation]:
    block = BlockDraft(case.draft, case.method)
    types = block.read.get("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) < case.draft.num_layers:
            yield error(
                f"layer_types {types!r} does not cover {case.draft.num_layers} layers",
                "give one type a layer",
            )
            return
        strays = [kind for kind in types if kind not in LAYER_TYPES]
        if strays:
            yield error(f"layer_types holds {strays[0]!r}", f"use {' or '.join(LAYER_TYPES)}")
    slides = block.inner.get("use_swa") or LAYER_TYPES[1] in (types or ())
    window = block.inner.get("swa_window_size", block.read.get("sliding_window"))
    if slides and not (isinstance(window, int) and window > 0):
        yield error(
            f"a layer attends through a sliding window, and the window is {window!r}",
            "write sliding_window",
        )


def check_selector(case: InspectionCase) -> Iterator[Violation]:
    """Check DFlash2's additions: grouped convolutions and a selector over the whole vocabulary."""
    block = BlockDraft(case.draft, case.method)
    if block.architecture != DFLASH2:
        return
    keys = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    for key in keys:
        if (get_int(block.inner, key) or 0) < 1:
            yield error(
                f"{key} is {block.inner.get(key)!r}", "write the value the draft was trained with"
            )
    hidden_size, size = case.draft.hidden_size, get_int(block.inner, "conv_group_size")
    if hidden_size and size and size > 0 and hidden_size % size:
        yield error(
            f"conv_group_size {size} does not divide hidden size {hidden_size}",
            "correct one of them",
        )
    vocab_size = case.target.vocab_size if case.target else case.draft.vocab_size
    top_k = get_int(block.inner, "selector_top_k")
    if top_k and vocab_size and top_k > vocab_size:
        yield error(f"selector_top_k is {top_k} of {vocab_size} tokens", "correct it")
    head_size, draft_size = case.draft.draft_vocab_size, case.draft.vocab_size
    if head_size is not None and draft_size is not None and head_size != draft_size:
        yield error(
            f"draft_vocab_size is {head_size} of {draft_size}; DFlash2 selects over the whole "
            "vocabulary",
            "train it with the target's vocabulary",
        )


def check_markov(case: InspectionCase) -> Iterator[Violation]:
    block = BlockDraft(case.draft, case.method)
    if case.method != "dspark" or not block.listed:
        return
    if (block.markov_rank or 0) < 1:
        yield error(
            f"markov_rank is {block.read.get('markov_rank')!r}; vLLM's DSpark has a Markov head",
            "write the rank it was trained with; without that head it is a DFlash draft",
        )
    kind = block.read.get("markov_head_type", "vanilla")
    if kind != "vanilla":
        yield error(
            f"markov_head_type is {kind!r}; vLLM has the type 'vanilla' alone",
            "train the draft with a vanilla Markov head",
        )


def check_block_head(case: InspectionCase) -> Iterator[Violation]:
    """Check the head. A block draft without its own head uses the target's, as the library exports
    it."""
    return (v for v in tensor_rules.check_head(case) if v.severity is Severity.ERROR)


def check_mask_tensor(case: InspectionCase) -> Iterator[Violation]:
    names = [name for name in case.tensors if "mask_hidden" in name]
    if names and case.method == "dflash":
        yield error(
            f"the file has {names[0]}, which is P-EAGLE's; vLLM's DFlash refuses it",
            "drop it, or use the method the draft is made for",
        )


def is_known_tensor(name: str, layout: Mapping[str, ExpectedTensor], case: InspectionCase) -> bool:
    block = BlockDraft(case.draft, case.method)
    if name in layout or (not block.uses_aux and name.startswith("fc.")):
        return True
    return case.draft.quantized and f"{name.rpartition('.')[0]}.weight" in layout


LAYOUT = TensorLayout(
    lambda case: list_block_tensors(BlockDraft(case.draft, case.method)), is_known_tensor
)
RULES: dict[str, RuleCheck] = {
    "block-architecture": check_block_architecture,
    "block-sizes": check_block_sizes,
    "block-layers": check_block_layers,
    "block-width": check_block_width,
    "block-depth": check_block_size,
    "block-anchor": check_anchor,
    "block-attention": check_block_attention,
    "selector": check_selector,
    "markov-head": check_markov,
}
RULES |= {name: config_rules.RULES[name] for name in ("heads", "sharding", "positions", "rope")}
RULES |= {"mask-token": check_mask_id}
TENSOR_RULES: dict[str, RuleCheck] = {
    "tensor-prefix": tensor_rules.check_prefix,
    "tensor-unknown": LAYOUT.check_unknown,
    "tensor-missing": LAYOUT.check_missing,
    "tensor-shape": LAYOUT.check_shapes,
    "tensor-quantised": tensor_rules.check_quantised,
    "tensor-finite": tensor_rules.check_finite,
    "vocabulary": tensor_rules.check_vocabulary,
    "block-head": check_block_head,
    "embedding": tensor_rules.check_embedding,
    "map-needed": tensor_rules.check_map_needed,
    "map-values": tensor_rules.check_map_values,
    "mask-hidden": check_mask_tensor,
}
"""Rules about the tensors of ``LISTED`` architectures."""


def select(case: InspectionCase) -> dict[str, RuleCheck]:
    """Return the rules of a block draft; none for one that comes inside its target."""
    block = BlockDraft(case.draft, case.method)
    if block.in_target:
        return {}
    return RULES | (TENSOR_RULES if block.listed and case.tensors else {})
