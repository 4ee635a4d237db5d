"""Texts of ``eaglegate top``: figures, states and tables, independent of the terminal.

Definitions are in docs/metrics.md. A dash means that there is no data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from eaglegate.server.cli.harmless import make_line_harmless

Row = Mapping[str, Any]
NONE = "–"
MAX_ROWS = 10
"""Rows shown of each table."""
LISTS = {
    "slowest": "requests, slowest first",
    "recent": "requests, newest first",
    "worst_accepted": "requests, worst accepted first",
    "failed": "requests that failed or were refused",
}
"""Lists in ``GET /debug/requests`` and their titles."""


@dataclass(frozen=True)
class GatewayReading:
    """The state of a gateway at one moment."""

    speculation: Row
    """Answer of ``GET /debug/speculation``."""
    requests: Mapping[str, Sequence[Row]]
    """Answer of ``GET /debug/requests``; empty if the gateway keeps no requests."""


@dataclass(frozen=True)
class Figure:
    """A large number with its name and a note."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class State:
    """One line about a component of the gateway."""

    name: str
    text: str
    is_bad: bool = False


def format_number(value: float | None, digits: int = 2) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def format_share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.{1 if value < 0.1 else 0}f} %"


def format_time(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    if seconds >= 10:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.{2 if seconds < 0.01 else 1 if seconds < 0.1 else 0}f} ms"


def format_count(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.1f}M"
    return f"{value / 1e3:.1f}k" if value >= 1e4 else f"{value:.0f}"


def format_drift(ratio: float | None) -> str:
    """Format acceptance against its baseline."""
    return NONE if ratio is None else f"{round(100 * (ratio - 1)):+d} %"


def list_figures(reading: GatewayReading) -> list[Figure]:
    """Return the main numbers: speed, acceptance, fallback, TPOT, TTFT, gain."""
    report = reading.speculation
    all_ = report["all"]
    length = all_["acceptance_length"]
    speed = report["tokens_per_s"]
    planner = report["planner"]
    gain = planner and planner["gain"]
    return [
        Figure(
            "throughput",
            f"{speed:.{1 if speed < 10 else 0}f} tok/s",
            f"{report['running']} running",
        ),
        Figure(
            "acceptance length",
            format_number(length),
            _describe_drift(length, format_drift(all_["against_baseline"])),
        ),
        Figure("fallback ratio", format_share(all_["fallback_ratio"]), "of decode steps"),
        Figure(
            "time per token",
            format_time(all_["tpot_s"]),
            f"{1 / all_['tpot_s']:.0f} tok/s a reader" if all_["tpot_s"] else "",
        ),
        Figure(
            "time to first token",
            format_time(all_["ttft_s"]),
            f"{format_count(all_['requests'])} requests, {all_['failed'] or 'none'} failed",
        ),
        Figure(
            "gain over no draft",
            NONE if gain is None else f"{gain:.2f}x",
            "no planner runs"
            if gain is None
            else f"estimated, last draft {planner['steps_since_draft']} steps ago",
        ),
    ]


def _describe_drift(length: float | None, drift: str) -> str:
    if length is None:
        return "no draft verified"
    return "no baseline yet" if drift == NONE else f"{drift} vs baseline"


def list_states(reading: GatewayReading, baseline: GatewayReading | None = None) -> list[State]:
    """Return one line per component. Changes are relative to ``baseline``, an older reading."""
    report = reading.speculation
    states = [
        State("admission", _describe_admission(report["admission"])),
        State("planner", _describe_planner(report["planner"], baseline)),
        *(State("worker", *_describe_worker(worker)) for worker in report["workers"]),
        *(State("feature", text) for text in report["headlines"]),
        *(State("problem", text, True) for text in report["problems"]),
    ]
    return [State(s.name, make_line_harmless(s.text), s.is_bad) for s in states]


def _describe_admission(queue: Row | None) -> str:
    if queue is None:
        return NONE
    limits = queue["limits"]
    units = {
        "running": "sequences in the engine",
        "queued": "requests queued",
        "queued_tokens": "prompt tokens queued",
    }
    return "; ".join(
        f"{format_count(queue[name])} of {format_count(limits[name])} {unit}"
        for name, unit in units.items()
    )


def _describe_planner(planner: Row | None, baseline: GatewayReading | None) -> str:
    if not planner:
        return "no depth planner runs; every request has the engine's depth"
    old_planner = baseline and baseline.speculation["planner"]
    steps, period = planner["steps_by_depth"], "since the start"
    if old_planner:
        differences = [
            now - previous
            for now, previous in zip(steps, old_planner["steps_by_depth"], strict=False)
        ]
        if sum(differences) > 0:
            steps, period = differences, "in the last seconds"
    total = sum(steps) or 1
    depths = "  ".join(f"{depth}: {format_share(n / total)}" for depth, n in enumerate(steps) if n)
    frozen = planner["frozen"]
    mode = "choosing" if frozen is None else f"held at depth {frozen}"
    reasons = ", ".join(
        f"{reason} {format_count(n)}" for reason, n in planner["steps_by_reason"].items() if n
    )
    return f"{mode}; steps by depth {period}  {depths or NONE}; reasons {reasons or NONE}"


def _describe_worker(worker: Row) -> tuple[str, bool]:
    length = worker["acceptance_length"]
    words = [
        f"{worker['name']} {worker['state']}",
        worker["reason"],
        f"{worker['running']} running, {format_count(sum(worker['requests'].values()))} served",
        f"{worker['retried'] + worker['continued']} moved away",
        "" if length is None else f"acceptance {length:.2f}",
    ]
    return "; ".join(word for word in words if word), worker["state"] != "serving"


Columns = Mapping[str, Callable[[Row], str]]
SLICE_COLUMNS: Columns = {
    "requests": lambda row: format_count(row["requests"]),
    "tokens": lambda row: format_count(row["tokens"]),
    "acceptance": lambda row: format_number(row["acceptance_length"]),
    "drift": lambda row: format_drift(row["against_baseline"]),
    "fallback": lambda row: format_share(row["fallback_ratio"]),
    "TPOT": lambda row: format_time(row["tpot_s"]),
    "TTFT": lambda row: format_time(row["ttft_s"]),
    "failed": lambda row: format_count(row["failed"]),
}


def _format_slices(reading: GatewayReading, kind: str) -> Iterator[str]:
    """Yield the slices of one kind that had traffic, the largest first."""
    slices = reading.speculation["slices"][kind]
    rows = [
        row | {"name": name} for name, row in slices.items() if row["requests"] or row["tokens"]
    ]
    rows.sort(key=lambda row: -row["tokens"])
    title = f"slices by {kind}, last {reading.speculation['window_s'] / 60:.0f} minutes"
    return _format_table(title, {kind: lambda row: row["name"] or NONE, **SLICE_COLUMNS}, rows)


REQUEST_COLUMNS: Columns = {
    "time": lambda row: f"{datetime.fromisoformat(row['at']).astimezone():%H:%M:%S}",
    "wall": lambda row: format_time(row["wall_ms"] / 1000),
    "TTFT": lambda row: format_time(None if row.get("ttft_ms") is None else row["ttft_ms"] / 1000),
    "tokens": lambda row: (
        NONE
        if row.get("completion_tokens") is None
        else f"{row['prompt_tokens']} + {row['completion_tokens']}"
    ),
    "acceptance": lambda row: format_number(row.get("acceptance_length")),
    "outcome": lambda row: row.get("code") or row["outcome"],
    "id": lambda row: row["id"],
}


def format_plain(reading: GatewayReading, baseline: GatewayReading | None = None) -> Iterator[str]:
    """Yield everything as plain lines."""
    engines = reading.speculation["engines"].values()
    models = sorted({f"{engine['model']}: {engine['summary']}" for engine in engines})
    yield f"eaglegate {reading.speculation['version']}  {make_line_harmless('; '.join(models))}"
    yield ""
    for figure in list_figures(reading):
        yield f"{figure.name:20} {figure.value:>12}  {figure.note}".rstrip()
    yield ""
    for state in list_states(reading, baseline):
        yield f"{state.name:10} {'! ' * state.is_bad}{state.text}"
    for kind in sorted(reading.speculation["slices"], key=lambda kind: kind != "workload"):
        yield from _format_slices(reading, kind)
    for name, title in LISTS.items():
        yield from _format_table(title, REQUEST_COLUMNS, reading.requests.get(name, ()))


def _format_table(title: str, columns: Columns, rows: Sequence[Row]) -> Iterator[str]:
    """Yield rows of text under columns, if there are rows."""
    if not rows:
        return
    yield ""
    yield title
    texts = [[make_line_harmless(str(read(row))) for read in columns.values()] for row in rows]
    lines = [[*columns], *texts[:MAX_ROWS]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield ("  " + "  ".join(cells)).rstrip()
