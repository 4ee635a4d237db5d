"""Comparison of a bench's settings: ratios of the figures in its tables, and verdicts in words.

With ``--depths`` the settings are the depths of one engine: every request carries its depth as a
field, and depth 0, no speculation, is the baseline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eaglegate.lab.measure.bench import BenchPlan
from eaglegate.lab.measure.figures import (
    Block,
    compare_pooled,
    sum_decoding,
    sum_output,
    sum_waiting,
)
from eaglegate.lab.measure.report import Conclusion, capitalise, format_ends, format_ratio
from eaglegate.lab.measure.servers import DEPTH_FIELD, Setting
from eaglegate.lab.measure.statistics import (
    LEAST_CLUSTERS,
    Estimate,
    Finding,
    Verdict,
    judge_ratio,
    share_level,
)

COST_TABLE = "step-costs.json"
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


def parse_depths(text: str) -> tuple[int, ...]:
    """Parse depths such as `0,1,3` into rising order, 0 always included. Raises ValueError."""
    try:
        depths = {int(part) for part in text.split(",")}
    except ValueError:
        depths = {-1}
    if min(depths) < 0 or depths == {0}:
        raise ValueError(f"--depths {text}: write whole numbers such as 0,1,3,5,7")
    return tuple(sorted(depths | {0}))


def make_depth_settings(depths: Sequence[int], server: Setting) -> tuple[Setting, ...]:
    """Return a setting per depth, with depth 0 last. Raises ValueError."""
    if DEPTH_FIELD in server.fields:
        raise ValueError(f"--depths sets {DEPTH_FIELD}: leave it out of --fields")
    return tuple(
        Setting(name_depth(depth), server.url, server.flags, {**server.fields, DEPTH_FIELD: depth})
        for depth in (*depths[1:], depths[0])
    )


def name_depth(depth: int) -> str:
    return f"depth {depth}"


def conclude_depths(
    plan: BenchPlan,
    blocks: Sequence[Block],
    comparisons: Sequence[Comparison],
    places: Mapping[str, str],
) -> Conclusion:
    """Return a line per load point: the best depth, or that no depth pays."""
    conclusions = [
        _conclude_load(plan, blocks, [c for c in comparisons if c.load == load.name])
        for load in plan.loads
    ]
    lines = [
        capitalise(places[load.name] + line)
        for load, (_, line) in zip(plan.loads, conclusions, strict=True)
    ]
    return Conclusion(combine_verdicts([verdict for verdict, _ in conclusions]), tuple(lines))


def _conclude_load(
    plan: BenchPlan, blocks: Sequence[Block], comparisons: Sequence[Comparison]
) -> tuple[Verdict, str]:
    candidates = [comparison for comparison in comparisons if comparison.user_speed is not None]
    if not candidates:
        return Verdict.UNKNOWN, f"no verdict: {comparisons[0].finding.reason}"
    leader = max(
        candidates,
        key=lambda comparison: comparison.user_speed.value if comparison.user_speed else 0.0,
    )
    assert leader.user_speed is not None
    gain = f"{leader.user_speed.value:.2f}x over no speculation ({format_ends(leader.user_speed)})"
    match leader.finding.verdict:
        case Verdict.BETTER:
            line = f"{leader.setting} is best: {gain}{_describe_total(leader)}"
            return Verdict.BETTER, line + _describe_ties(plan, blocks, leader, candidates)
        case Verdict.UNKNOWN:
            line = f"no depth is shown to pay: {leader.setting} is at {gain}; give more --repeats"
            return Verdict.UNKNOWN, line
        case verdict:
            return verdict, f"no depth pays: the best of them, {leader.setting}, is at {gain}"


def _describe_total(comparison: Comparison) -> str:
    total = comparison.throughput
    if total is None or total.high is None or total.high >= 1:
        return ""
    return f", but all users together get {total.value:.2f}x ({format_ends(total)})"


def _describe_ties(
    plan: BenchPlan, blocks: Sequence[Block], leader: Comparison, candidates: Sequence[Comparison]
) -> str:
    """Name the depths that this run cannot distinguish from the best one."""
    base = select_blocks(blocks, leader.setting, leader.load)
    level = share_level(len(plan.settings) - 1)
    ties = [
        rival.setting.removeprefix("depth ")
        for rival in candidates
        if rival is not leader
        and judge_speed(
            compare_pooled(
                base, select_blocks(blocks, rival.setting, leader.load), sum_decoding, level
            )
        ).verdict
        is not Verdict.WORSE
    ]
    return f"; not told apart from depth {' or '.join(ties)}" if ties else ""


def list_depth_notes(depths: Sequence[int], blocks: Sequence[Block]) -> list[str]:
    """Name the depths that were requested but not drafted."""
    max_depths = {
        depth: max(
            (max(result.drafted, default=0) for b in blocks if b.setting == name_depth(depth)
             for result in b.completed),
            default=0,
        )
        for depth in depths
    }  # fmt: skip
    return [
        f"{name_depth(depth)}: the gateway drafted {max_depth or 'nothing'}"
        f"{' at most' if max_depth else ''}: its speculation flag or a bound holds it "
        "(GET /admin/speculation)"
        for depth, max_depth in max_depths.items()
        if max_depth < depth
    ]


def measure_step_costs(plan: BenchPlan, blocks: Sequence[Block]) -> dict[str, Any] | None:
    """Return the time of a decode step by concurrency and depth, in milliseconds.

    The format is that of ``drafts.CostTable``. None if a cell has no answer, or the load is not a
    concurrency.
    """
    depths = plan.depths
    rows = [
        [_measure_step_ms(select_blocks(blocks, name_depth(k), load.name)) for k in depths]
        for load in plan.loads
        if load.concurrency
    ]
    if not rows or len(rows) < len(plan.loads) or not all(all(row) for row in rows):
        return None
    batches = [load.concurrency for load in plan.loads]
    order = sorted(range(len(batches)), key=batches.__getitem__)
    return {
        "batches": [batches[index] for index in order],
        "depths": list(depths),
        "step_ms": [rows[index] for index in order],
    }


def _measure_step_ms(blocks: Sequence[Block]) -> float | None:
    """Return the time per step, which yields one token and the accepted drafts."""
    answers = [result for block in blocks for result in block.timed]
    steps = sum(r.output_tokens - 1 - sum(r.accepted) for r in answers)
    seconds = sum(r.decode_s for r in answers)
    return round(seconds / steps * 1e3, 4) if steps > 0 and seconds > 0 else None
