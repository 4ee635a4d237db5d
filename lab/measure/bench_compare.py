"""Comparison of a bench's settings: ratios of the figures in its tables, and verdicts in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eaglegate.lab.measure.bench import BenchPlan
from eaglegate.lab.measure.figures import (
    Block,
    compare_pooled,
    sum_decoding,
    sum_output,
    sum_waiting,
)
from eaglegate.lab.measure.report import Conclusion, format_ratio
from eaglegate.lab.measure.statistics import (
    LEAST_CLUSTERS,
    Estimate,
    Finding,
    Verdict,
    judge_ratio,
    share_level,
)

MARGIN = 0.02
RELATIONS = {
    Verdict.BETTER: "is faster than",
    Verdict.WORSE: "is slower than",
    Verdict.SAME: "is as fast as",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ratio of a setting to the baseline at one load point.

    Ratios divide the pooled figures of both. They are None without an interval.
    """

    setting: str
    baseline: str
    load: str
    user_speed: Estimate | None
    throughput: Estimate | None
    ttft: Estimate | None
    finding: Finding
    """Verdict on the speed per user."""
    repeats: int
    """Number of repeats that both settings have."""


def compare_settings(plan: BenchPlan, blocks: Sequence[Block]) -> list[Comparison]:
    """Compare every setting with the baseline, with simultaneous intervals per load point."""
    baseline = plan.baseline
    if baseline is None:
        return []
    level = share_level(len(plan.settings) - 1)
    return [
        compare(
            select_blocks(blocks, baseline.name, load.name),
            select_blocks(blocks, setting.name, load.name),
            level,
        )
        for load in plan.loads
        for setting in plan.settings[:-1]
    ]


def select_blocks(blocks: Sequence[Block], setting: str, load: str) -> list[Block]:
    return [block for block in blocks if (block.setting, block.load) == (setting, load)]


def compare(base: Sequence[Block], other: Sequence[Block], level: float) -> Comparison:
    speed, throughput, ttft = (
        compare_pooled(base, other, measure, level)
        for measure in (sum_decoding, sum_output, sum_waiting)
    )
    return Comparison(
        setting=other[0].setting,
        baseline=base[0].setting,
        load=base[0].load,
        user_speed=_require_interval(speed),
        throughput=_require_interval(throughput),
        ttft=_require_interval(ttft),
        finding=judge_speed(speed),
        repeats=len({block.number for block in base} & {block.number for block in other}),
    )


def judge_speed(ratio: Estimate | None) -> Finding:
    if ratio is None:
        return Finding(Verdict.UNKNOWN, "no answer has a speed in every setting")
    return judge_ratio(ratio, lower_is_better=False, margin=MARGIN, unit="repeats")


def _require_interval(ratio: Estimate | None) -> Estimate | None:
    return ratio if ratio is not None and ratio.low is not None else None


def conclude(comparisons: Sequence[Comparison], places: dict[str, str]) -> Conclusion | None:
    """Return a sentence per comparison; None without a baseline.

    ``places`` maps load points to the beginnings of sentences.
    """
    if not comparisons:
        return None
    verdicts = [comparison.finding.verdict for comparison in comparisons]
    lines = [places[c.load] + describe_comparison(c) for c in comparisons]
    return Conclusion(combine_verdicts(verdicts), tuple(lines))


def combine_verdicts(verdicts: Sequence[Verdict]) -> Verdict:
    """Return WORSE if any verdict is, else UNKNOWN if any is, else BETTER or SAME."""
    for verdict in (Verdict.WORSE, Verdict.UNKNOWN, Verdict.BETTER):
        if verdict in verdicts:
            return verdict
    return Verdict.SAME


def describe_comparison(comparison: Comparison) -> str:
    if comparison.user_speed is None:
        reason = comparison.finding.reason
        return f"{comparison.setting} against {comparison.baseline}: no verdict, {reason}"
    speed = f"{format_ratio(comparison.user_speed)} tokens/s per user"
    if comparison.throughput is not None:
        speed += f", {format_ratio(comparison.throughput)} in total"
    relation = RELATIONS.get(comparison.finding.verdict)
    if relation is None:
        names = f"{comparison.setting} against {comparison.baseline}"
        return f"{names}: not enough data to tell, {speed}; give more --repeats"
    return f"{comparison.setting} {relation} {comparison.baseline}: {speed}"


def describe_missing(repeats: int) -> str:
    """Explain why there is no ratio."""
    return f"{repeats} of {LEAST_CLUSTERS} repeats" if repeats < LEAST_CLUSTERS else "no data"
