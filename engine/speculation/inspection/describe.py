"""One line that says which speculation was detected and why, and its facts for printing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.speculation.inspection.case import InspectionCase
from engine.speculation.inspection.draft import DraftConfig
from engine.speculation.inspection.target import get_int

NAMES = {
    "eagle": "EAGLE", "eagle3": "EAGLE 3", "eagle3.1": "EAGLE 3.1", "mtp": "MTP",
    "medusa": "Medusa", "ngram": "n-gram lookup", "ngram_gpu": "n-gram lookup on the GPU",
    "suffix": "suffix decoding", "draft_model": "draft model", "dflash": "DFlash",
    "dspark": "DSpark", "mlp_speculator": "MLP speculator", "custom_class": "custom proposer",
    "extract_hidden_states": "hidden-state extraction",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SpeculationDescription:
    """``method`` is what people call it; ``facts`` read well as "name: value" lines."""

    method: str
    summary: str
    facts: Mapping[str, str]


def describe(case: InspectionCase) -> SpeculationDescription:
    eagle3 = case.method == "eagle3" and case.checkpoint is not None and case.kind == "eagle3"
    method = name_eagle3(case.draft) if eagle3 else case.method
    depth = get_int(case.settings, "num_speculative_tokens")
    details = (
        [", ".join(list_features(case.draft)), format_size(case.draft)]
        if eagle3
        else [describe_other(case)]
    )
    details.append(f"K={depth}" if depth is not None else "")
    text = "; ".join(part for part in details if part)
    name = "EAGLE 3 or 3.1" if method == "eagle3" and not eagle3 else NAMES.get(method, method)
    return SpeculationDescription(
        method, f"{name}: {text}" if text else name, dict(list_facts(case, eagle3))
    )


def name_eagle3(draft: DraftConfig) -> str:
    return "eagle3.1" if draft.fc_norm or draft.norm_output else "eagle3"


def list_features(draft: DraftConfig) -> Iterator[str]:
    if draft.fc_norm:
        yield f"fc_norm x{draft.num_aux}"
    if draft.norm_output:
        yield "norm_output"
    if draft.norm_before_fc:
        yield "norm_before_fc"
    if not (draft.fc_norm or draft.norm_output or draft.norm_before_fc):
        yield "no fc_norm, no norm_output"
    if draft.shape is not None and draft.shape != "Llama-shaped":
        yield str(draft.shape)
    if draft.speculators:
        yield "speculators format"


def format_size(draft: DraftConfig) -> str:
    layers = f"{draft.num_layers} layer" + ("s" if draft.num_layers != 1 else "")
    return f"{layers}, draft vocabulary {draft.draft_vocab_size} of {draft.vocab_size}"


def describe_other(case: InspectionCase) -> str:
    if case.method in ("ngram", "ngram_gpu"):
        least = case.settings.get("prompt_lookup_min", 5)
        return f"repeats of {least} to {case.settings.get('prompt_lookup_max', least)} tokens"
    if case.checkpoint is None and case.settings.get("model") and case.method != "custom_class":
        return f"{case.settings['model']}, not inspected"
    return str(case.settings.get("model") or "no draft of its own")


def list_facts(case: InspectionCase, eagle3: bool) -> Iterator[tuple[str, str]]:
    yield "method for vLLM", case.method
    if case.checkpoint is None:
        return
    yield "format", "speculators" if case.draft.speculators else "plain"
    yield "tensors", str(len(case.tensors))
    if not eagle3:
        return
    draft = case.draft
    yield "layer", str(draft.shape or draft.architecture)
    yield "hidden size", f"{draft.hidden_size}, target {draft.target_hidden_size}"
    ids = draft.layers_of(case.target)
    source = "given" if draft.captured is not None else "vLLM's default"
    yield "captured layers", f"{list(ids) if ids is not None else 'default'} ({source})"
    yield "fc_norm", f"x{draft.num_aux}" if draft.fc_norm else "no"
    for name, value in (("norm_output", draft.norm_output),
                        ("norm_before_fc", draft.norm_before_fc)):  # fmt: skip
        yield name, "yes" if value else "no"
    yield "draft vocabulary", f"{draft.draft_vocab_size} of {draft.vocab_size}"
