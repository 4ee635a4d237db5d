"""Report of a replay: verdict, reasons and every slice, as JSON, text and an HTML page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eaglegate.lab.measure.charts import Line, Point, draw_intervals, draw_lines
from eaglegate.lab.measure.figures import AcceptanceFigures
from eaglegate.lab.measure.pairs import (
    Pair,
    Row,
    SliceReport,
    TextReport,
    ToolReport,
    compare_errors,
    compare_slices,
    compare_tools,
    conclude,
    percent,
)
from eaglegate.lab.measure.report import (
    KINDS,
    Conclusion,
    Page,
    format_number,
    format_table,
    write_json,
)
from eaglegate.lab.measure.statistics import Estimate, Finding


@dataclass(frozen=True, slots=True)
class ReplayReport:
    run: Mapping[str, Any]
    base: str
    other: str
    requests: int
    """Number of requests in the capture."""
    pairs: int
    sessions: int
    verdict: Finding
    slices: tuple[SliceReport, ...]
    """All requests first, then every slice."""
    tools: ToolReport
    errors: Finding
    error_difference: Estimate | None
    error_texts: Mapping[str, Mapping[str, int]]
    text: TextReport
    text_finding: Finding
    notes: tuple[str, ...]

    @property
    def accused(self) -> list[tuple[SliceReport, Row]]:
        return [(one, row) for one in self.slices[1:] for row in one.accused]

    def write(self, folder: Path) -> None:
        write_json(folder / "report.json", asdict(self))
        (folder / "report.html").write_text(self.render_page(), encoding="utf-8")

    @property
    def conclusion(self) -> Conclusion:
        one = self.verdict
        lines = [f"{self.other} against {self.base}: {one.verdict} ({one.reason})"]
        return Conclusion(one.verdict, (*lines, self.describe_pairs()))

    def describe_pairs(self) -> str:
        return f"{self.pairs} pairs of {self.requests} requests in {self.sessions} sessions"

    def render_text(self) -> str:
        lines = [*self.conclusion.lines, "", *self.sentences(), ""]
        lines += [format_table(*self.slice_rows()), "", format_table(*self.acceptance_rows()), ""]
        return "\n".join([*lines, f"$ {self.run['command']}"])

    def sentences(self) -> list[str]:
        return [
            *(f"slice worse: {one.label}: {row.name} {percent(row.ratio)}"
              for one, row in self.accused),
            f"tool calls: {self.tools.finding.verdict} ({self.tools.finding.reason})"
            f" {_format_counts(self.base, self.tools.base)}"
            f" {_format_counts(self.other, self.tools.other)}",
            f"errors: {self.errors.verdict} ({self.errors.reason})",
            f"text: {self.text_finding.verdict} ({self.text_finding.reason})",
            *(f"  {example}" for example in self.text.examples),
            *(f"note: {note}" for note in self.notes),
        ]  # fmt: skip

    def slice_rows(self) -> tuple[list[str], list[list[str]]]:
        names = [row.name for row in self.slices[0].rows]
        head = ["slice", "pairs", "sessions", *names, "texts differ"]
        rows = [
            [one.label, str(one.pairs), str(one.sessions)]
            + [f"{percent(row.ratio)} {row.finding.verdict}".strip() for row in one.rows]
            + [str(one.different)]
            for one in self.slices
        ]
        return head, rows

    def acceptance_rows(self) -> tuple[list[str], list[list[str]]]:
        head = ["slice", f"{self.base}: length", "at position 1, 2, ..."]
        head += [f"{self.other}: length", "at position 1, 2, ..."]
        rows = [
            [one.label, *_format_acceptance(one.base), *_format_acceptance(one.other)]
            for one in self.slices
        ]
        return head, rows

    def render_page(self) -> str:
        page = Page("eaglegate replay", self.conclusion)
        page.add_list(self.sentences())
        page.add_heading("Slices")
        page.add_text(
            "Changes are of the second setting over the first; intervals are clustered by session, "
            "those of times by window."
        )
        page.add_table(*self.slice_rows())
        page.add_charts(self._interval_charts())
        page.add_heading("Acceptance")
        page.add_table(*self.acceptance_rows())
        page.add_charts(self._acceptance_charts())
        page.add_run(self.run)
        return page.render()

    def _interval_charts(self) -> list[str]:
        charts = []
        for row in self.slices[0].rows:
            rows = [
                (one.label, _to_point(found.ratio), KINDS[found.finding.verdict])
                for one in self.slices
                if (found := one.row(row.name)).ratio is not None
            ]
            charts.append(draw_intervals(row.name, rows, f"{self.other} over {self.base}"))
        return charts

    def _acceptance_charts(self) -> list[str]:
        return [
            draw_lines(
                f"Acceptance per position: {one.label}",
                [
                    Line(
                        name, [Point(at + 1, share) for at, share in enumerate(found.per_position)]
                    )
                    for name, found in ((self.base, one.base), (self.other, one.other))
                    if found is not None
                ],
                "position",
                "share of drafts that reached it",
            )
            for one in self.slices[:13]
        ]


def _to_point(ratio: Estimate | None) -> Point:
    assert ratio is not None
    return Point(ratio.value, ratio.value, ratio.low, ratio.high)


def _format_acceptance(found: AcceptanceFigures | None) -> list[str]:
    if found is None:
        return ["", ""]
    return [format_number(found.length), ", ".join(f"{share:.2f}" for share in found.per_position)]


def _format_counts(name: str, counts: Mapping[str, int]) -> str:
    said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    return f"{name}: {said or 'none'};"


def make_report(
    run: Mapping[str, Any],
    names: tuple[str, str],
    requests: int,
    pairs: Sequence[Pair],
    text: TextReport,
    *,
    recorded: bool,
    margin: float,
) -> ReplayReport:
    slices = compare_slices(pairs, margin)
    tools = compare_tools(pairs, recorded=recorded)
    difference, errors = compare_errors(pairs)
    return ReplayReport(
        run=run,
        base=names[0],
        other=names[1],
        requests=requests,
        pairs=len(pairs),
        sessions=slices[0].sessions,
        verdict=conclude(slices[0], tools, errors, text),
        slices=tuple(slices),
        tools=tools,
        errors=errors,
        error_difference=difference,
        error_texts={
            names[0]: _count_errors(pair.base.result.error for pair in pairs),
            names[1]: _count_errors(pair.other.result.error for pair in pairs),
        },
        text=text,
        text_finding=text.finding,
        notes=tuple(_find_notes(pairs, requests, recorded=recorded)),
    )


def _count_errors(texts: Any) -> dict[str, int]:
    return dict(Counter(text[:120] for text in texts if text).most_common(10))


def _find_notes(pairs: Sequence[Pair], requests: int, *, recorded: bool) -> list[str]:
    notes = []
    if len(pairs) < requests:
        notes.append(f"{requests - len(pairs)} requests have no answer to compare on one side")
    if invented := sum(pair.request.invented for pair in pairs):
        notes.append(
            f"{invented} prompts were made from hashes: times and lengths are comparable, "
            "but acceptance is that of random text"
        )
    bunched = sum(p.base.result.is_bunched or p.other.result.is_bunched for p in pairs)
    if bunched:
        notes.append(
            f"pairs without TPOT: {bunched}, because the chunks of an answer came together, after "
            "a stall of the client or the network"
        )
    if recorded:
        notes.append(
            "the recorded run's times depend on the server and its load at that time; two "
            "--against settings that take turns compare better"
        )
    return notes
