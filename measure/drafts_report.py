"""The report of ``eaglegate drafts compare`` as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from measure.drafts import ALL
from measure.statistics import Estimate


def format_estimate(one: Estimate | None, digits: int = 3) -> str:
    if one is None:
        return "-"
    if one.low is None or one.high is None:
        return f"{one.value:.{digits}f}"
    return f"{one.value:.{digits}f} [{one.low:.{digits}f}, {one.high:.{digits}f}]"


def format_report(report: Mapping[str, Any]) -> str:
    """Tables for a terminal; report.json has the rest."""
    depths = report["depths"]
    shown = sorted({1, 3, 5, depths[-1]} & set(depths))
    fit = {label: one for label, one in report["drafts"].items() if not one["refused"]}
    lines = [
        f"{report['answers']} answers of {report['sessions']} sessions, "
        f"{report['left_out']} left out",
        "",
        "acceptance length",
        *_table(
            ["draft", "method", *(f"K = {k}" for k in shown)],
            [
                [label, one["method"], *(format_estimate(one["slices"][ALL][k]) for k in shown)]
                for label, one in fit.items()
            ],
        ),
    ]
    lines += [
        f"{label} is refused: {'; '.join(one['findings'])}"
        for label, one in report["drafts"].items()
        if one["refused"]
    ]
    deepest = depths[-1]
    for title, part in (("slice", "slices"), ("phase", "phases")):
        names = list(dict.fromkeys(name for one in fit.values() for name in one[part]))
        rows = [
            [name, *(format_estimate(one[part].get(name, {}).get(deepest)) for one in fit.values())]
            for name in names
        ]
        lines += ["", f"acceptance length by {title}, K = {deepest}", *_table([title, *fit], rows)]
    rows = [
        [
            str(at + 1),
            *(format_estimate(one["positions"][at]["conditional"]) for one in fit.values()),
        ]
        for at in range(deepest)
    ]
    lines += [
        "",
        "accepted of the drafts that reached the position",
        *_table(["position", *fit], rows),
    ]
    if report["cost_table"]:
        rows = [
            [str(k), *(format_estimate(one["time_per_token_ms"][k]) for one in fit.values())]
            for k in depths
        ]
        lines += [
            "",
            f"predicted ms per token ({report['cost_table']})",
            *_table(["K", *fit], rows),
        ]
    for label, slices in report["against"]["drafts"].items():
        rows = [
            [name, format_estimate(row["ratio"]), row["verdict"], row["reason"]]
            for name, row in slices.items()
        ]
        title = f"{label} against {report['against']['base']}, tokens per step, K = {deepest}"
        lines += ["", title, *_table(["slice", "ratio", "verdict", "reason"], rows)]
    if report["live"]:
        rows = [
            [
                row["draft"],
                str(row["depth"]),
                format_estimate(row["live"]),
                format_estimate(row["predicted"]),
            ]
            for row in report["live"]
        ]
        lines += ["", "as captured, and as predicted on the same answers"]
        lines += _table(["draft", "K", "live", "predicted"], rows)
    lines += ["", "attention drift by depth"]
    rows = [
        [label, name, *(f"{value:.3f}" if value < 10 else f"{value:.1f}" for value in curve)]
        for label, one in fit.items()
        for name, curve in one["drift"].items()
    ]
    return "\n".join([*lines, *_table(["draft", "measure", *map(str, depths)], rows)])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]
