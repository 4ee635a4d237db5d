"""Draft inspection: the kind of a draft and its fit to the target, from config.json and headers
only.

``inspect_draft`` loads nothing and takes under a second. A new rule is a function and a row of its
module's table (``*_rules.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eaglegate.engine.speculation.drafts.inspection import general_rules
from eaglegate.engine.speculation.drafts.inspection.case import (
    BLOCK_METHODS,
    MODEL_FREE,
    DraftFinding,
    InspectionCase,
    RuleCheck,
    Severity,
    SpeculationReport,
    describe,
    detect_kind,
    resolve_method,
)
from eaglegate.engine.speculation.drafts.inspection.checkpoint import (
    Checkpoint,
    NotInspectable,
    locate,
    open_model,
    read_config,
)
from eaglegate.engine.speculation.drafts.inspection.configs import (
    TargetConfig,
    read_draft,
    read_target,
)
from eaglegate.engine.speculation.drafts.inspection.speculators import get_int
from eaglegate.engine.speculation.drafts.inspection.weights import InvalidCheckpoint

__all__ = ["DraftFinding", "Severity", "SpeculationReport", "inspect_draft"]


def inspect_draft(
    target: Path | str,
    speculative_config: Mapping[str, Any],
    *,
    tensor_parallel_size: int = 1,
    max_model_len: int | None = None,
    target_config: Mapping[str, Any] | None = None,
) -> SpeculationReport:
    """Return the kind of speculation, and the findings on the draft's fit to the target.

    ``speculative_config`` is the value of vLLM's --speculative-config. A model given by hub id is
    looked up in the hub cache and never downloaded; ``target_config`` replaces a target's
    config.json that is elsewhere. Faults of files are findings and never raise.
    """
    findings: list[DraftFinding] = []
    settings = dict(speculative_config)
    target_to_serve = find_target(target, target_config)
    checkpoint = find_draft(settings, findings)
    kind = detect_kind(checkpoint) if checkpoint else None
    case = InspectionCase(
        settings=settings,
        method=resolve_method(settings, kind),
        tensor_parallel_size=tensor_parallel_size,
        max_model_len=max_model_len,
        target=target_to_serve,
        checkpoint=checkpoint,
        draft=read_draft(checkpoint.config if checkpoint else {}),
        kind=kind,
    )
    findings.extend(check_same_folder(case))
    for name, check in select_rules(case).items():
        findings.extend(DraftFinding(name, v.severity, v.found, v.advice) for v in check(case))
    return build_report(case, tuple(findings))


def find_target(target: Path | str, config: Mapping[str, Any] | None) -> TargetConfig | None:
    """Read the target's config; None if it cannot be read, because that is not a fault of the
    draft."""
    if config is not None:
        return read_target(config, str(target))
    try:
        path = locate(str(target))
        return read_target(read_config(path), str(path))
    except (NotInspectable, InvalidCheckpoint):
        return None


def find_draft(settings: Mapping[str, Any], findings: list[DraftFinding]) -> Checkpoint | None:
    name = settings.get("model")
    if not isinstance(name, str) or resolve_method(settings, None) in MODEL_FREE:
        return None
    revision = settings.get("revision")
    try:
        return open_model(name, revision if isinstance(revision, str) else None)
    except NotInspectable as reason:
        findings.append(
            DraftFinding(
                "not-inspected",
                Severity.WARNING,
                f"the draft's files were not inspected: {reason}",
                "have it as a local folder of safetensors and config.json to get it inspected",
            )
        )
    except InvalidCheckpoint as fault:
        findings.append(DraftFinding(fault.rule, Severity.ERROR, fault.found, fault.advice))
    return None


def select_rules(case: InspectionCase) -> dict[str, RuleCheck]:
    """Return the rules of the draft's method and format, which the first such draft loads."""
    rules = dict(general_rules.RULES)
    if case.checkpoint is None:
        return rules
    if case.draft.speculators:
        from eaglegate.engine.speculation.drafts.inspection import speculators_rules

        rules |= speculators_rules.RULES
        if case.kind is None:
            return rules
    if case.method == "eagle3" and case.kind == "eagle3":
        from eaglegate.engine.speculation.drafts.inspection import config_rules, tensor_rules

        rules |= config_rules.RULES | (tensor_rules.RULES if case.tensors else {})
    elif case.method in BLOCK_METHODS and case.kind in (case.method, None):
        from eaglegate.engine.speculation.drafts.inspection import block_rules

        rules |= block_rules.select(case)
    elif case.method == "medusa":
        from eaglegate.engine.speculation.drafts.inspection import medusa_rules

        rules |= medusa_rules.RULES
    return rules


def check_same_folder(case: InspectionCase) -> Iterator[DraftFinding]:
    if case.checkpoint is None or case.target is None or case.method in ("mtp", "dspark"):
        return
    if case.target.path and Path(case.target.path).resolve() == case.checkpoint.path.resolve():
        yield DraftFinding(
            "draft-is-target",
            Severity.ERROR,
            f"draft and target are the same folder, {case.checkpoint.path}",
            "name the draft's folder in --speculative-config",
        )


SHOWN = ("model", "method", "num_speculative_tokens")
"""Settings that the summary shows."""


def describe_other_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    parts = [f"{name} {value}" for name, value in settings.items() if name not in SHOWN]
    return {"other settings": ", ".join(parts)} if parts else {}


def build_report(case: InspectionCase, findings: tuple[DraftFinding, ...]) -> SpeculationReport:
    method, summary, facts = describe(case)
    model = case.settings.get("model")
    return SpeculationReport(
        method=method,
        summary=summary,
        depth=get_int(case.settings, "num_speculative_tokens"),
        draft=model if isinstance(model, str) else None,
        inspected=case.checkpoint is not None or case.method in MODEL_FREE,
        facts={**facts, **describe_other_settings(case.settings)},
        findings=findings,
    )
