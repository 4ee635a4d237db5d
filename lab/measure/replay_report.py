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
        return [
            (slice_report, row) for slice_report in self.slices[1:] for row in slice_report.accused
        ]

    def write(self, folder: Path) -> None:
        write_json(folder / "report.json", asdict(self))
        (folder / "report.html").write_text(self.render_page(), encoding="utf-8")

    @property
    def conclusion(self) -> Conclusion:
        finding = self.verdict
        lines = [f"{self.other} against {self.base}: {finding.verdict} ({finding.reason})"]
        return Conclusion(finding.verdict, (*lines, self.describe_pairs()))

    def describe_pairs(self) -> str:
        return f"{self.pairs} pairs of {self.requests} requests in {self.sessions} sessions"

    def render_text(self) -> str:
        lines = [*self.conclusion.lines, "", *self.sentences(), ""]
        lines += [format_table(*self.slice_rows()), "", format_table(*self.acceptance_rows()), ""]
        return "\n".join([*lines, f"$ {self.run['command']}"])

    def sentences(self) -> list[str]:
        return [
            *(f"slice worse: {slice_report.label}: {row.name} {percent(row.ratio)}"
              for slice_report, row in self.accused),
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
            [slice_report.label, str(slice_report.pairs), str(slice_report.sessions)]
            + [f"{percent(row.ratio)} {row.finding.verdict}".strip() for row in slice_report.rows]
            + [str(slice_report.different)]
            for slice_report in self.slices
        ]
        return head, rows

    def acceptance_rows(self) -> tuple[list[str], list[list[str]]]:
        head = ["slice", f"{self.base}: length", "at position 1, 2, ..."]
        head += [f"{self.other}: length", "at position 1, 2, ..."]
        rows = [
            [
                slice_report.label,
                *_format_acceptance(slice_report.base),
                *_format_acceptance(slice_report.other),
            ]
            for slice_report in self.slices
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
                (slice_report.label, _to_point(slice_row.ratio), KINDS[slice_row.finding.verdict])
                for slice_report in self.slices
                if (slice_row := slice_report.row(row.name)).ratio is not None
            ]
            charts.append(draw_intervals(row.name, rows, f"{self.other} over {self.base}"))
        return charts

    def _acceptance_charts(self) -> list[str]:
        return [
            draw_lines(
                f"Acceptance per position: {slice_report.label}",
                [
                    Line(
                        name,
                        [
                            Point(index + 1, share)
                            for index, share in enumerate(acceptance.per_position)
                        ],
                    )
                    for name, acceptance in (
                        (self.base, slice_report.base),
                        (self.other, slice_report.other),
                    )
                    if acceptance is not None
                ],
                "position",
                "share of drafts that reached it",
            )
            for slice_report in self.slices[:13]
        ]


def _to_point(ratio: Estimate | None) -> Point:
    assert ratio is not None
    return Point(ratio.value, ratio.value, ratio.low, ratio.high)


def _format_acceptance(acceptance: AcceptanceFigures | None) -> list[str]:
    if acceptance is None:
        return ["", ""]
    return [
        format_number(acceptance.length),
        ", ".join(f"{share:.2f}" for share in acceptance.per_position),
    ]


def _format_counts(name: str, counts: Mapping[str, int]) -> str:
    text = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    return f"{name}: {text or 'none'};"


def make_report(
    run: Mapping[str, Any],
    names: tuple[str, str],
    requests: int,
    pairs: Sequence[Pair],
    text: TextReport,
    *,
    base_is_capture: bool,
    margin: float,
) -> ReplayReport:
    slices = compare_slices(pairs, margin)
    tools = compare_tools(pairs, base_is_capture=base_is_capture)
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
        notes=tuple(_find_notes(pairs, requests, base_is_capture=base_is_capture)),
    )


def _count_errors(texts: Any) -> dict[str, int]:
    return dict(Counter(text[:120] for text in texts if text).most_common(10))


def _find_notes(pairs: Sequence[Pair], requests: int, *, base_is_capture: bool) -> list[str]:
    notes = []
    if len(pairs) < requests:
        notes.append(f"{requests - len(pairs)} requests have no answer to compare on one side")
    if num_invented := sum(pair.request.is_invented for pair in pairs):
        notes.append(
            f"{num_invented} prompts were made from hashes: times and lengths are comparable, "
            "but acceptance is that of random text"
        )
    num_bunched = sum(p.base.result.is_bunched or p.other.result.is_bunched for p in pairs)
    if num_bunched:
        notes.append(
            f"pairs without TPOT: {num_bunched}, because the chunks of an answer came together, "
            "after a stall of the client or the network"
        )
    if base_is_capture:
        notes.append(
            "the recorded run's times depend on the server and its load at that time; two "
            "--against settings that take turns compare better"
        )
    return notes
