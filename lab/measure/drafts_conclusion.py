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


def conclude_drafts(results: Mapping[str, Any]) -> Conclusion:
    """Compare every draft with the first, and name the fastest draft and depth if costs are known.

    ``results`` is the result of ``drafts_command.summarise``.
    """
    verdicts = [Verdict(slices[ALL]["verdict"]) for slices in results["against"]["drafts"].values()]
    verdict = next((verdict for verdict in ORDER if verdict in verdicts), Verdict.UNKNOWN)
    lines = [*_compare_with_first(results), *_name_fastest(results)]
    return Conclusion(
        verdict, tuple(lines or _list_lengths(results) or ["No draft can be compared"])
    )


def _compare_with_first(results: Mapping[str, Any]) -> Iterator[str]:
    depth = results["against"]["depth"]
    for label, slices in results["against"]["drafts"].items():
        row = slices[ALL]
        ratio = format_ratio(row["ratio"])
        reason = f"{ratio} tokens per step at K = {depth}" if ratio else row["reason"]
        yield f"{label} against {results['against']['base']}: {row['verdict']} ({reason})"


def _list_lengths(results: Mapping[str, Any]) -> list[str]:
    depth = results["against"]["depth"]
    return [
        f"{label}: {format_estimate(draft['slices'][ALL][depth])} tokens per step at K = {depth}"
        for label, draft in results["drafts"].items()
        if not draft["refused"]
    ]


def _name_fastest(results: Mapping[str, Any]) -> Iterator[str]:
    times = [
        (time, f"{label} at K = {depth}")
        for label, draft in results["drafts"].items()
        for depth, time in draft.get("time_per_token_ms", {}).items()
        if time is not None
    ]
    if not times:
        return
    time, name = min(times, key=lambda item: item[0].value)
    batch = f"with {results['batch']:g} sequences at a time"
    gain = results["plain_ms"] and compare_with_plain(time, results["plain_ms"])
    if gain and gain.value <= 1:
        yield f"No draft is predicted to pay {batch}: the best, {name}, is {_say_gain(gain)}"
        return
    gain_text = f", {_say_gain(gain)}" if gain else ""
    yield f"Fastest {batch}: {name}, {format_estimate(time)} ms per token{gain_text} (predicted)"


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
