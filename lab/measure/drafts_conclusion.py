"""Conclusion of a comparison of drafts, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from eaglegate.lab.measure.drafts import ALL
from eaglegate.lab.measure.report import Conclusion, format_estimate, format_ratio
from eaglegate.lab.measure.statistics import Estimate, Verdict

ORDER = (Verdict.BETTER, Verdict.UNKNOWN, Verdict.SAME, Verdict.WORSE)
"""Order of verdicts. The first that any draft has is the conclusion's verdict."""


def conclude_drafts(found: Mapping[str, Any]) -> Conclusion:
    """Compare every draft with the first, and name the fastest draft and depth if costs are known.

    ``found`` is the result of ``drafts_command.summarise``.
    """
    verdicts = [Verdict(of[ALL]["verdict"]) for of in found["against"]["drafts"].values()]
    verdict = next((one for one in ORDER if one in verdicts), Verdict.UNKNOWN)
    lines = [*_compare_with_first(found), *_name_fastest(found)]
    return Conclusion(verdict, tuple(lines or _list_lengths(found) or ["No draft can be compared"]))


def _compare_with_first(found: Mapping[str, Any]) -> Iterator[str]:
    depth = found["against"]["depth"]
    for label, slices in found["against"]["drafts"].items():
        row = slices[ALL]
        ratio = format_ratio(row["ratio"])
        why = f"{ratio} tokens per step at K = {depth}" if ratio else row["reason"]
        yield f"{label} against {found['against']['base']}: {row['verdict']} ({why})"


def _list_lengths(found: Mapping[str, Any]) -> list[str]:
    depth = found["against"]["depth"]
    return [
        f"{label}: {format_estimate(one['slices'][ALL][depth])} tokens per step at K = {depth}"
        for label, one in found["drafts"].items()
        if not one["refused"]
    ]


def _name_fastest(found: Mapping[str, Any]) -> Iterator[str]:
    times = [
        (time, f"{label} at K = {depth}")
        for label, one in found["drafts"].items()
        for depth, time in one.get("time_per_token_ms", {}).items()
        if time is not None
    ]
    if not times:
        return
    time, name = min(times, key=lambda one: one[0].value)
    batch = f"with {found['batch']:g} sequences at a time"
    gain = found["plain_ms"] and compare_with_plain(time, found["plain_ms"])
    if gain and gain.value <= 1:
        yield f"No draft is predicted to pay {batch}: the best, {name}, is {_say_gain(gain)}"
        return
    said = f", {_say_gain(gain)}" if gain else ""
    yield f"Fastest {batch}: {name}, {format_estimate(time)} ms per token{said} (predicted)"


def _say_gain(gain: Estimate) -> str:
    return f"{format_ratio(gain) or f'about {gain.value:.2f}x'} over no speculation"


def compare_with_plain(time: Estimate, plain_ms: float) -> Estimate:
    """Return the ratio of speeds to steps without drafts, each of which yields one token."""
    low, high = time.low, time.high
    return replace(
        time,
        value=plain_ms / time.value,
        low=None if high is None else plain_ms / high,
        high=None if low is None else plain_ms / low,
    )
