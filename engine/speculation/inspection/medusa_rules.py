"""Rules about Medusa drafts: one residual block and one head for each drafted position."""

from __future__ import annotations

import re
from collections.abc import Iterator

from eaglegate.engine.speculation.inspection.case import InspectionCase, RuleCheck, Violation, error
from eaglegate.engine.speculation.inspection.speculators import get_int

OLD_NAME = re.compile(r"(?P<head>\d+)\.(?P<layer>\d+)\.(?P<rest>.+)")
DEFAULT_HEADS = 5
NEEDED = "blocks.{head}.layers.{layer}.weight"


def map_names(case: InspectionCase) -> dict[str, str]:
    """Return the names on disk by vLLM's names. Names of the original Medusa are mapped."""
    return {map_name(name.replace("medusa_heads.", "")): name for name in case.tensors}


def map_name(name: str) -> str:
    old = OLD_NAME.fullmatch(name)
    if old is None:
        return name
    head, layer, rest = old.group("head", "layer", "rest")
    if "linear" in rest.split("."):
        return f"blocks.{head}.layers.{layer}.{rest.partition('linear.')[2]}"
    return f"lm_heads.{head}.{rest}"


def count_heads(case: InspectionCase) -> int | None:
    """Return the number of heads as vLLM reads it: from any key that contains ``num`` and
    ``heads``."""
    raw = case.draft.raw
    keys = [key for key in raw if "num" in key and "heads" in key]
    return get_int(raw, keys[-1]) if keys else DEFAULT_HEADS


def count_layers(case: InspectionCase) -> int:
    raw = case.draft.raw
    keys = [key for key in raw if "num" in key and "heads" not in key and "layers" in key]
    return (get_int(raw, keys[-1]) if keys else None) or 1


def check_heads(case: InspectionCase) -> Iterator[Violation]:
    """Check K against the heads. vLLM builds K heads and drafts with all, whatever config.json
    says."""
    depth, most = get_int(case.settings, "num_speculative_tokens"), count_heads(case)
    if depth is not None and most is not None and depth > most:
        yield error(
            f"num_speculative_tokens is {depth}, the draft has {most} heads", f"give at most {most}"
        )


def check_tensors(case: InspectionCase) -> Iterator[Violation]:
    if not case.tensors:
        return
    here = map_names(case)
    heads = get_int(case.settings, "num_speculative_tokens") or count_heads(case) or DEFAULT_HEADS
    shared = bool(case.draft.raw.get("original_lm_head"))
    known = range(min(heads, 2 * len(case.tensors) + 1))
    wanted = [
        NEEDED.format(head=head, layer=layer)
        for head in known
        for layer in range(min(count_layers(case), len(case.tensors) + 1))
    ]
    heads_wanted = ["lm_head.weight"] if shared else [f"lm_heads.{head}.weight" for head in known]
    if shared and "lm_heads.0.weight" in here:
        heads_wanted = []
    absent = [name for name in (*wanted, *heads_wanted) if name not in here]
    if absent:
        yield error(
            f"missing: {', '.join(absent[:3])}; vLLM starts with whatever the memory holds",
            "export the draft again, complete, or lower num_speculative_tokens",
        )
    yield from check_shapes(case, here)


def check_shapes(case: InspectionCase, here: dict[str, str]) -> Iterator[Violation]:
    hidden = case.draft.hidden_size
    rows = case.target.vocab_size if case.target else None
    small = get_int(case.draft.raw, "truncated_vocab_size")
    for name, stored in here.items():
        shape = case.tensors[stored].shape
        if name.startswith("blocks.") and name.endswith(".weight"):
            wanted: tuple[int | None, ...] = (hidden, hidden)
        elif name.startswith("lm_head") and name.endswith(".weight") and small is None:
            wanted = (rows, hidden)
        else:
            continue
        if None not in wanted and shape != wanted:
            yield error(
                f"{stored} is {list(shape)}, for this target it would be {list(wanted)}",
                "use the draft made for this target",
            )
            return


RULES: dict[str, RuleCheck] = {
    "medusa-depth": check_heads,
    "medusa-tensors": check_tensors,
}
