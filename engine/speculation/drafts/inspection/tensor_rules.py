"""Rules about a draft's tensors: names, shapes, small values, the vocabulary map.

``RULES`` are those of EAGLE 3 drafts. ``block_rules.py`` has those of block drafts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglegate.engine.speculation.drafts.inspection.case import (
    InspectionCase,
    RuleCheck,
    Violation,
    error,
    note,
    warning,
)
from eaglegate.engine.speculation.drafts.inspection.configs import (
    ExpectedTensor,
    is_allowed,
    list_expected_tensors,
)
from eaglegate.engine.speculation.drafts.inspection.speculators import TYPE
from eaglegate.engine.speculation.drafts.inspection.weights import TensorEntry, read_array

PADDING = 0.01
"""Largest difference in vocabulary within a family of models, from padding and image tokens."""
MANY = 64
"""Length from which a map of offsets has neighbouring ids. Without any, it holds no offsets."""
SHOWN = 3
SMALL_BYTES = 262_144
FLOATS = ("F16", "BF16", "F32", "F64")


def map_vllm_names(tensors: Mapping[str, TensorEntry]) -> dict[str, str]:
    """Return the names on disk by vLLM's names. Tensors that vLLM skips are left out."""
    return {
        re.sub(r"midlayer\.", "layers.0.", name, count=1): name
        for name in tensors
        if not any(mark in name for mark in ("t2d", "d2t", "mask_hidden", "rotary_emb."))
    }


def format_names(names: list[str]) -> str:
    suffix = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + suffix


def check_prefix(case: InspectionCase) -> Iterator[Violation]:
    prefixed_names = [name for name in case.tensors if name.startswith("model.")]
    if prefixed_names:
        yield error(
            f"{len(prefixed_names)} tensors carry the prefix 'model.' ({prefixed_names[0]}), "
            "which vLLM adds itself",
            "strip it: export for vLLM",
        )


def advise_unknown(name: str, matches: list[str]) -> str:
    if name.startswith("fc_norm."):
        return 'add "fc_norm": true at the top level of config.json'
    if ".q_norm." in name or ".k_norm." in name:
        return "a Qwen3-shaped layer: use the architecture 'Eagle3Qwen3ForCausalLM'"
    if name.endswith(".bias"):
        return "write attention_bias (or mlp_bias) true, or drop the biases"
    if re.match(r"layers\.\d+\.", name):
        return "raise num_hidden_layers to the layers there are, or drop them"
    return f"did you mean {matches[0]!r}?" if matches else "drop it, or export the draft again"


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """The tensors that vLLM builds for a kind of draft, and rules that compare a file with them."""

    list_expected: Callable[[InspectionCase], dict[str, ExpectedTensor]]
    is_known: Callable[[str, Mapping[str, ExpectedTensor], InspectionCase], bool]
    """Whether vLLM's loader takes or drops a tensor without complaint."""
    checked_apart: tuple[str, ...] = ()
    """Tensors whose shape has a rule of its own."""

    def check_unknown(self, case: InspectionCase) -> Iterator[Violation]:
        layout = self.list_expected(case)
        names = map_vllm_names(case.tensors)
        strays = [
            name
            for name in sorted(names)
            if not name.startswith("model.") and not self.is_known(name, layout, case)
        ]
        if not strays:
            return
        absent_names = [name for name in layout if name not in names]
        matches = get_close_matches(strays[0], absent_names, 1, 0.75)
        yield error(
            f"vLLM's draft has no {format_names([names[name] for name in strays])}",
            advise_unknown(strays[0], matches),
        )

    def check_missing(self, case: InspectionCase) -> Iterator[Violation]:
        if case.draft.quantized or any(name.startswith("model.") for name in case.tensors):
            return
        names = map_vllm_names(case.tensors)
        layout = self.list_expected(case)
        absent_names = [
            name for name, want in layout.items() if want.required and name not in names
        ]
        norms = [name for name in absent_names if name.startswith("fc_norm.")]
        if norms and len(norms) == case.draft.num_aux:
            yield error(
                '"fc_norm" is true and the file has no fc_norm tensors; vLLM leaves them at one',
                'set "fc_norm" to false, or export the draft again',
            )
            absent_names = [name for name in absent_names if name not in norms]
        if absent_names:
            yield error(
                f"missing: {format_names(absent_names)}; vLLM starts with whatever the "
                "memory holds",
                "export the draft again, complete",
            )

    def check_shapes(self, case: InspectionCase) -> Iterator[Violation]:
        if case.draft.quantized:
            return
        names = map_vllm_names(case.tensors)
        for name, want in self.list_expected(case).items():
            if name not in names or name in self.checked_apart or None in want.shape:
                continue
            shape = case.tensors[names[name]].shape
            if shape != want.shape:
                yield error(
                    f"{names[name]} is {list(shape)}, by config.json it would be "
                    f"{list(want.shape)}",
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
    is_parallel = case.settings.get("parallel_drafting") or (case.draft.raw.get(TYPE) == "peagle")
    tensors = [tensor for name, tensor in case.tensors.items() if "mask_hidden" in name]
    if is_parallel and not tensors:
        yield error(
            "parallel drafting needs the tensor mask_hidden", "set parallel_drafting to false"
        )
    width = case.draft.target_hidden_size
    if not is_parallel or not tensors or width is None:
        return
    total = width * (case.draft.num_aux if case.draft.uses_aux else 1)
    if prod(tensors[0].shape) != total:
        yield error(
            f"mask_hidden is {list(tensors[0].shape)} for {total} inputs of fc",
            "export the draft again",
        )


def check_quantised(case: InspectionCase) -> Iterator[Violation]:
    if case.draft.quantized:
        yield note(
            "the draft is quantised: its shapes, and whether tensors are missing, were not checked",
            "watch acceptance, or use the draft as it was trained",
        )


def check_finite(case: InspectionCase) -> Iterator[Violation]:
    """Check norms and biases, which are small enough to read. A diverged training shows in them."""
    for name, tensor in case.tensors.items():
        if len(tensor.shape) != 1 or tensor.dtype not in FLOATS or tensor.num_bytes > SMALL_BYTES:
            continue
        values = read_array(tensor)
        if not np.isfinite(values).all():
            yield error(f"{name} holds NaN or infinity", "take an earlier training checkpoint")
        elif "norm" in name and values.size and not values.any():
            yield error(f"{name} is all zeros", "export the draft again")


def check_vocabulary(case: InspectionCase) -> Iterator[Violation]:
    draft_size, target_size = case.draft.vocab_size, case.target.vocab_size if case.target else None
    if draft_size is not None and target_size is not None and draft_size != target_size:
        problem = f"the draft's vocab_size is {draft_size}, the target's {target_size}"
        if abs(draft_size - target_size) <= PADDING * target_size:
            yield warning(problem, "right if only padding or image tokens differ")
        else:
            advice = "use the draft made for this target; a smaller head is draft_vocab_size"
            yield error(problem, advice)
    head_size = case.draft.draft_vocab_size
    if head_size is not None and draft_size is not None and head_size > draft_size:
        yield error(f"draft_vocab_size {head_size} exceeds vocab_size {draft_size}", "correct it")


def check_head(case: InspectionCase) -> Iterator[Violation]:
    if "lm_head.weight" in case.tensors:
        return
    draft, target = case.draft, case.target
    is_reduced = draft.draft_vocab_size != draft.vocab_size
    is_narrow = target is not None and target.hidden_size not in (None, draft.hidden_size)
    if is_reduced or is_narrow:
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
    draft_width, width = case.draft.hidden_size, case.target.hidden_size
    if draft_width is not None and width is not None and draft_width != width:
        yield error(
            f"embed_tokens.weight is missing and the target's is {width} wide, not {draft_width}",
            "export the draft again, with its embedding",
        )


def find_map(case: InspectionCase) -> tuple[str, TensorEntry] | None:
    """Return the vocabulary map, for which vLLM takes any tensor with d2t in its name."""
    maps = [(name, case.tensors[name]) for name in case.tensors if "d2t" in name]
    return maps[0] if maps else None


def check_map_needed(case: InspectionCase) -> Iterator[Violation]:
    head_size, vocab_size = case.draft.draft_vocab_size, case.draft.vocab_size
    if head_size is None or vocab_size is None:
        return
    entry = find_map(case)
    target_size = case.target.vocab_size if case.target else vocab_size
    if entry is None and head_size != vocab_size:
        yield error(
            f"draft_vocab_size is {head_size} of {vocab_size} and there is no d2t: "
            "vLLM takes draft ids for target ids",
            "export the draft again, with d2t",
        )
    elif entry is not None and head_size == target_size:
        yield error(
            "there is a d2t, and draft_vocab_size is absent or equal to vocab_size",
            f'write "draft_vocab_size": {entry[1].shape[0] if entry[1].shape else 0}'
            + (" at the top level of config.json" if case.draft.speculators else ""),
        )


def check_map_values(case: InspectionCase) -> Iterator[Violation]:
    entry = find_map(case)
    head_size, vocab_size = case.draft.draft_vocab_size, case.draft.vocab_size
    if entry is None or head_size is None or vocab_size is None or head_size == vocab_size:
        return
    name, tensor = entry
    if tensor.shape != (head_size,):
        yield error(
            f"{name} has shape {list(tensor.shape)} for a draft vocabulary of {head_size}",
            "correct draft_vocab_size, or export the draft again",
        )
    elif not tensor.dtype.startswith(("I", "U")):
        yield error(f"{name} is {tensor.dtype}", "store offsets as int64")
    else:
        yield from check_offsets(read_array(tensor).astype(np.int64), vocab_size)
        yield from check_mask(case, read_array(tensor).astype(np.int64), vocab_size)


def check_offsets(values: NDArray[Any], vocab_size: int) -> Iterator[Violation]:
    steps = np.diff(values)
    if len(values) >= MANY and bool((steps > 0).all()):
        yield error(
            "d2t holds target ids; vLLM adds it to the draft id",
            "store target_id - draft_id",
        )
        return
    ids = values + np.arange(len(values))
    outside_mask = (ids < 0) | (ids >= vocab_size)
    if outside_mask.any():
        index = int(np.argmax(outside_mask))
        yield error(
            f"d2t maps draft id {index} to target id {int(ids[index])}, outside "
            f"0..{vocab_size - 1}",
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


def check_mask(case: InspectionCase, values: NDArray[Any], vocab_size: int) -> Iterator[Violation]:
    """Check t2d against d2t. t2d marks the target ids that the draft can produce, and vLLM ignores
    it."""
    masks = [case.tensors[name] for name in case.tensors if "t2d" in name]
    if not masks or masks[0].dtype != "BOOL" or len(masks[0].shape) != 1:
        return
    mask_ids = np.flatnonzero(read_array(masks[0]))
    ids = np.unique(values + np.arange(len(values)))
    if masks[0].shape[0] != vocab_size or not np.array_equal(mask_ids, ids):
        yield error(
            f"d2t and t2d disagree: they name {len(ids)} and {len(mask_ids)} target ids, "
            f"{len(np.intersect1d(mask_ids, ids))} in common",
            "export the draft again; d2t holds offsets, target_id - draft_id",
        )


EAGLE3 = TensorLayout(
    lambda case: list_expected_tensors(case.draft),
    lambda name, layout, case: is_allowed(name, layout, case.draft),
    checked_apart=("fc.weight",),
)
RULES: dict[str, RuleCheck] = {
    "tensor-prefix": check_prefix,
    "tensor-unknown": EAGLE3.check_unknown,
    "tensor-missing": EAGLE3.check_missing,
    "tensor-shape": EAGLE3.check_shapes,
    "fc-rows": check_fc_rows,
    "input-norm": check_input_norm,
    "parallel-hidden": check_parallel_hidden,
    "tensor-quantised": check_quantised,
    "tensor-finite": check_finite,
    "vocabulary": check_vocabulary,
    "head": check_head,
    "embedding": check_embedding,
    "map-needed": check_map_needed,
    "map-values": check_map_values,
}
