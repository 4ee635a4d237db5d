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
    """Report of a comparison. ``results`` is the result of ``drafts_command.summarise``."""

    run: Mapping[str, Any]
    results: Mapping[str, Any]

    @property
    def fit(self) -> dict[str, Mapping[str, Any]]:
        """Drafts that take part."""
        return {
            label: draft for label, draft in self.results["drafts"].items() if not draft["refused"]
        }

    @property
    def max_depth(self) -> int:
        return int(self.results["depths"][-1])

    def write(self, folder: Path) -> None:
        write_json(folder / "report.json", {**self.run, **self.results})
        (folder / "report.html").write_text(self.render_page(), encoding="utf-8")

    def render_text(self) -> str:
        lines = [*self.conclusion.lines, *self.list_refused()]
        for title, head, rows, _ in self.make_sections():
            lines += ["", title, "", format_table(head, rows)]
        return "\n".join([*lines, "", f"$ {self.run['command']}"])

    @property
    def conclusion(self) -> Conclusion:
        conclusion = conclude_drafts(self.results)
        return conclusion._replace(lines=(*conclusion.lines, self.describe_answers()))

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
        results = self.results
        return (
            f"{results['answers']} answers of {results['sessions']} sessions, "
            f"{results['sampled']} of them sampled; {results['left_out']} left out"
        )

    def list_refused(self) -> list[str]:
        return [
            f"{label} is refused: {'; '.join(draft['findings'])}"
            for label, draft in self.results["drafts"].items()
            if draft["refused"]
        ]

    def make_sections(self) -> Iterator[Section]:
        if not self.fit:
            return
        yield self._section_of_depths("acceptance length", lambda draft: draft["slices"][ALL])
        if self.results["sampled"]:
            yield self._section_of_depths(
                "acceptance length, expected by the target's probabilities",
                lambda draft: draft["expected"],
            )
        yield self._section_of_parts("slice", "slices")
        yield self._section_of_parts("phase", "phases")
        yield self._section_of_positions()
        if self.results["cost_table"]:
            yield self._section_of_times()
        for label, slices in self.results["against"]["drafts"].items():
            yield self._section_against(label, slices)
        if self.results["live"]:
            yield self._section_of_live()

    def _section_of_depths(self, title: str, get_lengths: Any) -> Section:
        depths = sorted({*SHOWN_DEPTHS, self.max_depth} & set(self.results["depths"]))
        rows = [
            [label, draft["method"], *(format_length(get_lengths(draft)[k]) for k in depths)]
            for label, draft in self.fit.items()
        ]
        lines = [Line(label, _to_points(get_lengths(draft))) for label, draft in self.fit.items()]
        chart = draw_lines(capitalise(title), lines, "K", "tokens per verify step")
        return Section(title, ["draft", "method", *(f"K = {k}" for k in depths)], rows, [chart])

    def _section_of_parts(self, name: str, part: str) -> Section:
        parts_by_draft = {label: draft[part] for label, draft in self.fit.items()}
        names = list(dict.fromkeys(key for parts in parts_by_draft.values() for key in parts))
        lengths = {
            key: {
                label: parts.get(key, {}).get(self.max_depth)
                for label, parts in parts_by_draft.items()
            }
            for key in names
        }
        rows = [[key, *map(format_length, lengths[key].values())] for key in names]
        groups = [
            (
                key,
                [
                    (label, _to_point(0, length))
                    for label, length in lengths_by_draft.items()
                    if length
                ],
            )
            for key, lengths_by_draft in lengths.items()
        ]
        title = f"acceptance length by {name}, K = {self.max_depth}"
        return Section(
            title, [name, *parts_by_draft], rows, [draw_groups(capitalise(title), groups)]
        )

    def _section_of_positions(self) -> Section:
        shares = {
            label: [position["conditional"] for position in draft["positions"]]
            for label, draft in self.fit.items()
        }
        rows = [
            [
                str(index + 1),
                *(format_estimate(draft_shares[index]) for draft_shares in shares.values()),
            ]
            for index in range(self.max_depth)
        ]
        lines = [
            Line(label, _to_points(dict(enumerate(draft_shares, 1))))
            for label, draft_shares in shares.items()
        ]
        title = "accepted of the drafts that reached the position"
        chart = draw_lines("Acceptance per position", lines, "position", "share that reached it")
        return Section(title, ["position", *shares], rows, [chart])

    def _section_of_times(self) -> Section:
        times = {label: draft["time_per_token_ms"] for label, draft in self.fit.items()}
        rows = [
            [str(k), *(format_estimate(draft_times[k], DIGITS) for draft_times in times.values())]
            for k in self.results["depths"]
        ]
        title = f"predicted ms per token ({self.results['cost_table']})"
        lines = [Line(label, _to_points(draft_times)) for label, draft_times in times.items()]
        chart = draw_lines("Predicted time per token", lines, "K", "ms per token")
        return Section(title, ["K", *times], rows, [chart])

    def _section_against(self, label: str, slices: Mapping[str, Any]) -> Section:
        base = self.results["against"]["base"]
        rows = [
            [name, format_estimate(row["ratio"], DIGITS), row["verdict"], row["reason"]]
            for name, row in slices.items()
        ]
        intervals = [
            (name, _to_point(row["ratio"].value, row["ratio"]), KINDS[Verdict(row["verdict"])])
            for name, row in slices.items()
            if row["ratio"] is not None
        ]
        title = f"{label} against {base}, tokens per step, K = {self.max_depth}"
        chart = draw_intervals("Tokens per step", intervals, f"{label} over {base}")
        return Section(title, ["slice", "ratio", "verdict", "reason"], rows, [chart])

    def _section_of_live(self) -> Section:
        rows = [
            [row["draft"], str(row["depth"]), *format_served(name, length)]
            for row in self.results["live"]
            for name, length in row["slices"].items()
        ]
        title = "as served, and as predicted on the same answers"
        head = ["draft", "K", "slice", "live", "predicted", "live - predicted", "inside"]
        return Section(title, head, rows)


def format_length(length: Estimate | None) -> str:
    return format_estimate(length, DIGITS)


def format_served(name: str, length: ServedLength) -> list[str]:
    """Return a row: slice, live, predicted, difference, inside."""
    answer = {None: "", True: "yes", False: "no"}[length.is_inside]
    return [
        name,
        format_length(length.live),
        format_length(length.predicted),
        format_difference(length.difference),
        answer,
    ]


def format_difference(difference: Estimate | None) -> str:
    if difference is None or difference.low is None or difference.high is None:
        return "" if difference is None else f"{difference.value:+.3f}"
    return f"{difference.value:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})"


def _to_point(x: float, estimate: Estimate) -> Point:
    return Point(x, estimate.value, estimate.low, estimate.high)


def _to_points(by_x: Mapping[int, Estimate | None]) -> list[Point]:
    return [_to_point(x, estimate) for x, estimate in by_x.items() if estimate is not None]
