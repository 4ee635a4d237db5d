"""What the checks look at: the plan, the machine, and what of the model is here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from engine.machine import Machine
from engine.preflight.plan import EnginePlan
from engine.speculation.inspection import SpeculationReport, inspect_draft
from engine.speculation.inspection.checkpoint import (
    Checkpoint,
    NotDownloaded,
    NotInspectable,
    locate,
    open_model,
    read_config,
)
from engine.speculation.inspection.safetensors_header import InvalidCheckpoint
from engine.speculation.inspection.target import TEXT_PARTS, TargetConfig, read_target


@dataclass(frozen=True, slots=True)
class LocalCheckpoint:
    """What of the target is on this machine."""

    path: Path | None = None
    target: TargetConfig | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    problem: str | None = None
    unread: str | None = None
    """Why it was not looked at, though it may be here."""

    @property
    def downloaded(self) -> bool:
        return any(one is not None for one in (self.checkpoint, self.problem, self.unread))


@dataclass(frozen=True, slots=True)
class PreflightContext:
    """Everything a check looks at."""

    plan: EnginePlan
    machine: Machine
    found: LocalCheckpoint
    draft: SpeculationReport | None
    draft_bytes: int
    hub: Callable[[], str | None]


def make_context(
    plan: EnginePlan, machine: Machine, hub: Callable[[], str | None]
) -> PreflightContext:
    found = find_checkpoint(plan)
    return PreflightContext(
        plan, machine, found, inspect_plan(plan, found), measure_draft(plan), cache(hub)
    )


def find_checkpoint(plan: EnginePlan) -> LocalCheckpoint:
    try:
        path = locate(plan.model, plan.revision)
        raw = overlay_config(read_config(path), plan.hf_overrides)
    except NotDownloaded:
        return LocalCheckpoint()
    except NotInspectable as reason:
        return LocalCheckpoint(unread=str(reason))
    except InvalidCheckpoint as fault:
        return LocalCheckpoint(problem=f"{fault.found}; {fault.advice}")
    target = read_target(raw, str(path))
    try:
        return LocalCheckpoint(path, target, raw, open_model(plan.model, plan.revision))
    except NotDownloaded:
        return LocalCheckpoint(path, target, raw)
    except InvalidCheckpoint as fault:
        dummy = plan.load_format == "dummy"
        return LocalCheckpoint(
            path, target, raw, problem=None if dummy else f"{fault.found}; {fault.advice}"
        )


def overlay_config(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    """As vLLM does: the text model's part is laid over, anything else takes the old one's place."""
    out = dict(config)
    for name, value in overrides.items():
        under = out.get(name)
        both = name in TEXT_PARTS and isinstance(value, Mapping) and isinstance(under, Mapping)
        out[name] = overlay_config(under, value) if both else value  # type: ignore[arg-type]
    return out


def inspect_plan(plan: EnginePlan, found: LocalCheckpoint) -> SpeculationReport | None:
    if plan.speculative_config is None:
        return None
    return inspect_draft(
        plan.model,
        plan.speculative_config,
        tensor_parallel_size=plan.tensor_parallel_size,
        max_model_len=plan.max_model_len,
        target_config=found.raw or None,
    )


def measure_draft(plan: EnginePlan) -> int:
    name = (plan.speculative_config or {}).get("model")
    try:
        return open_model(name).num_bytes if isinstance(name, str) else 0
    except (NotInspectable, InvalidCheckpoint):
        return 0
