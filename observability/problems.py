"""The problems of a gateway, as sentences, from the state that it has anyway.

Problems that need rates or a baseline are alerts of ``deploy/prometheus/rules``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from eaglegate.engine.totals import WORTHLESS, Totals
from eaglegate.observability.telemetry import Telemetry

MIN_VERIFY_STEPS = 200
"""Verify steps needed for a judgement."""
UNDRAFTED_STEPS = 2000
"""Steps without a draft after which the depth planner is stuck. It tries one in at most a few
hundred."""


def find_problem(totals: Totals) -> str | None:
    """Return a sentence if speculation cannot be worth its cost, else None. It needs no baseline,
    because a draft that was always wrong has none.

    There is no problem if most decode steps have no drafts, because the planner already reacted.
    """
    length = totals.acceptance_length
    if length is None or totals.verify_steps < MIN_VERIFY_STEPS or length >= WORTHLESS:
        return None
    if totals.off > totals.verify_steps:
        return None
    return (
        f"Acceptance length is {length:.2f} over {totals.verify_steps} verify steps: hardly any "
        "draft token is right, so speculation costs time. Check that the draft was made for this "
        "model and chat template (eaglegate check); workers on a CPU need "
        "--worker-extension-cls eaglegate.engine.DepthWorker (docs/workers.md)."
    )


def _find_stuck_planner(planner: Mapping[str, Any]) -> str | None:
    """Return a sentence if the depth planner has tried no draft for long, and may."""
    steps = planner.get("steps_since_draft", 0)
    if steps < UNDRAFTED_STEPS or planner["frozen"] is not None:
        return None
    return (
        f"The depth planner has tried no draft for {steps} steps. `planner` of "
        "/admin/speculation has the times that it believes (docs/planner.md); requests with a "
        "`speculation_depth` of their own show the real ones."
    )


def list_problems(telemetry: Telemetry, totals: Totals) -> Iterator[str]:
    """Yield the problems of this moment. ``totals`` covers the sliding window."""
    if problem := find_problem(totals):
        yield problem
    if problem := _find_stuck_planner(telemetry.scope.planner()):
        yield problem
    for engine in sorted(telemetry.down):
        yield f"Engine {engine} is down."
    for hold in telemetry.draft_holds:
        yield (
            f"Drafts of {hold.method} killed the engine at depth {hold.depth}, which is held off: "
            "eaglegate audit release --drafts (docs/audit.md)."
        )
    for part in telemetry.parts:
        yield from part.list_problems()
    if telemetry.scope.process().get("memory_shedding"):
        yield "New requests are refused because memory is low."
    for worker in telemetry.scope.workers():
        if worker.counted is not None and (problem := find_problem(worker.counted)):
            yield f"{worker.name}: {problem}"
        for finding in worker.findings:
            yield f"{worker.name}: {finding.text}"
