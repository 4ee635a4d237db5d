"""The alerts of ``deploy/prometheus/rules`` that would fire now, judged by the process's own
history.

A process sees only itself and cannot report that it is down. Time spans are whole slots of five
minutes plus the current, unfinished slot. A rule's ``for`` is reported but not waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eaglegate.observability.history import (
    SLOT_S,
    WHOLE,
    DayHistory,
    Slot,
    sum_counts,
    sum_slices,
)
from eaglegate.observability.metrics.engine import summarize_planner
from eaglegate.observability.telemetry import Telemetry
from eaglegate.observability.windows import WORKLOAD

MINUTES_15, HOUR, HOURS_6 = 900.0, 3600.0, 6 * 3600.0
FAST, SLOW = 0.144, 0.06
"""Shares of missed objectives that spend a month's budget in two and in five days."""
FEW_STEPS, FEW_CALLS, FEW_TOKENS = 200, 10, 2000
SHED = ("queue_full", "deadline_unreachable", "engine_overloaded", "unavailable")
USABLE = ("valid", "unchecked")
AWAY = ("open", "probing")

Finding = tuple[bool, float | None, str]
"""An alert's state as (condition holds, value, subject)."""


@dataclass(frozen=True, slots=True)
class AlertRule:
    """One alert, with the severity and the duration of its Prometheus rule."""

    name: str
    severity: str
    lasting: str
    """The rule's ``for``."""
    summary: str
    check: Callable[[Telemetry, DayHistory], Finding]


def list_alerts(telemetry: Telemetry) -> list[dict[str, Any]]:
    """Return every rule with its state, firing rules first."""
    rows = []
    for rule in RULES:
        holds, value, about = rule.check(telemetry, telemetry.history)
        row: dict[str, Any] = {"alert": rule.name, "severity": rule.severity, "for": rule.lasting}
        rows.append(row | {"holds": holds, "value": value, "about": about, "summary": rule.summary})
    return sorted(rows, key=lambda row: not row["holds"])


def _check_acceptance(_: Telemetry, history: DayHistory) -> Finding:
    """Compare each workload with itself in the six hours before the last quarter of an hour."""
    recent, earlier = history.select(MINUTES_15), history.select(HOURS_6, MINUTES_15)
    for name in _list_workloads(recent):
        now = sum_slices(recent, (WORKLOAD, name)).totals
        base = sum_slices(earlier, (WORKLOAD, name)).totals.acceptance_length
        length = now.acceptance_length
        if base is None or length is None or now.verify_steps <= FEW_STEPS:
            continue
        if length < 1 + 0.6 * (base - 1):
            return True, length, f"{name}: {length:.2f}, {base:.2f} before"
    return False, None, ""


def _check_fallback(_: Telemetry, history: DayHistory) -> Finding:
    recent = history.select(MINUTES_15)
    for name in _list_workloads(recent):
        totals = sum_slices(recent, (WORKLOAD, name)).totals
        drafting = totals.decode_steps - totals.off
        ratio = (totals.rejected + totals.undrafted) / drafting if drafting else 0.0
        if ratio > 0.7 and totals.decode_steps > FEW_STEPS:
            return True, ratio, name
    return False, None, ""


def _check_planner(telemetry: Telemetry, _: DayHistory) -> Finding:
    """Check the planner's calibration since its start, because it keeps no history."""
    planner = summarize_planner(telemetry.planner)
    if planner is None or planner["committed_tokens"] <= FEW_TOKENS:
        return False, None, ""
    tokens, seconds = planner["token_calibration"], planner["time_calibration"]
    wrong = tokens is not None and not 0.8 <= tokens <= 1.25
    late = seconds is not None and not 0.67 <= seconds <= 1.5
    return wrong or late, tokens if wrong else seconds, "tokens" if wrong else "seconds"


def _burns(miss: str, of: str, spans: tuple[float, float], limit: float) -> Any:
    def check(_: Telemetry, history: DayHistory) -> Finding:
        shares = [_share(history.select(span), miss, of) for span in spans]
        known = [share for share in shares if share is not None]
        return len(known) == 2 and min(known) > limit, known[0] if known else None, ""

    return check


def _share(slots: list[Slot], miss: str, of: str) -> float | None:
    whole = sum(slot.objectives[of] for slot in slots)
    return sum(slot.objectives[miss] for slot in slots) / whole if whole else None


def _check_tools(_: Telemetry, history: DayHistory) -> Finding:
    calls = sum_counts(history.select(MINUTES_15), "tools")
    if calls.total() <= FEW_CALLS:
        return False, None, ""
    share = 1 - sum(calls[name] for name in USABLE) / calls.total()
    return share > 0.1, share, ", ".join(f"{name} {count}" for name, count in calls.items())


def _check_shedding(_: Telemetry, history: DayHistory) -> Finding:
    slots = history.select(SLOT_S)
    refused, served = sum_counts(slots, "refused"), sum_counts(slots, "ended").total()
    shed, came = sum(refused[code] for code in SHED), refused.total() + served
    return bool(came) and shed / came > 0.05, shed / came if came else None, ""


def _check_interruptions(_: Telemetry, history: DayHistory) -> Finding:
    slots = history.select(MINUTES_15)
    ended = sum_slices(slots, WHOLE).requests
    share = sum(slot.objectives["interrupted"] for slot in slots) / ended if ended else None
    return share is not None and share > 0.02, share, ""


def _check_restarts(_: Telemetry, history: DayHistory) -> Finding:
    starts = history.events_since(HOUR, "engine started")
    return starts > 1, float(starts), f"{starts} starts in an hour"


def _check_engines(_: Telemetry, history: DayHistory) -> Finding:
    return bool(history.down_since), None, ", ".join(history.down_since)


def _check_audits(telemetry: Telemetry, _: DayHistory) -> Finding:
    """Check for a held workload, and for a violation in an audit of the last 15 minutes."""
    found = telemetry.scope.audits()
    if found is None:
        return False, None, ""
    violated = {
        record["workload"]
        for record in found["recent"]
        if record["outcome"] == "violated" and record["at"] > time.time() - MINUTES_15
    }
    names = sorted({*found["holds"], *violated})
    return bool(names), float(len(names)), ", ".join(names)


def _check_doctor(telemetry: Telemetry, _: DayHistory) -> Finding:
    """Check for a cause of fallen acceptance that the doctor could not cure in the last hour."""
    found = telemetry.scope.doctor()
    if found is None:
        return False, None, ""
    causes = sorted(
        {
            str(one["cause"])
            for one in found["diagnoses"]
            if one["outcome"] in ("not cured", "not treated") and one["at"] > time.time() - HOUR
        }
    )
    return bool(causes), float(len(causes)), ", ".join(causes)


def _check_draft_holds(telemetry: Telemetry, _: DayHistory) -> Finding:
    """Check for a depth that is held because it killed engines."""
    names = [f"{hold.method}, depth {hold.depth}" for hold in telemetry.draft_holds]
    return bool(names), float(len(names)), "; ".join(names)


def _check_memory(telemetry: Telemetry, _: DayHistory) -> Finding:
    return bool(telemetry.scope.process().get("memory_shedding")), None, ""


def _check_workers(telemetry: Telemetry, _: DayHistory) -> Finding:
    away = [worker.name for worker in telemetry.scope.workers() if worker.state.value in AWAY]
    return bool(away), float(len(away)), ", ".join(away)


def _list_workloads(slots: list[Slot]) -> Iterator[str]:
    names: Mapping[str, None] = {
        name: None for slot in slots for kind, name in slot.slices if kind == WORKLOAD
    }
    yield from names


FIRST_TOKEN, TOKEN = ("late", "first"), ("slow", "choices")
RULES = (
    AlertRule(
        "EaglegateAnswerViolated", "page", "0m",
        "An audit found answers that are not the target's", _check_audits,
    ),
    AlertRule(
        "EaglegateDraftHeldOff", "page", "0m",
        "Drafts killed engines, and their depth is held off", _check_draft_holds,
    ),
    AlertRule(
        "EaglegateAcceptanceNotCured", "ticket", "0m",
        "Acceptance fell by a fault that the doctor has not cured", _check_doctor,
    ),
    AlertRule(
        "EaglegateAcceptanceCollapsed", "ticket", "10m",
        "Drafts gain under 60 % of the usual tokens", _check_acceptance,
    ),
    AlertRule(
        "EaglegateFallbackHigh", "ticket", "15m",
        "Most decode steps gain nothing from the draft", _check_fallback,
    ),
    AlertRule(
        "EaglegatePlannerMiscalibrated", "ticket", "15m",
        "The depth planner's expectations differ from the results", _check_planner,
    ),
    AlertRule(
        "EaglegateTTFTBurnFast", "page", "2m",
        "First tokens are late: the month's budget would last two days",
        _burns(*FIRST_TOKEN, (SLOT_S, HOUR), FAST),
    ),
    AlertRule(
        "EaglegateTTFTBurnSlow", "ticket", "15m",
        "First tokens are late more often than the objective allows",
        _burns(*FIRST_TOKEN, (HOUR / 2, HOURS_6), SLOW),
    ),
    AlertRule(
        "EaglegateTPOTBurnFast", "page", "2m",
        "Tokens come slowly: the month's budget would last two days",
        _burns(*TOKEN, (SLOT_S, HOUR), FAST),
    ),
    AlertRule(
        "EaglegateTPOTBurnSlow", "ticket", "15m",
        "Tokens come slowly more often than the objective allows",
        _burns(*TOKEN, (HOUR / 2, HOURS_6), SLOW),
    ),
    AlertRule(
        "EaglegateToolCallsFail", "page", "10m", "Tool calls are unusable", _check_tools
    ),
    AlertRule(
        "EaglegateShedding", "page", "5m",
        "Requests are refused because the engine is full", _check_shedding,
    ),
    AlertRule(
        "EaglegateStreamsInterrupted", "page", "5m",
        "Answers were cut off through no fault of the client", _check_interruptions,
    ),
    AlertRule(
        "EaglegateEngineRestarting", "page", "0m",
        "The engine restarts repeatedly", _check_restarts,
    ),
    AlertRule("EaglegateEngineDown", "page", "2m", "The engine is down", _check_engines),
    AlertRule(
        "EaglegateShedsMemory", "page", "1m",
        "The gateway refuses new work because memory is low", _check_memory,
    ),
    AlertRule(
        "EaglegateWorkerAway", "ticket", "5m", "A worker does not serve", _check_workers
    ),
)  # fmt: skip
ELSEWHERE = {
    "EaglegateCaptureDrops": "it needs rates of the capture's counters",
    "EaglegateDown": "a process cannot say that it is down",
}
"""Alerts that the process cannot judge, with the reason."""
