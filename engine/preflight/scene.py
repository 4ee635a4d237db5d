"""What the checks look at: the plan, the machine, and what of the model is here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from engine.machine import Machine
from engine.preflight.plan import Plan
from engine.speculation.inspection import DraftReport, inspect_draft
from engine.speculation.inspection.checkpoint import (
    Checkpoint,
    NotHere,
    NotLooked,
    locate,
    open_model,
    read_config,
)
from engine.speculation.inspection.safetensors_header import BadWeights
from engine.speculation.inspection.target import TEXT_PARTS, Target, target_from


@dataclass(frozen=True, slots=True)
class Found:
    """What of the target is on this machine."""

    path: Path | None = None
    target: Target | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    problem: str | None = None
    unread: str | None = None
    """Why it was not looked at, though it may be here."""

    @property
    def downloaded(self) -> bool:
        return any(one is not None for one in (self.checkpoint, self.problem, self.unread))


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything a check looks at."""

    plan: Plan
    machine: Machine
    found: Found
    draft: DraftReport | None
    draft_bytes: int
    hub: Callable[[], str | None]


def scene_of(plan: Plan, machine: Machine, hub: Callable[[], str | None]) -> Scene:
    found = find(plan)
    return Scene(plan, machine, found, inspect_plan(plan, found), size_of_draft(plan), cache(hub))


def find(plan: Plan) -> Found:
    try:
        path = locate(plan.model, plan.revision)
        raw = overlaid(read_config(path), plan.hf_overrides)
    except NotHere:
        return Found()
    except NotLooked as reason:
        return Found(unread=str(reason))
    except BadWeights as fault:
        return Found(problem=f"{fault.found}; {fault.advice}")
    target = target_from(raw, str(path))
    try:
        return Found(path, target, raw, open_model(plan.model, plan.revision))
    except NotHere:
        return Found(path, target, raw)
    except BadWeights as fault:
        dummy = plan.load_format == "dummy"
        return Found(path, target, raw, problem=None if dummy else f"{fault.found}; {fault.advice}")


def overlaid(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    """As vLLM does: the text model's part is laid over, anything else takes the old one's place."""
    out = dict(config)
    for name, value in overrides.items():
        under = out.get(name)
        both = name in TEXT_PARTS and isinstance(value, Mapping) and isinstance(under, Mapping)
        out[name] = overlaid(under, value) if both else value  # type: ignore[arg-type]
    return out


def inspect_plan(plan: Plan, found: Found) -> DraftReport | None:
    if plan.speculative_config is None:
        return None
    return inspect_draft(
        plan.model,
        plan.speculative_config,
        tensor_parallel_size=plan.tensor_parallel_size,
        max_model_len=plan.max_model_len,
        target_config=found.raw or None,
    )


def size_of_draft(plan: Plan) -> int:
    name = (plan.speculative_config or {}).get("model")
    try:
        return open_model(name).num_bytes if isinstance(name, str) else 0
    except (NotLooked, BadWeights):
        return 0
