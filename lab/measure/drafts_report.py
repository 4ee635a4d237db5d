"""The report of ``eaglegate drafts compare``: JSON, text, and one page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from eaglegate.lab.measure.charts import Line, Point, draw_groups, draw_intervals, draw_lines
from eaglegate.lab.measure.drafts import ALL, ServedLength
from eaglegate.lab.measure.drafts_conclusion import conclude_drafts
from eaglegate.lab.measure.report import (
    KINDS,
    Conclusion,
    Page,
    Rows,
    capitalise,
    format_estimate,
    format_table,
    write_json,
)
from eaglegate.lab.measure.statistics import Estimate, Verdict

DIGITS = 4
"""Digits of acceptance lengths, because drafts differ in the third."""
SHOWN_DEPTHS = (1, 3, 5)
"""Columns of the first table besides the deepest depth."""


class Section(NamedTuple):
    """Title, table and, on the page, charts."""

    title: str
    head: Sequence[str]
    rows: Rows
    charts: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class DraftsReport:
    """Report of a comparison. ``found`` is the result of ``drafts_command.summarise``."""

    run: Mapping[str, Any]
    found: Mapping[str, Any]

    @property
    def fit(self) -> dict[str, Mapping[str, Any]]:
        """Drafts that take part."""
        return {label: one for label, one in self.found["drafts"].items() if not one["refused"]}

    @property
    def deepest(self) -> int:
        return int(self.found["depths"][-1])

    def write(self, folder: Path) -> None:
        write_json(folder / "report.json", {**self.run, **self.found})
        (folder / "report.html").write_text(self.render_page(), encoding="utf-8")

    def render_text(self) -> str:
        lines = [*self.conclusion.lines, *self.list_refused()]
        for title, head, rows, _ in self.make_sections():
            lines += ["", title, "", format_table(head, rows)]
        return "\n".join([*lines, "", f"$ {self.run['command']}"])

    @property
    def conclusion(self) -> Conclusion:
        found = conclude_drafts(self.found)
        return found._replace(lines=(*found.lines, self.describe_answers()))

    def render_page(self) -> str:
        page = Page("eaglegate drafts compare", self.conclusion)
        page.add_list(self.list_refused())
        for title, head, rows, charts in self.make_sections():
            page.add_heading(capitalise(title))
            page.add_table(head, rows)
            page.add_charts(charts)
        page.add_run(self.run)
        return page.render()

    def describe_answers(self) -> str:
        found = self.found
        return (
            f"{found['answers']} answers of {found['sessions']} sessions, "
            f"{found['sampled']} of them sampled; {found['left_out']} left out"
        )

    def list_refused(self) -> list[str]:
        return [
            f"{label} is refused: {'; '.join(one['findings'])}"
            for label, one in self.found["drafts"].items()
            if one["refused"]
        ]

    def make_sections(self) -> Iterator[Section]:
        if not self.fit:
            return
        yield self._section_of_depths("acceptance length", lambda one: one["slices"][ALL])
        if self.found["sampled"]:
            yield self._section_of_depths(
                "acceptance length, expected by the target's probabilities",
                lambda one: one["expected"],
            )
        yield self._section_of_parts("slice", "slices")
        yield self._section_of_parts("phase", "phases")
        yield self._section_of_positions()
        if self.found["cost_table"]:
            yield self._section_of_times()
        for label, slices in self.found["against"]["drafts"].items():
            yield self._section_against(label, slices)
        if self.found["live"]:
            yield self._section_of_live()
        yield self._section_of_drift()

    def _section_of_depths(self, title: str, read: Any) -> Section:
        shown = sorted({*SHOWN_DEPTHS, self.deepest} & set(self.found["depths"]))
        rows = [
            [label, one["method"], *(format_length(read(one)[k]) for k in shown)]
            for label, one in self.fit.items()
        ]
        lines = [Line(label, _to_points(read(one))) for label, one in self.fit.items()]
        chart = draw_lines(capitalise(title), lines, "K", "tokens per verify step")
        return Section(title, ["draft", "method", *(f"K = {k}" for k in shown)], rows, [chart])

    def _section_of_parts(self, name: str, part: str) -> Section:
        found = {label: one[part] for label, one in self.fit.items()}
        names = list(dict.fromkeys(one for parts in found.values() for one in parts))
        lengths = {
            one: {label: parts.get(one, {}).get(self.deepest) for label, parts in found.items()}
            for one in names
        }
        rows = [[one, *map(format_length, lengths[one].values())] for one in names]
        groups = [
            (one, [(label, _to_point(0, length)) for label, length in of.items() if length])
            for one, of in lengths.items()
        ]
        title = f"acceptance length by {name}, K = {self.deepest}"
        return Section(title, [name, *found], rows, [draw_groups(capitalise(title), groups)])

    def _section_of_positions(self) -> Section:
        shares = {
            label: [position["conditional"] for position in one["positions"]]
            for label, one in self.fit.items()
        }
        rows = [
            [str(at + 1), *(format_estimate(of[at]) for of in shares.values())]
            for at in range(self.deepest)
        ]
        lines = [Line(label, _to_points(dict(enumerate(of, 1)))) for label, of in shares.items()]
        title = "accepted of the drafts that reached the position"
        chart = draw_lines("Acceptance per position", lines, "position", "share that reached it")
        return Section(title, ["position", *shares], rows, [chart])

    def _section_of_times(self) -> Section:
        times = {label: one["time_per_token_ms"] for label, one in self.fit.items()}
        rows = [
            [str(k), *(format_estimate(of[k], DIGITS) for of in times.values())]
            for k in self.found["depths"]
        ]
        title = f"predicted ms per token ({self.found['cost_table']})"
        lines = [Line(label, _to_points(of)) for label, of in times.items()]
        chart = draw_lines("Predicted time per token", lines, "K", "ms per token")
        return Section(title, ["K", *times], rows, [chart])

    def _section_against(self, label: str, slices: Mapping[str, Any]) -> Section:
        base = self.found["against"]["base"]
        rows = [
            [name, format_estimate(row["ratio"], DIGITS), row["verdict"], row["reason"]]
            for name, row in slices.items()
        ]
        intervals = [
            (name, _to_point(row["ratio"].value, row["ratio"]), KINDS[Verdict(row["verdict"])])
            for name, row in slices.items()
            if row["ratio"] is not None
        ]
        title = f"{label} against {base}, tokens per step, K = {self.deepest}"
        chart = draw_intervals("Tokens per step", intervals, f"{label} over {base}")
        return Section(title, ["slice", "ratio", "verdict", "reason"], rows, [chart])

    def _section_of_live(self) -> Section:
        rows = [
            [row["draft"], str(row["depth"]), *format_served(name, served)]
            for row in self.found["live"]
            for name, served in row["slices"].items()
        ]
        title = "as served, and as predicted on the same answers"
        head = ["draft", "K", "slice", "live", "predicted", "live - predicted", "inside"]
        return Section(title, head, rows)

    def _section_of_drift(self) -> Section:
        rows = [
            [label, name, *(f"{value:.3f}" if value < 10 else f"{value:.1f}" for value in curve)]
            for label, one in self.fit.items()
            for name, curve in one["drift"].items()
        ]
        head = ["draft", "measure", *map(str, self.found["depths"])]
        return Section("attention drift by depth", head, rows)


def format_length(length: Estimate | None) -> str:
    return format_estimate(length, DIGITS)


def format_served(name: str, served: ServedLength) -> list[str]:
    """Return a row: slice, live, predicted, difference, inside."""
    inside = {None: "", True: "yes", False: "no"}[served.is_inside]
    return [
        name,
        format_length(served.live),
        format_length(served.predicted),
        format_difference(served.difference),
        inside,
    ]


def format_difference(one: Estimate | None) -> str:
    if one is None or one.low is None or one.high is None:
        return "" if one is None else f"{one.value:+.3f}"
    return f"{one.value:+.3f} ({one.low:+.3f} to {one.high:+.3f})"


def _to_point(x: float, found: Estimate) -> Point:
    return Point(x, found.value, found.low, found.high)


def _to_points(by_x: Mapping[int, Estimate | None]) -> list[Point]:
    return [_to_point(x, found) for x, found in by_x.items() if found is not None]
