"""Inspection data: the input and output of a rule, the method, and the report of all findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from eaglegate.engine.speculation.drafts.inspection.checkpoint import Checkpoint
from eaglegate.engine.speculation.drafts.inspection.configs import DraftConfig, TargetConfig
from eaglegate.engine.speculation.drafts.inspection.speculators import (
    METHOD_OF_TYPE,
    TYPE,
    get_int,
    get_mapping,
)
from eaglegate.engine.speculation.drafts.inspection.weights import TensorEntry
from eaglegate.engine.speculation.drafts.methods import find_method


class Severity(StrEnum):
    """Severity of a finding."""

    ERROR = "error"
    """The engine would not start, would die at a request, or could not accept drafts."""
    WARNING = "warning"
    """The draft runs, but accepts fewer tokens or shorter contexts than it could."""
    NOTE = "note"
    """The setting is right in most drafts, and worth knowing if acceptance is low."""


@dataclass(frozen=True, slots=True)
class DraftFinding:
    """One broken rule, with the fault and advice."""

    rule: str
    severity: Severity
    found: str
    advice: str

    def __str__(self) -> str:
        return f"{self.severity} [{self.rule}] {self.found}; {self.advice}"


@dataclass(frozen=True, slots=True)
class SpeculationReport:
    """Result of ``inspect_draft``.

    ``method`` is the common name: eagle3.1, eagle3, eagle, mtp, medusa, ngram, suffix, draft_model,
    dflash, ... ``inspected`` is false if the draft's files are not on this machine, so that only
    its settings were checked. ``facts`` are details of the variant for printing.
    """

    method: str
    summary: str
    depth: int | None = None
    """K; None if it is not given or not a number."""
    draft: str | None = None
    inspected: bool = True
    facts: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[DraftFinding, ...] = ()

    @property
    def errors(self) -> tuple[DraftFinding, ...]:
        return self.of(Severity.ERROR)

    @property
    def warnings(self) -> tuple[DraftFinding, ...]:
        return self.of(Severity.WARNING)

    @property
    def ok(self) -> bool:
        """True if no finding would keep this draft from working."""
        return not self.errors

    def of(self, severity: Severity) -> tuple[DraftFinding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is severity)

    def outline(self, severity: Severity) -> Iterator[str]:
        """Yield the first finding of each rule, and the number of its others: one wrong size
        violates the same rule in every tensor.
        """
        counts = Counter(finding.rule for finding in self.of(severity))
        for finding in self.of(severity):
            num_others = counts.pop(finding.rule, 0) - 1
            if num_others >= 0:
                yield (
                    f"{finding} (and {num_others} more of its kind)" if num_others else str(finding)
                )


@dataclass(frozen=True, slots=True)
class InspectionCase:
    """One draft for one target. Rules about files run only if ``checkpoint`` is set."""

    settings: Mapping[str, Any]
    method: str
    """The method that vLLM derives from the settings."""
    tensor_parallel_size: int
    max_model_len: int | None
    target: TargetConfig | None
    checkpoint: Checkpoint | None
    draft: DraftConfig
    kind: str | None
    """The method that the draft's files suggest; None if unknown."""

    @property
    def tensors(self) -> Mapping[str, TensorEntry]:
        return self.checkpoint.tensors if self.checkpoint else {}

    @property
    def served_len(self) -> int | None:
        """Number of positions that a request may use, if known before the start."""
        return self.max_model_len or (self.target.max_positions if self.target else None)

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        tensor = self.tensors.get(name)
        return tensor.shape if tensor else None


@dataclass(frozen=True, slots=True)
class Violation:
    """A finding without the rule's name."""

    severity: Severity
    found: str
    advice: str


def error(problem: str, advice: str) -> Violation:
    return Violation(Severity.ERROR, problem, advice)


def warning(problem: str, advice: str) -> Violation:
    return Violation(Severity.WARNING, problem, advice)


def note(problem: str, advice: str) -> Violation:
    return Violation(Severity.NOTE, problem, advice)


RuleCheck = Callable[[InspectionCase], Iterable[Violation]]
"""Function that yields the violations of a rule. Its name in ``RULES`` is the one in
docs/drafts.md.
"""

MTP_METHODS = frozenset(
    {
        "deepseek_mtp", "dots3_note_mtp", "mimo_mtp", "mimo_v2_mtp", "glm4_moe_mtp",
        "glm4_moe_lite_mtp", "glm_ocr_mtp", "ernie_mtp", "nemotron_h_mtp", "exaone_moe_mtp",
        "exaone4_5_mtp", "qwen3_next_mtp", "qwen4_exp_mtp", "qwen3_5_mtp", "longcat_flash_mtp",
        "bailing_hybrid_v3_mtp", "minimax_m3_mtp", "bailing_hybrid_mtp", "mtp", "kimi_k3_mtp",
        "pangu_ultra_moe_mtp", "step3p5_mtp", "hy_v3_mtp", "hy_v4_mtp", "gemma4_mtp",
        "inkling_mtp", "glm5_next_mtp",
    }
)  # fmt: skip
MODEL_FREE = frozenset({"ngram", "ngram_gpu", "suffix", "custom_class", "extract_hidden_states"})
"""Methods without a draft checkpoint."""
FROM_TARGET = frozenset({"mtp", "dspark"})
"""Methods whose draft may come inside the target's checkpoint."""
BLOCK_METHODS = frozenset({"dflash", "dspark"})
METHODS = MODEL_FREE | FROM_TARGET | MTP_METHODS | BLOCK_METHODS
METHODS |= {"eagle", "eagle3", "medusa", "mlp_speculator", "draft_model"}
NAMED_IN_PATH = (
    ("eagle-", "eagle"),
    ("eagle3", "eagle3"),
    ("dflash", "dflash"),
    ("dspark", "dspark"),
)


def resolve_method(settings: Mapping[str, Any], kind: str | None) -> str:
    """Return the method that vLLM runs: the given one, else a guess from the draft's path, else
    draft_model."""
    method_setting = settings.get("method")
    model = settings.get("model")
    if isinstance(method_setting, str):
        return "mtp" if method_setting in MTP_METHODS else method_setting.strip("[]")
    if model in ("ngram", "[ngram]"):
        return "ngram"
    if isinstance(model, str) and is_dotted_path(model):
        return "custom_class"
    for mark, method in NAMED_IN_PATH:
        if isinstance(model, str) and mark in model.lower():
            return method
    return kind if kind in ("medusa", "mtp", "dspark") else "draft_model"


def is_dotted_path(model: str) -> bool:
    parts = model.split(".")
    return "/" not in model and len(parts) > 1 and all(part.isidentifier() for part in parts)


def detect_kind(checkpoint: Checkpoint) -> str | None:
    """Detect the method from the files, by config.json first and by tensors second."""
    if TYPE in checkpoint.config:
        return METHOD_OF_TYPE.get(str(checkpoint.config[TYPE]))
    return detect_kind_by_config(checkpoint.config) or detect_kind_by_tensors(checkpoint)


def detect_kind_by_config(config: Mapping[str, Any]) -> str | None:
    names = config.get("architectures")
    name = str(names[0]).lower() if isinstance(names, list) and names else ""
    if name.startswith("eagle") and not name.startswith("eagle3"):
        return "eagle"
    for mark, kind in (("eagle3", "eagle3"), ("peagle", "eagle3"), ("dflash", "dflash"),
                       ("dspark", "dspark"), ("medusa", "medusa"), ("mtp", "mtp")):  # fmt: skip
        if mark in name:
            return kind
    model_type = config.get("model_type")
    if model_type in MTP_METHODS:
        return "mtp"
    if model_type in ("medusa", "mlp_speculator"):
        return str(model_type)
    if get_mapping(config, "dflash_config"):
        return "dflash"
    if "draft_vocab_size" in config or "target_hidden_size" in config:
        return "eagle3"
    return "eagle3" if get_mapping(config, "eagle_config") else None


def detect_kind_by_tensors(checkpoint: Checkpoint) -> str | None:
    tensors = checkpoint.tensors
    names = {name.removeprefix("model.") for name in tensors}
    if any("hidden_norm" in name or name.startswith("midlayer.") for name in names):
        return "eagle3"
    if "fc.weight" in names:
        return "eagle"
    if any(name.startswith("model.layers.") for name in tensors):
        return "draft_model"
    return None


NAMES = {
    "eagle": "EAGLE", "eagle3": "EAGLE 3", "eagle3.1": "EAGLE 3.1", "mtp": "MTP",
    "medusa": "Medusa", "ngram": "n-gram lookup", "ngram_gpu": "n-gram lookup on the GPU",
    "suffix": "suffix decoding", "draft_model": "draft model", "dflash": "DFlash",
    "dspark": "DSpark", "mlp_speculator": "MLP speculator", "custom_class": "custom proposer",
    "extract_hidden_states": "hidden-state extraction",
}  # fmt: skip


def describe(case: InspectionCase) -> tuple[str, str, dict[str, str]]:
    """Return the common name of the method, the summary, and the facts."""
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
    return method, f"{name}: {text}" if text else name, dict(list_facts(case, eagle3))


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
        minimum = case.settings.get("prompt_lookup_min", 5)
        return f"repeats of {minimum} to {case.settings.get('prompt_lookup_max', minimum)} tokens"
    if case.checkpoint is None and case.settings.get("model") and case.method != "custom_class":
        return f"{case.settings['model']}, not inspected"
    return str(case.settings.get("model") or "no draft of its own")


def list_facts(case: InspectionCase, eagle3: bool) -> Iterator[tuple[str, str]]:
    yield "method for vLLM", case.method
    yield "depth", find_method({**case.settings, "method": case.method}).summary
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
