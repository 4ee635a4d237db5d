"""Judgement of speculation without a baseline, because a draft that was always wrong has none."""

from __future__ import annotations

from eaglegate.engine.speculation.totals import WORTHLESS, Totals

MIN_VERIFY_STEPS = 200
"""Verify steps needed for a judgement."""


def find_problem(totals: Totals) -> str | None:
    """Return a sentence if speculation cannot be worth its cost, else None.

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
