"""Comparison of a replay's pairs: speed, acceptance, tools, errors and text, with a verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from eaglegate.lab.measure.figures import AcceptanceFigures, describe_acceptance, sum_answers
from eaglegate.lab.measure.replay import ReplayOutcome, ReplayRequest, recorded_outcome
from eaglegate.lab.measure.statistics import (
    LEAST_CLUSTERS,
    Array,
    Estimate,
    Finding,
    Verdict,
    bootstrap,
    count_needed_windows,
    judge_ratio,
    paired_difference,
    paired_ratio,
    paired_ratio_by_window,
    share_level,
)
from eaglegate.lab.measure.stream import RequestResult
from eaglegate.lab.measure.tool_outcomes import is_valid

MARGIN = 0.02
LEAST_SLICE = 5
"""Number of sessions that a slice needs for a verdict."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One request in both settings."""

    request: ReplayRequest
    base: ReplayOutcome
    other: ReplayOutcome
    window: int | None = None
    """Window in which both were sent, one after another."""

    @property
    def both_ok(self) -> bool:
        return self.base.result.ok and self.other.result.ok

    @property
    def differs(self) -> bool:
        """True if the greedy texts differ."""
        is_comparable = self.request.greedy and self.base.digest and self.other.digest
        return bool(is_comparable) and self.base.digest != self.other.digest


@dataclass(frozen=True, slots=True)
class Measure:
    """Figure that both sides of a pair may have; ``value`` returns None if one has none."""

    name: str
    lower_is_better: bool
    value: Callable[[RequestResult], float | None]
    is_time: bool = False
    """True for a time. Other load on the machine slows a whole window, so windows are compared."""


MEASURES = (
    Measure("TPOT", True, lambda result: None if result.is_bunched else result.tpot, True),
    Measure("TTFT", True, lambda result: result.ttft, True),
    Measure("tokens per step", False, lambda result: result.tokens_per_step),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one slice: the ratio of the other setting to the base."""

    name: str
    ratio: Estimate | None
    finding: Finding


@dataclass(frozen=True, slots=True)
class SliceReport:
    kind: str
    """"workload", "context", "template" or "api"; empty for all requests."""
    name: str
    pairs: int
    sessions: int
    rows: tuple[Row, ...]
    base: AcceptanceFigures | None
    other: AcceptanceFigures | None
    different: int
    """Number of greedy texts that differ."""

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name}" if self.kind else "all"

    def judge(self, name: str) -> Finding:
        return next(row.finding for row in self.rows if row.name == name)

    @property
    def accused(self) -> list[Row]:
        return [row for row in self.rows if row.finding.verdict is Verdict.WORSE]


def match_pairs(
    requests: Iterable[ReplayRequest],
    base: Mapping[str, ReplayOutcome] | None,
    other: Mapping[str, ReplayOutcome],
    windows: Mapping[str, int],
) -> list[Pair]:
    """Pair the requests that both sides have. If ``base`` is None, the recorded run is the base.

    ``windows`` maps each request's id to its window.
    """
    pairs = []
    for request in requests:
        base_outcome = recorded_outcome(request) if base is None else base.get(request.id)
        other_outcome = other.get(request.id)
        if base_outcome is not None and other_outcome is not None:
            pairs.append(Pair(request, base_outcome, other_outcome, windows.get(request.id)))
    return pairs


def compare_slice(
    kind: str, name: str, pairs: Sequence[Pair], *, level: float, margin: float
) -> SliceReport:
    complete_pairs = [pair for pair in pairs if pair.both_ok]
    rows = [compare_measure(measure, complete_pairs, level, margin) for measure in MEASURES]
    rows.append(compare_acceptance(complete_pairs, level, margin))
    drafts = [any(pair.base.result.drafted for pair in complete_pairs)]
    drafts.append(any(pair.other.result.drafted for pair in complete_pairs))
    if any(drafts) and not all(drafts):
        rows = [*map(tell_no_drafts, rows)]
    return SliceReport(
        kind,
        name,
        len(pairs),
        len({pair.request.cluster for pair in pairs}),
        tuple(rows),
        _describe(pair.base.result for pair in complete_pairs),
        _describe(pair.other.result for pair in complete_pairs),
        sum(pair.differs for pair in pairs),
    )


def tell_no_drafts(row: Row) -> Row:
    """Change the verdict if one setting drafts nothing, which more data would not change."""
    if row.ratio is not None or row.finding.verdict is not Verdict.UNKNOWN:
        return row
    return replace(row, finding=Finding(Verdict.NO_DRAFTS, "one of the two drafted nothing"))


def _describe(results: Iterable[RequestResult]) -> AcceptanceFigures | None:
    drafted_results = [result for result in results if result.drafted]
    return describe_acceptance(sum_answers(drafted_results), "answers") if drafted_results else None


def compare_measure(measure: Measure, pairs: Sequence[Pair], level: float, margin: float) -> Row:
    rows = [
        (a, b, pair)
        for pair in pairs
        if (a := measure.value(pair.base.result)) and (b := measure.value(pair.other.result))
    ]
    base, other = [a for a, _, _ in rows], [b for _, b, _ in rows]
    windows = [pair.window for *_, pair in rows if pair.window is not None]
    if measure.is_time and len(windows) == len(rows):
        ratio = paired_ratio_by_window(base, other, windows, level=level)
        unit, num_needed = "windows", count_needed_windows(level)
    else:
        clusters = [pair.request.cluster for *_, pair in rows]
        ratio = paired_ratio(base, other, clusters, level=level)
        unit, num_needed = "sessions", LEAST_CLUSTERS
    lower_is_better = measure.lower_is_better
    finding = judge_ratio(
        ratio, lower_is_better=lower_is_better, margin=margin, unit=unit, needed=num_needed
    )
    return Row(measure.name, ratio, finding)


def compare_acceptance(pairs: Sequence[Pair], level: float, margin: float) -> Row:
    """Compare pooled acceptance lengths over answers with steps on both sides."""
    drafted_pairs = [p for p in pairs if p.base.result.drafted and p.other.result.drafted]
    columns = [
        [float(sum(pair.base.result.accepted)) for pair in drafted_pairs],
        [float(len(pair.base.result.drafted)) for pair in drafted_pairs],
        [float(sum(pair.other.result.accepted)) for pair in drafted_pairs],
        [float(len(pair.other.result.drafted)) for pair in drafted_pairs],
    ]
    clusters = [pair.request.cluster for pair in drafted_pairs]
    ratio = bootstrap(columns, _length_ratio, clusters, level=level)
    return Row("acceptance length", ratio, judge_ratio(ratio, lower_is_better=False, margin=margin))


def _length_ratio(sums: Array) -> Array:
    return (1 + sums[:, 2] / sums[:, 3]) / (1 + sums[:, 0] / sums[:, 1])


def compare_slices(pairs: Sequence[Pair], margin: float = MARGIN) -> list[SliceReport]:
    """Compare all requests, then every slice with enough sessions, with simultaneous intervals."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        for kind, name in pair.request.slices.items():
            groups.setdefault((kind, name), []).append(pair)
    names = Counter(kind for kind, _ in groups)
    slice_groups = {
        key: group
        for key, group in groups.items()
        if names[key[0]] > 1 and len({p.request.cluster for p in group}) >= LEAST_SLICE
    }
    level = share_level(len(slice_groups) * (len(MEASURES) + 1))
    overall = compare_slice("", "all", pairs, level=share_level(4), margin=margin)
    slices = [
        compare_slice(kind, name, group, level=level, margin=margin)
        for (kind, name), group in sorted(slice_groups.items())
    ]
    return [overall, *slices]


@dataclass(frozen=True, slots=True)
class ToolReport:
    """Tool calls by outcome on both sides, and the share of answers with only valid calls."""

    base: Mapping[str, int]
    other: Mapping[str, int]
    difference: Estimate | None
    finding: Finding


def compare_tools(pairs: Sequence[Pair], *, base_is_capture: bool = False) -> ToolReport:
    """Compare outcomes of tool calls. With ``base_is_capture`` the base's are the record's."""
    base: Counter[str] = Counter()
    other: Counter[str] = Counter()
    scores: list[tuple[float, float, str]] = []
    for pair in pairs:
        if not pair.both_ok or not pair.request.tools:
            continue
        base.update(pair.base.calls)
        other.update(pair.other.calls)
        if pair.base.calls or pair.other.calls:
            cluster = pair.request.cluster
            scores.append((is_valid(pair.base.calls), is_valid(pair.other.calls), cluster))
    difference = paired_difference(
        [a for a, *_ in scores], [b for _, b, _ in scores], [c for *_, c in scores]
    )
    if base_is_capture and not base:
        difference = None
    finding = judge_difference(difference, "answers with tool calls, all of them valid")
    return ToolReport(dict(base), dict(other), difference, finding)


def compare_errors(pairs: Sequence[Pair]) -> tuple[Estimate | None, Finding]:
    """Compare the shares of requests that were answered."""
    difference = paired_difference(
        [float(pair.base.result.ok) for pair in pairs],
        [float(pair.other.result.ok) for pair in pairs],
        [pair.request.cluster for pair in pairs],
    )
    return difference, judge_difference(difference, "requests without an error")


def judge_difference(difference: Estimate | None, subject: str) -> Finding:
    """Judge a difference of shares, where more is better."""
    return judge_ratio(
        difference,
        lower_is_better=False,
        margin=MARGIN,
        neutral=0.0,
        missing=f"there are no {subject} to compare",
        subject=f" of {subject}",
    )


@dataclass(frozen=True, slots=True)
class TextReport:
    """Comparison of greedy texts, with the number of differences by cause."""

    compared: int
    different: int
    near_ties: int
    faults: int
    unexplained: int
    """Different texts without a cause: not repeated, without log probabilities, or equal when
    repeated.
    """
    examples: tuple[str, ...]

    @property
    def finding(self) -> Finding:
        if not self.compared:
            return Finding(Verdict.UNKNOWN, "no greedy answer has a text on both sides")
        if self.faults:
            return Finding(
                Verdict.WORSE,
                f"{self.faults} of {self.compared} greedy texts differ where the two tokens are "
                "no near tie",
            )
        if self.unexplained:
            return Finding(
                Verdict.UNKNOWN,
                f"{self.unexplained} of {self.compared} greedy texts differ without an explanation",
            )
        ties = f", {self.near_ties} differ after a near tie" if self.near_ties else ""
        return Finding(Verdict.SAME, f"{self.compared} greedy texts compared{ties}")


def conclude(overall: SliceReport, tools: ToolReport, errors: Finding, text: TextReport) -> Finding:
    """Return WORSE if anything is worse, and BETTER if TPOT is better and nothing is worse."""
    findings = {
        "TPOT": overall.judge("TPOT"),
        "TTFT": overall.judge("TTFT"),
        "tool calls": tools.finding,
        "errors": errors,
        "text": text.finding,
    }
    reasons = [
        f"{name}: {finding.reason}"
        for name, finding in findings.items()
        if finding.verdict is Verdict.WORSE
    ]
    if reasons:
        return Finding(Verdict.WORSE, "; ".join(reasons))
    tpot = findings["TPOT"]
    return Finding(tpot.verdict, f"TPOT: {tpot.reason}")


def percent(estimate: Estimate | None) -> str:
    """Format a ratio as a change with its interval."""
    if estimate is None or math.isnan(estimate.value):
        return ""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value - 1:+.1%}"
    return f"{estimate.value - 1:+.1%} ({estimate.low - 1:+.1%} to {estimate.high - 1:+.1%})"
