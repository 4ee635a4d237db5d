"""Preflight: what an engine with these arguments would be, and what would keep it from starting.

It reads files and the facts of this machine alone: nothing is loaded, nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.machine import Machine, check_hub
from engine.preflight.checks import OBSTACLES, REMARKS
from engine.preflight.context import EnginePlan, list_facts, make_context, make_plan
from engine.speculation.inspection import SpeculationReport

__all__ = ["EnginePlan", "PreflightReport", "make_plan", "preflight"]


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
    scene = make_context(plan, machine, hub)
    return PreflightReport(
        facts=dict(list_facts(scene)),
        draft=scene.draft,
        obstacles=tuple(text for check in OBSTACLES for text in check(scene)),
        remarks=tuple(text for check in REMARKS for text in check(scene)),
    )
