"""The report of ``eaglegate drafts compare``: JSON, text, and one page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from eaglegate.lab.measure.charts import Line, Point, draw_groups, draw_lines
from eaglegate.lab.measure.drafts import ALL, ServedLength, invert
from eaglegate.lab.measure.report import (
    Conclusion,
    Report,
    Section,
    capitalise,
    format_estimate,
    format_ratio,
    to_point,
)
from eaglegate.lab.measure.statistics import Estimate, Verdict

DIGITS = 4
"""Digits of acceptance lengths, because drafts differ in the third."""
SHOWN_DEPTHS = (1, 3, 5)
"""Columns of the first table besides the deepest depth."""
ORDER = (Verdict.BETTER, Verdict.UNKNOWN, Verdict.SAME, Verdict.WORSE)
"""Order of verdicts. The first that any draft has is the conclusion's verdict."""


@dataclass(frozen=True)
class DraftsReport(Report):
    """Report of a comparison. ``results`` is the result of ``drafts_command.compare``."""

    TITLE: ClassVar[str] = "eaglegate drafts compare"
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

    def describe(self) -> dict[str, Any]:
        return {**self.run, **self.results}

    def conclude(self) -> Conclusion:
        conclusion = conclude_drafts(self.results)
        return conclusion._replace(lines=(*conclusion.lines, self.describe_answers()))

    def describe_answers(self) -> str:
        results = self.results
        return (
            f"{results['answers']} answers of {results['sessions']} sessions, "
            f"{results['sampled']} of them sampled; {results['left_out']} left out"
        )

    def list_notes(self) -> list[str]:
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
        drafts = {label: draft[part] for label, draft in self.fit.items()}
        names = list(dict.fromkeys(key for parts in drafts.values() for key in parts))
        lengths = {
            key: {label: parts.get(key, {}).get(self.max_depth) for label, parts in drafts.items()}
            for key in names
        }
        rows = [[key, *map(format_length, by_draft.values())] for key, by_draft in lengths.items()]
        groups = [
            (key, [(label, to_point(0, item)) for label, item in by_draft.items() if item])
            for key, by_draft in lengths.items()
        ]
        title = f"acceptance length by {name}, K = {self.max_depth}"
        return Section(title, [name, *drafts], rows, [draw_groups(capitalise(title), groups)])

    def _section_of_positions(self) -> Section:
        shares = {
            label: [position["conditional"] for position in draft["positions"]]
            for label, draft in self.fit.items()
        }
        rows = [
            [str(index + 1), *(format_estimate(side[index]) for side in shares.values())]
            for index in range(self.max_depth)
        ]
        lines = [
            Line(label, _to_points(dict(enumerate(side, 1)))) for label, side in shares.items()
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
        title = f"{label} against {base}, tokens per step, K = {self.max_depth}"
        return Section(title, ["slice", "ratio", "verdict", "reason"], rows)

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


def _to_points(by_x: Mapping[int, Estimate | None]) -> list[Point]:
    return [to_point(x, estimate) for x, estimate in by_x.items() if estimate is not None]


def conclude_drafts(results: Mapping[str, Any]) -> Conclusion:
    """Compare every draft with the first, and name the fastest draft and depth if costs are known.

    ``results`` is the result of ``drafts_command.compare``.
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
    gain = results["plain_ms"] and invert(time, results["plain_ms"])
    if gain and gain.value <= 1:
        yield f"No draft is predicted to pay {batch}: the best, {name}, is {_say_gain(gain)}"
        return
    gain_text = f", {_say_gain(gain)}" if gain else ""
    yield f"Fastest {batch}: {name}, {format_estimate(time)} ms per token{gain_text} (predicted)"


def _say_gain(gain: Estimate) -> str:
    return f"{format_ratio(gain) or f'about {gain.value:.2f}x'} over no speculation"
