"""Report of a replay: verdict, reasons and every slice, as JSON, text and an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from eaglegate.lab.measure.figures import AcceptanceFigures
from eaglegate.lab.measure.pairs import (
    Pair,
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
    Conclusion,
    Report,
    Section,
    format_number,
)
from eaglegate.lab.measure.statistics import Estimate, Finding


@dataclass(frozen=True)
class ReplayReport(Report):
    TITLE: ClassVar[str] = "eaglegate replay"
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
    text: TextReport
    text_finding: Finding
    notes: tuple[str, ...]

    def conclude(self) -> Conclusion:
        finding = self.verdict
        line = f"{self.other} against {self.base}: {finding.verdict} ({finding.reason})"
        pairs = f"{self.pairs} pairs of {self.requests} requests in {self.sessions} sessions"
        return Conclusion(finding.verdict, (line, pairs))

    def list_notes(self) -> list[str]:
        return [
            *(f"slice worse: {report.label}: {row.name} {percent(row.ratio)}"
              for report in self.slices[1:] for row in report.accused),
            f"tool calls: {self.tools.finding.verdict} ({self.tools.finding.reason})"
            f" {_format_counts(self.base, self.tools.base)}"
            f" {_format_counts(self.other, self.tools.other)}",
            f"errors: {self.errors.verdict} ({self.errors.reason})",
            f"text: {self.text_finding.verdict} ({self.text_finding.reason})",
            *(f"  {example}" for example in self.text.examples),
            *(f"note: {note}" for note in self.notes),
        ]  # fmt: skip

    def make_sections(self) -> Iterator[Section]:
        names = [row.name for row in self.slices[0].rows]
        rows = [
            [report.label, str(report.pairs), str(report.sessions)]
            + [f"{percent(row.ratio)} {row.finding.verdict}".strip() for row in report.rows]
            + [str(report.different)]
            for report in self.slices
        ]
        head = ["slice", "pairs", "sessions", *names, "texts differ"]
        title = f"Slices: changes of {self.other} over {self.base}"
        yield Section(title, head, rows)
        head = ["slice", f"{self.base}: length", "at position 1, 2, ..."]
        head += [f"{self.other}: length", "at position 1, 2, ..."]
        rows = [
            [report.label, *_format_acceptance(report.base), *_format_acceptance(report.other)]
            for report in self.slices
        ]
        yield Section("Acceptance", head, rows)


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
        text=text,
        text_finding=text.finding,
        notes=tuple(_find_notes(pairs, requests, base_is_capture=base_is_capture)),
    )


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
