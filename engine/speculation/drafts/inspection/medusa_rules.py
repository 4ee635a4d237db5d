"""Rules about Medusa drafts: one residual block and one head for each drafted position."""

from __future__ import annotations

import re
from collections.abc import Iterator

from eaglegate.engine.speculation.drafts.inspection.case import (
    InspectionCase,
    RuleCheck,
    Violation,
    error,
)
from eaglegate.engine.speculation.drafts.inspection.speculators import get_int

OLD_NAME = re.compile(r"(?P<head>\d+)\.(?P<layer>\d+)\.(?P<rest>.+)")
DEFAULT_HEADS = 5
NEEDED = "blocks.{head}.layers.{layer}.weight"


def map_names(case: InspectionCase) -> dict[str, str]:
    """Return the names on disk by vLLM's names. Names of the original Medusa are mapped."""
    return {map_name(name.replace("medusa_heads.", "")): name for name in case.tensors}


def map_name(name: str) -> str:
    match = OLD_NAME.fullmatch(name)
    if match is None:
        return name
    head, layer, parameter = match.group("head", "layer", "rest")
    if "linear" in parameter.split("."):
        return f"blocks.{head}.layers.{layer}.{parameter.partition('linear.')[2]}"
    return f"lm_heads.{head}.{parameter}"


def count_heads(case: InspectionCase) -> int | None:
    """Return the number of heads as vLLM reads it: from any key that contains ``num`` and
    ``heads``."""
    config = case.draft.raw
    keys = [key for key in config if "num" in key and "heads" in key]
    return get_int(config, keys[-1]) if keys else DEFAULT_HEADS


def count_layers(case: InspectionCase) -> int:
    config = case.draft.raw
    keys = [key for key in config if "num" in key and "heads" not in key and "layers" in key]
    return (get_int(config, keys[-1]) if keys else None) or 1


def check_heads(case: InspectionCase) -> Iterator[Violation]:
    """Check K against the heads. vLLM builds K heads and drafts with all, whatever config.json
    says."""
    depth, num_heads = get_int(case.settings, "num_speculative_tokens"), count_heads(case)
    if depth is not None and num_heads is not None and depth > num_heads:
        yield error(
            f"num_speculative_tokens is {depth}, the draft has {num_heads} heads",
            f"give at most {num_heads}",
        )


def check_tensors(case: InspectionCase) -> Iterator[Violation]:
    if not case.tensors:
        return
    names = map_names(case)
    heads = get_int(case.settings, "num_speculative_tokens") or count_heads(case) or DEFAULT_HEADS
    shares_head = bool(case.draft.raw.get("original_lm_head"))
    head_indexes = range(min(heads, 2 * len(case.tensors) + 1))
    block_names = [
        NEEDED.format(head=head, layer=layer)
        for head in head_indexes
        for layer in range(min(count_layers(case), len(case.tensors) + 1))
    ]
    head_names = (
        ["lm_head.weight"] if shares_head else [f"lm_heads.{head}.weight" for head in head_indexes]
    )
    if shares_head and "lm_heads.0.weight" in names:
        head_names = []
    absent_names = [name for name in (*block_names, *head_names) if name not in names]
    if absent_names:
        yield error(
            f"missing: {', '.join(absent_names[:3])}; vLLM starts with whatever the memory holds",
            "export the draft again, complete, or lower num_speculative_tokens",
        )
    yield from check_shapes(case, names)


def check_shapes(case: InspectionCase, names: dict[str, str]) -> Iterator[Violation]:
    hidden_size = case.draft.hidden_size
    rows = case.target.vocab_size if case.target else None
    truncated_size = get_int(case.draft.raw, "truncated_vocab_size")
    for name, stored_name in names.items():
        shape = case.tensors[stored_name].shape
        if name.startswith("blocks.") and name.endswith(".weight"):
            layout: tuple[int | None, ...] = (hidden_size, hidden_size)
        elif name.startswith("lm_head") and name.endswith(".weight") and truncated_size is None:
            layout = (rows, hidden_size)
        else:
            continue
        if None not in layout and shape != layout:
            yield error(
                f"{stored_name} is {list(shape)}, for this target it would be {list(layout)}",
                "use the draft made for this target",
            )
            return


RULES: dict[str, RuleCheck] = {
    "medusa-depth": check_heads,
    "medusa-tensors": check_tensors,
}
