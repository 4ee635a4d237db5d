"""From files and the machine's facts alone: nothing is loaded, nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.machine import Machine, check_hub
from engine.preflight.checks import OBSTACLES, REMARKS
from engine.preflight.facts import facts
from engine.preflight.plan import EnginePlan
from engine.preflight.scene import scene_of
from engine.speculation.inspection import SpeculationReport


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """``obstacles`` keep it from starting here; ``remarks`` do not. Both are sentences."""

    facts: Mapping[str, str]
    draft: SpeculationReport | None
    obstacles: tuple[str, ...]
    remarks: tuple[str, ...] = ()


def preflight(
    plan: EnginePlan, machine: Machine, hub: Callable[[], str | None] = check_hub
) -> PreflightReport:
    scene = scene_of(plan, machine, hub)
    return PreflightReport(
        facts=dict(facts(scene)),
        draft=scene.draft,
        obstacles=tuple(text for check in OBSTACLES for text in check(scene)),
        remarks=tuple(text for check in REMARKS for text in check(scene)),
    )
