"""The offline gate: the result a candidate needs on captured traffic before a canary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eaglegate.lab.improve.config import GateConfig

PARENT, CANDIDATE = "parent", "candidate"
"""Labels of the two drafts in the report of ``eaglegate drafts compare``."""


@dataclass(frozen=True, slots=True)
class SliceFinding:
    """Ratio of the candidate's tokens per step to its parent's, in one slice."""

    slice: str
    target: bool
    ratio: float | None
    low: float | None
    """Lower end of the interval; None with too few sessions."""
    high: float | None
    sessions: int
    passed: bool
    why: str


@dataclass(frozen=True, slots=True)
class GateFindings:
    """Decision of the gate, with its reason."""

    passed: bool
    reason: str
    slices: tuple[SliceFinding, ...] = ()


def judge_comparison(report: Mapping[str, Any], rules: GateConfig) -> GateFindings:
    """Require that every target slice is better and no other slice is below the margin."""
    for label in (CANDIDATE, PARENT):
        description = report["drafts"][label]
        if description["refused"]:
            reason = f"inspection refuses the {label}: {'; '.join(description['findings'][:2])}"
            return GateFindings(False, reason)
    pairs = report["against"]["drafts"][CANDIDATE]
    if missing := [name for name in rules.targets if name not in pairs]:
        reason = f"no judging answer is in slice '{missing[0]}'; slices: {', '.join(pairs)}"
        return GateFindings(False, reason)
    findings = tuple(judge_slice(name, pair["ratio"], rules) for name, pair in pairs.items())
    if failures := [finding for finding in findings if not finding.passed]:
        return GateFindings(False, f"{failures[0].slice}: {failures[0].why}", findings)
    target = next(finding for finding in findings if finding.target)
    reason = f"{target.slice}: {target.why}; no other slice is worse"
    return GateFindings(True, reason, findings)


def judge_slice(name: str, ratio: Mapping[str, Any] | None, rules: GateConfig) -> SliceFinding:
    target = name in rules.targets
    if ratio is None:
        return SliceFinding(name, target, None, None, None, 0, not target, "nothing to compare")
    value, low, high = ratio["value"], ratio["low"], ratio["high"]
    verdict, reason = _decide(target, value, low, high, rules.margin)
    return SliceFinding(name, target, value, low, high, ratio["clusters"], verdict, reason)


def _decide(
    target: bool, value: float, low: float | None, high: float | None, margin: float
) -> tuple[bool, str]:
    if low is None or high is None:
        if target:
            return False, "too few judging sessions for an interval"
        return value >= 1 - margin, f"{value - 1:+.1%} with too few sessions for an interval"
    span = f"{value - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})"
    if target and low <= 1:
        return False, f"{span} is not shown to be better"
    if low <= 1 - margin:
        phrase = "is worse than" if high < 1 - margin else "may be worse than"
        return False, f"{span} {phrase} the margin of {margin:.0%}"
    return True, span
