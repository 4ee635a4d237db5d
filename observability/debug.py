"""``GET /debug/speculation``: what every slice does now, against what it used to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.fleet.status import WorkerStatus
from engine.speculation.accounting import Totals
from engine.types import EngineInfo
from observability.slices import ALL, KINDS
from observability.telemetry import Telemetry
from observability.window import SlidingWindow, WindowSums

MIN_AT_RISK = 10
"""Verify steps that must have reached a position before it takes part in the slope."""

Row = dict[str, Any]


def summarize_speculation(telemetry: Telemetry) -> Row:
    """Everything the page at ``/`` shows. Null means no data, never zero."""
    telemetry.settle()
    now = telemetry.clock()
    slices = {
        kind: {name: summarize_window(window, now) for name, window in telemetry.book.of_kind(kind)}
        for kind in KINDS
    }
    whole = slices.pop(ALL).get("", summarize_window(_make_empty_window(telemetry), now))
    return {
        "window_s": telemetry.settings.window_s,
        "running": telemetry.num_running,
        "tokens_per_s": compute_throughput(telemetry, now),
        "engines": {lane: _describe_engine(info) for lane, info in telemetry.engines.items()},
        "workers": [_describe_worker(worker) for worker in telemetry.list_workers()],
        "all": whole,
        "slices": slices,
        "history": list_history(telemetry, now),
    }


def summarize_window(window: SlidingWindow, now: float) -> Row:
    """One slice over the window. ``against_baseline`` is its acceptance length / its baseline's."""
    sums = window.sums(now)
    totals = sums.totals
    length, baseline = totals.acceptance_length, window.baseline(now)
    return {
        "requests": sums.requests,
        "tokens": totals.tokens,
        "verify_steps": totals.verify_steps,
        "acceptance_length": length,
        "baseline": baseline,
        "against_baseline": length / baseline if length and baseline else None,
        "acceptance_per_position": totals.acceptance_per_position,
        "conditional_acceptance": totals.conditional_acceptance,
        "conditional_slope": compute_conditional_slope(totals),
        "fallback_ratio": totals.fallback_ratio,
        "fallback_by_reason": totals.fallback_by_reason,
        "tpot_s": sums.tpot,
    }


def list_history(telemetry: Telemetry, now: float) -> list[Row]:
    """The window's buckets, oldest first; the last one is still filling."""
    return [
        _summarize_bucket(age, sums, window.bucket_s)
        for _, window in telemetry.book.of_kind(ALL)
        for age, sums in window.history(now)
    ]


def compute_throughput(telemetry: Telemetry, now: float) -> float:
    """Output tokens per second over the last two full buckets and the one still filling."""
    recent = [
        (window.bucket_s, sums.totals.tokens)
        for _, window in telemetry.book.of_kind(ALL)
        for age, sums in window.history(now)
        if age <= 2 * window.bucket_s
    ]
    if not recent:
        return 0.0
    bucket_s = recent[0][0]
    return sum(tokens for _, tokens in recent) / (2 * bucket_s + now % bucket_s)


def compute_conditional_slope(totals: Totals) -> float | None:
    """The least-squares slope of c_i over i; below 0, later positions are accepted less.

    A serving-side sign of attention drift, not a proof: the depth a request may use also thins
    out late positions, so each c_i is first divided by the share of steps that drafted on from
    position i-1 to i (1 when all requests have one depth). Absent with fewer than two positions
    that enough steps reached.
    """
    points = [
        (at, value)
        for at, (value, reached) in enumerate(_correct_for_depth(totals), 1)
        if reached >= MIN_AT_RISK
    ]
    return _fit_slope(points) if len(points) > 1 else None


def _correct_for_depth(totals: Totals) -> list[tuple[float, int]]:
    """For each position: c_i among steps that drafted it, and the steps that got that far."""
    reached = (totals.verify_steps, *totals.accepted_at)
    drafted = (totals.verify_steps, *totals.proposed_at)
    out = []
    for at, accepted in enumerate(totals.accepted_at):
        going_on = reached[at] * drafted[at + 1] / drafted[at] if drafted[at] else 0.0
        out.append((min(1.0, accepted / going_on) if going_on else 0.0, int(going_on)))
    return out


def _fit_slope(points: Sequence[tuple[float, float]]) -> float:
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    rise = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return rise / sum((x - mean_x) ** 2 for x, _ in points)


def _describe_engine(info: EngineInfo) -> Row:
    how = info.speculation
    return {
        "model": info.model,
        "method": how.method,
        "depth": how.depth,
        "draft": how.draft,
        "summary": how.summary,
        "worker": info.details.get("worker"),
    }


def _describe_worker(worker: WorkerStatus) -> Row:
    """``acceptance_length`` is over all the worker has done, for others, too."""
    counted = worker.counted
    return {
        "name": worker.name,
        "state": worker.state.value,
        "reason": worker.reason,
        "running": worker.running,
        "outstanding_tokens": round(worker.outstanding),
        "requests": worker.requests,
        "tokens": worker.tokens,
        "retried": worker.retried,
        "continued": worker.continued,
        "openings": worker.openings,
        "acceptance_length": None if counted is None else counted.acceptance_length,
    }


def _summarize_bucket(age: float, sums: WindowSums, bucket_s: float) -> Row:
    return {
        "age_s": age,
        "acceptance_length": sums.totals.acceptance_length,
        "fallback_ratio": sums.totals.fallback_ratio,
        "tpot_s": sums.tpot,
        "tokens_per_s": sums.totals.tokens / bucket_s,
    }


def _make_empty_window(telemetry: Telemetry) -> SlidingWindow:
    return SlidingWindow(telemetry.settings.window_s, telemetry.settings.baseline_half_life_s)
