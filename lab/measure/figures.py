"""Figures of a set of results: latencies, throughput, goodput, acceptance.

The formulas are those of `vllm bench serve` and AIPerf if they define the same figure;
docs/measure.md has the table. Every figure takes results and, if it has an interval, the blocks of
the run: results of one block share the other load on the machine at that time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from eaglegate.engine.flag_numbers import parse_number
from eaglegate.engine.totals import Totals
from eaglegate.lab.measure.statistics import LEVEL, Estimate, Summary, estimate_product, summarise
from eaglegate.lab.measure.stream import RequestResult

MS = 1e3


@dataclass(frozen=True, slots=True)
class Block:
    """Results of one load point of one setting, sent together."""

    setting: str
    load: str
    number: int
    duration: float
    results: tuple[RequestResult, ...]
    totals: Totals | None = None
    """Change of the server's counters during the block."""
    recomputed_tokens: int = 0
    """Cached prompt tokens that were computed again because of the draft, by the server's counters.
    """
    shared: frozenset[str] | None = None
    """Answers that have a speed in every setting; None if settings are not compared."""

    @property
    def completed(self) -> list[RequestResult]:
        return [result for result in self.results if result.ok and not result.left]

    @property
    def timed(self) -> list[RequestResult]:
        """Answers whose speed counts: at least two tokens, not delivered together after a stall
        and, if settings are compared, present in every setting.
        """
        results = [r for r in self.completed if r.tpot is not None and not r.is_bunched]
        return [r for r in results if self.shared is None or r.id in self.shared]


def share_answers(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks, timed only by answers that all settings have at a load and repeat.

    A setting without any speed at a load is ignored there.
    """
    groups: dict[tuple[str, int], list[Block]] = defaultdict(list)
    participants = {(block.setting, block.load) for block in blocks if block.timed}
    for block in blocks:
        if (block.setting, block.load) in participants:
            groups[block.load, block.number].append(block)
    shared_ids = {
        place: frozenset.intersection(*(frozenset(r.id for r in b.timed) for b in group))
        for place, group in groups.items()
    }
    return [replace(b, shared=shared_ids.get((b.load, b.number), frozenset())) for b in blocks]


Sums = tuple[float, float]


def sum_decoding(block: Block) -> Sums:
    """Return tokens after the first of timed answers, and their seconds: tokens/s per user."""
    tokens = sum(result.output_tokens - 1 for result in block.timed)
    return float(tokens), sum(result.decode_s for result in block.timed)


def sum_output(block: Block) -> Sums:
    """Return output tokens and the seconds of the block: tokens/s of all users."""
    return float(sum(result.output_tokens for result in block.completed)), block.duration


def sum_waiting(block: Block) -> Sums:
    """Return the seconds to the first token and the number of answers that have one: mean TTFT."""
    times = [result.ttft for result in block.completed if result.ttft]
    return sum(times), float(len(times))


def estimate_pooled(blocks: Sequence[Block], measure: Callable[[Block], Sums]) -> Estimate | None:
    """Estimate the ratio of the sums over all blocks."""
    sums = [pair for block in blocks if (pair := measure(block))[1] > 0]
    return estimate_product(list(zip(*sums, strict=True)), (1, -1))


def compare_pooled(
    base: Sequence[Block],
    other: Sequence[Block],
    measure: Callable[[Block], Sums],
    level: float = LEVEL,
) -> Estimate | None:
    """Estimate the ratio of the pooled value of ``other`` to that of ``base``, paired by repeat."""
    by_number = {block.number: block for block in base}
    pairs = [(by_number[block.number], block) for block in other if block.number in by_number]
    sums = [
        (*other_sums, *base_sums)
        for base_block, other_block in pairs
        if (base_sums := measure(base_block))[1] > 0 and (other_sums := measure(other_block))[1] > 0
    ]
    return estimate_product(list(zip(*sums, strict=True)), (1, -1, -1, 1), level=level)


@dataclass(frozen=True, slots=True)
class Goal:
    """Limits that a request has to meet, in milliseconds: `ttft`, `tpot`, `e2el`."""

    limits: Mapping[str, float]

    def is_met(self, result: RequestResult) -> bool:
        """Return True if a result meets the limits. TPOT of one token is 0, as in `vllm bench
        serve`.
        """
        values = {
            "ttft": (result.ttft or 0.0) * MS,
            "tpot": (result.tpot or 0.0) * MS,
            "e2el": result.latency * MS,
        }
        return result.ok and all(values[name] <= limit for name, limit in self.limits.items())

    @classmethod
    def parse(cls, pairs: Iterable[str]) -> Goal:
        """Parse limits such as `ttft:500 tpot:50`. Raises ValueError."""
        limits: dict[str, float] = {}
        for pair in pairs:
            name, _, value = pair.partition(":")
            if name not in ("ttft", "tpot", "e2el"):
                raise ValueError(f"--goodput {pair}: write ttft:MS, tpot:MS or e2el:MS")
            limits[name] = parse_number(value)
        return cls(limits)


@dataclass(frozen=True, slots=True)
class Figures:
    """One setting at one load point. Latencies in milliseconds, rates per second."""

    setting: str
    load: str
    requests: int
    failed: int
    duration: float
    prompt_tokens: int
    output_tokens: int
    user_speed: Estimate | None
    """Decoding speed that one reader sees in tokens per second: 1 / TPOT, pooled over requests."""
    mean_inverse_tpot: float | None
    """Mean over requests of 1 / TPOT, AIPerf's output token throughput per user. One answer that a
    stall delivered at once outweighs all others in it.
    """
    throughput: Estimate | None
    """Output tokens per second of all users."""
    request_rate: float
    goodput: float | None
    ttft: Summary | None
    tpot: Summary | None
    itl: Summary | None
    e2el: Summary | None
    acceptance: AcceptanceFigures | None
    errors: Mapping[str, int]
    bunched: int
    """Number of answers whose chunks came together (``RequestResult.is_bunched``)."""
    recomputed_tokens: int = 0
    """Prompt tokens computed again because of the draft, including other traffic."""


@dataclass(frozen=True, slots=True)
class AcceptanceFigures:
    """Acceptance pooled over requests. None means a division by zero."""

    source: str
    """"answers" for the answers' own accounts, "counters" for the server's, with other traffic."""
    length: float | None
    """1 + A / D"""
    per_position: tuple[float, ...]
    """A_i over the drafts that reached position i, or over all drafts if that is not known."""
    fallback: float | None
    """(D_0 + F) / (D + F)"""


def compute_figures(blocks: Sequence[Block], goal: Goal | None = None) -> Figures:
    """Compute the figures of all blocks of one setting at one load point."""
    results = [result for block in blocks for result in block.completed]
    failures = [result for block in blocks for result in block.results if not result.ok]
    duration = sum(block.duration for block in blocks)
    speeds = summarise(1 / result.tpot for result in results if result.tpot)
    num_met = sum(goal.is_met(result) for result in results) if goal else 0
    return Figures(
        setting=blocks[0].setting,
        load=blocks[0].load,
        requests=len(results),
        failed=len(failures),
        duration=duration,
        prompt_tokens=sum(result.prompt_tokens for result in results),
        output_tokens=sum(result.output_tokens for result in results),
        user_speed=estimate_pooled(blocks, sum_decoding),
        mean_inverse_tpot=speeds.mean if speeds else None,
        throughput=estimate_pooled(blocks, sum_output),
        request_rate=len(results) / duration if duration else 0.0,
        goodput=num_met / duration if goal and duration else None,
        ttft=_summarise_ms(result.ttft for result in results),
        tpot=_summarise_ms(result.tpot for result in results),
        itl=_summarise_ms(gap for result in results for gap in result.gaps),
        e2el=_summarise_ms(result.latency for result in results),
        acceptance=measure_acceptance(blocks),
        errors=dict(Counter((result.error or "")[:120] for result in failures).most_common(10)),
        bunched=sum(result.is_bunched for result in results),
        recomputed_tokens=sum(block.recomputed_tokens for block in blocks),
    )


def _summarise_ms(values: Iterable[float | None]) -> Summary | None:
    return summarise(value * MS for value in values if value is not None)


def sum_answers(results: Iterable[RequestResult]) -> Totals:
    """Add up the accounts in answers."""
    drafted: list[int] = []
    accepted: list[int] = []
    tokens = plain_steps = requests = 0
    for result in results:
        requests += 1
        tokens += result.output_tokens
        drafted += result.drafted
        accepted += result.accepted
        plain_steps += max(
            0, result.output_tokens - 1 - sum(result.accepted) - len(result.accepted)
        )
    max_depth = max(drafted, default=0)
    accepted_counts, drafted_counts = np.asarray(accepted), np.asarray(drafted)
    return Totals(
        requests=requests,
        tokens=tokens,
        verify_steps=len(drafted),
        proposed=sum(drafted),
        accepted=sum(accepted),
        rejected=accepted.count(0),
        undrafted=plain_steps,
        accepted_at=tuple(int((accepted_counts > position).sum()) for position in range(max_depth)),
        proposed_at=tuple(int((drafted_counts > position).sum()) for position in range(max_depth)),
    )


def measure_acceptance(blocks: Sequence[Block]) -> AcceptanceFigures | None:
    """Measure acceptance from the answers' own accounts, or else from the server's counters."""
    results = [result for block in blocks for result in block.completed]
    if any(result.reports_steps for result in results):
        return describe_acceptance(sum_answers(results), "answers")
    totals_list = [block.totals for block in blocks if block.totals is not None]
    if not totals_list:
        return None
    totals = sum(totals_list, Totals())
    return describe_acceptance(totals, "counters") if totals.verify_steps else None


def describe_acceptance(totals: Totals, source: str) -> AcceptanceFigures:
    draft_counts = totals.proposed_at or (totals.verify_steps,) * len(totals.accepted_at)
    pairs = zip(totals.accepted_at, draft_counts, strict=False)
    # vLLM's own counters say nothing of steps without a draft
    is_complete = source == "answers" or bool(totals.proposed_at)
    return AcceptanceFigures(
        source=source,
        length=totals.acceptance_length,
        per_position=tuple(accepted / drafts for accepted, drafts in pairs if drafts),
        fallback=totals.fallback_ratio if is_complete else None,
    )


def split_categories(blocks: Sequence[Block]) -> dict[str, list[Block]]:
    """Return the blocks by category of their sessions, without counters."""
    names = sorted({result.category for block in blocks for result in block.results})
    return {
        name: [
            replace(
                block,
                results=tuple(result for result in block.results if result.category == name),
                totals=None,
            )
            for block in blocks
        ]
        for name in names
    }
