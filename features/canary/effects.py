"""A canary's evidence in words: ``TPOT 25 % slower (10 % to 40 % slower)``.

Evidence is oriented: above 0 the candidate is better. It is logarithmic for metrics compared by
ratio. The words describe the change of the metric itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Wording:
    """Name of a metric, and words for its rise and fall."""

    name: str
    rose: str
    fell: str
    higher_is_better: bool = False
    is_ratio: bool = False


WORDINGS = {
    "acceptance": Wording("acceptance length", "longer", "shorter", True, is_ratio=True),
    "tpot": Wording("TPOT", "slower", "faster", is_ratio=True),
    "fallback": Wording("fallback", "points more", "points less"),
    "failed": Wording("failed requests", "points more", "points fewer"),
    "tool_failed": Wording("failed tool calls", "points more", "points fewer"),
}


def describe_effect(evidence: Mapping[str, Any]) -> str:
    """Describe one row of ``evidence`` in ``GET /admin/canary``."""
    base, _, workload = evidence["metric"].partition(":")
    wording = WORDINGS.get(base) or Wording(base, "higher", "lower", True)
    name = f"{wording.name} of {workload}" if workload else wording.name
    if not evidence["blocks"]:
        return f"{name}: no data yet"
    ends = [evidence[end] for end in ("low", "high")]
    text = f"{name} {_say(wording, evidence['mean'])}"
    if None in ends:
        count = evidence["blocks"]
        return f"{text} (too few blocks for an interval: {count})"
    low, high = (_say(wording, end) for end in sorted(ends, key=lambda end: _change(wording, end)))
    return f"{text} ({low} to {high})"


def _change(wording: Wording, value: float) -> float:
    """Return the metric's own change, in per cent of the control or in percentage points."""
    oriented_value = value if wording.higher_is_better else -value
    return 100 * (math.expm1(oriented_value) if wording.is_ratio else oriented_value)


def _say(wording: Wording, value: float) -> str:
    change = _change(wording, value)
    amount = f"{abs(change):.0f} %" if wording.is_ratio else f"{abs(change):.1f}"
    if not float(amount.removesuffix(" %")):
        return "unchanged"
    return f"{amount} {wording.rose if change > 0 else wording.fell}"
