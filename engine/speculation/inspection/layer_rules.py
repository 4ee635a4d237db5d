"""Rules about the target layers an EAGLE 3 draft listens to: ids, their number, fc's width."""

from __future__ import annotations

from collections.abc import Iterator

from engine.speculation.inspection.case import (
    InspectionCase,
    InspectionRule,
    Violation,
    error,
    warning,
)
from engine.speculation.inspection.configs import LAYER_IDS, DecoderLayer


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


RULES = (
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
