"""Rules about an EAGLE 3 draft and its target: the layers it listens to, and the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.speculation.inspection.case import (
    InspectionCase,
    InspectionRule,
    Violation,
    error,
    warning,
)
from engine.speculation.inspection.configs import LAYER_IDS, DecoderLayer
from engine.speculation.inspection.weights import TensorEntry, read_array

PADDING = 0.01
"""Checkpoints of one family differ by so much at most in padding and image tokens."""
MANY = 64
"""A map this long has neighbouring ids; none at all means it does not hold offsets."""


def check_layers_exist(case: InspectionCase) -> Iterator[Violation]:
    """Id 0 is the embedding's output, id L the output of the last of L layers."""
    ids, layers = case.draft.captured, case.target.num_layers if case.target else None
    for one in ids or ():
        if not isinstance(one, int) or isinstance(one, bool):
            yield error(f"{LAYER_IDS} holds {one!r}", "give whole numbers")
        elif one < 0 or (layers is not None and one > layers):
            yield error(
                f"{LAYER_IDS} holds {one}; the target's layers are 0 to {layers}",
                "use the draft made for this target, or its true ids",
            )


def check_layers_distinct(case: InspectionCase) -> Iterator[Violation]:
    ids = case.draft.layers_of(case.target)
    if ids is None or not case.draft.uses_aux or len(set(map(str, ids))) == len(ids):
        return
    if case.draft.captured is None:
        yield error(
            f"no {LAYER_IDS} given, and vLLM's default {list(ids)} repeats a layer of this target",
            f"write the three ids it was trained with to {LAYER_IDS}",
        )
    else:
        yield error(
            f"{LAYER_IDS} {list(ids)} repeats a layer; vLLM hands it out once",
            "give each layer once",
        )


def check_layers_ascending(case: InspectionCase) -> Iterator[Violation]:
    ids = [one for one in case.draft.captured or () if isinstance(one, int)]
    if ids != sorted(ids):
        yield warning(
            f"{LAYER_IDS} {ids} are not ascending; vLLM hands the states out in layer order",
            "sort the ids if it was trained so, else permute fc's columns",
        )


def check_layers_agree(case: InspectionCase) -> Iterator[Violation]:
    top, nested = case.draft.read.get(LAYER_IDS), case.draft.eagle_config.get(LAYER_IDS)
    if top and nested and top != nested:
        yield warning(
            f"{LAYER_IDS} is {top} at the top level and {nested} in eagle_config",
            "keep the one it was trained with, in eagle_config; vLLM captures those on top",
        )


def check_layer_count(case: InspectionCase) -> Iterator[Violation]:
    """The target hands out as many states as fc is built for."""
    ids, built = case.draft.captured, case.draft.num_aux
    if ids is None or not case.draft.uses_aux or len(ids) == built:
        return
    yield error(
        f"{len(ids)} layers are captured, but vLLM builds fc for {built}",
        advise_count(case, len(ids)),
    )


def advise_count(case: InspectionCase, count: int) -> str:
    if case.draft.speculators:
        return f'add "num_aux_hidden_states": {count} to transformer_layer_config'
    if case.draft.shape is DecoderLayer.QWEN3:
        return f"remove num_aux_layers and num_aux_hidden_states, or set them to {count}"
    return f'move {LAYER_IDS} into eagle_config, or add "num_aux_hidden_states": {count}'


def check_fc_width(case: InspectionCase) -> Iterator[Violation]:
    shape, one, built = (
        case.shape_of("fc.weight"),
        case.draft.target_hidden_size,
        case.draft.num_aux,
    )
    if not shape or len(shape) != 2 or one is None or case.draft.quantized:
        return
    if not case.draft.uses_aux or shape[1] == one * built:
        return
    if shape[1] % one == 0:
        advice = advise_count(case, shape[1] // one)
        found = f"fc takes {shape[1] // one} states of {one}, vLLM builds it for {built}"
    else:
        advice = "correct target_hidden_size, or use the draft made for this target"
        found = f"fc takes {shape[1]} inputs, which is not a multiple of hidden size {one}"
    yield error(found, advice)


def check_aux_used(case: InspectionCase) -> Iterator[Violation]:
    if not case.draft.uses_aux and "fc.weight" in case.tensors:
        yield error(
            "use_aux_hidden_state is false and the file has fc.weight, which vLLM drops",
            "set it to true: the draft was trained on captured states",
        )


LAYER_RULES = (
    InspectionRule("aux-unused", "a draft with fc gets captured states", check_aux_used),
    InspectionRule(
        "layers-exist", "the captured layers are layers of the target", check_layers_exist
    ),
    InspectionRule("layers-distinct", "each captured layer is another one", check_layers_distinct),
    InspectionRule("layers-ascending", "captured layers are in order", check_layers_ascending),
    InspectionRule("layers-agree", "the captured layers are stated once", check_layers_agree),
    InspectionRule("layers-counted", "as many layers are captured as fc takes", check_layer_count),
    InspectionRule("fc-width", "fc is as wide as the captured states", check_fc_width),
)


def check_vocabulary(case: InspectionCase) -> Iterator[Violation]:
    own, target = case.draft.vocab_size, case.target.vocab_size if case.target else None
    if own is not None and target is not None and own != target:
        found = f"the draft's vocab_size is {own}, the target's {target}"
        if abs(own - target) <= PADDING * target:
            yield warning(found, "right if only padding or image tokens differ")
        else:
            advice = "use the draft made for this target; a smaller head is draft_vocab_size"
            yield error(found, advice)
    small = case.draft.draft_vocab_size
    if small is not None and own is not None and small > own:
        yield error(f"draft_vocab_size {small} exceeds vocab_size {own}", "correct it")


def check_head(case: InspectionCase) -> Iterator[Violation]:
    if "lm_head.weight" in case.tensors:
        return
    draft, target = case.draft, case.target
    reduced = draft.draft_vocab_size != draft.vocab_size
    narrow = target is not None and target.hidden_size not in (None, draft.hidden_size)
    if reduced or narrow:
        yield error(
            "lm_head.weight is missing and the target's cannot stand in: another shape",
            "export the draft again, with its head",
        )
    else:
        yield warning(
            "lm_head.weight is missing; vLLM takes the target's",
            "right only if the draft was trained with the target's head, else export it again",
        )


def check_embedding(case: InspectionCase) -> Iterator[Violation]:
    if "embed_tokens.weight" in case.tensors or case.target is None:
        return
    own, target = case.draft.hidden_size, case.target.hidden_size
    if own is not None and target is not None and own != target:
        yield error(
            f"embed_tokens.weight is missing and the target's is {target} wide, not {own}",
            "export the draft again, with its embedding",
        )


def find_map(case: InspectionCase) -> tuple[str, TensorEntry] | None:
    """vLLM takes any tensor with d2t in its name."""
    found = [(name, case.tensors[name]) for name in case.tensors if "d2t" in name]
    return found[0] if found else None


def check_map_needed(case: InspectionCase) -> Iterator[Violation]:
    small, full = case.draft.draft_vocab_size, case.draft.vocab_size
    if small is None or full is None:
        return
    found = find_map(case)
    whole = case.target.vocab_size if case.target else full
    if found is None and small != full:
        yield error(
            f"draft_vocab_size is {small} of {full} and there is no d2t: "
            "vLLM takes draft ids for target ids",
            "export the draft again, with d2t",
        )
    elif found is not None and small == whole:
        yield error(
            "there is a d2t, and draft_vocab_size is absent or equal to vocab_size",
            f'write "draft_vocab_size": {found[1].shape[0] if found[1].shape else 0}'
            + (" at the top level of config.json" if case.draft.speculators else ""),
        )


def check_map_values(case: InspectionCase) -> Iterator[Violation]:
    found = find_map(case)
    small, full = case.draft.draft_vocab_size, case.draft.vocab_size
    if found is None or small is None or full is None or small == full:
        return
    name, tensor = found
    if tensor.shape != (small,):
        yield error(
            f"{name} has shape {list(tensor.shape)} for a draft vocabulary of {small}",
            "correct draft_vocab_size, or export the draft again",
        )
    elif not tensor.dtype.startswith(("I", "U")):
        yield error(f"{name} is {tensor.dtype}", "store offsets as int64")
    else:
        yield from check_offsets(read_array(tensor).astype(np.int64), full)
        yield from check_mask(case, read_array(tensor).astype(np.int64), full)


def check_offsets(values: NDArray[Any], full: int) -> Iterator[Violation]:
    steps = np.diff(values)
    if len(values) >= MANY and bool((steps > 0).all()):
        yield error(
            "d2t holds target ids; vLLM adds it to the draft id",
            "store target_id - draft_id",
        )
        return
    ids = values + np.arange(len(values))
    outside = (ids < 0) | (ids >= full)
    if outside.any():
        first = int(np.argmax(outside))
        yield error(
            f"d2t maps draft id {first} to target id {int(ids[first])}, outside 0..{full - 1}",
            "store target_id - draft_id of this target's vocabulary",
        )
    elif not values.any():
        yield warning(
            "d2t is all zeros: draft ids are taken for target ids",
            "right only if the draft's vocabulary is the target's first ids",
        )
    elif len(np.unique(ids)) < len(ids):
        yield warning(
            f"d2t maps {len(ids) - len(np.unique(ids))} draft ids to a target id already taken",
            "export the draft again: each target id may occur once",
        )
    elif bool((np.diff(ids) < 0).any()):
        yield warning(
            "d2t does not map in ascending order, as every known exporter does",
            "check that it belongs to this head",
        )


def check_mask(case: InspectionCase, values: NDArray[Any], full: int) -> Iterator[Violation]:
    """t2d marks the target ids the draft can say; vLLM ignores it, so it is a second witness."""
    found = [case.tensors[name] for name in case.tensors if "t2d" in name]
    if not found or found[0].dtype != "BOOL" or len(found[0].shape) != 1:
        return
    marked = np.flatnonzero(read_array(found[0]))
    ids = np.unique(values + np.arange(len(values)))
    if found[0].shape[0] != full or not np.array_equal(marked, ids):
        yield error(
            f"d2t and t2d disagree: they name {len(ids)} and {len(marked)} target ids, "
            f"{len(np.intersect1d(marked, ids))} in common",
            "export the draft again; d2t holds offsets, target_id - draft_id",
        )


VOCABULARY_RULES = (
    InspectionRule("vocabulary", "draft and target share a vocabulary", check_vocabulary),
    InspectionRule("head", "the draft has its head", check_head),
    InspectionRule("embedding", "the draft has an embedding of its width", check_embedding),
    InspectionRule(
        "map-needed", "a reduced vocabulary has a map, a full one none", check_map_needed
    ),
    InspectionRule(
        "map-values", "the map holds offsets into the target's vocabulary", check_map_values
    ),
)
