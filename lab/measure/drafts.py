"""The arithmetic of ``eaglegate drafts compare``: from matches to acceptance, slices, time.

A *walk* replays decoding at a depth K over a known answer: it begins after the first token, counts
one verify step, and continues after the tokens that this step would have delivered. Acceptance
lengths are 1 + accepted / steps over walks, as in a server's metrics. Intervals resample sessions.
Definitions: docs/drafts-compare.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from eaglegate.lab.measure.statistics import (
    Estimate,
    Finding,
    bootstrap,
    bootstrap_ratio,
    judge_ratio,
)
from eaglegate.observability.captures.record import CapturedStep

ALL = "all"


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """Place of an answer in the traffic. ``phases`` are runs of tokens."""

    id: str
    session: str
    workload: str
    context: str
    phases: tuple[tuple[str, int], ...]
    sampled: bool
    tokens: int

    def phase_at(self) -> list[str]:
        """Return the phase of each token."""
        names = [name for name, count in self.phases for _ in range(count)]
        return names + [names[-1] if names else "content"] * (self.tokens - len(names))


@dataclass(slots=True)
class Walk:
    """One answer replayed at one depth; ``accepted_at[k]`` steps accepted draft k + 1.

    The numbers are whole, except for sampled drafts, where they are expectations.
    """

    steps: float = 0
    accepted: float = 0
    expected: float = 0.0
    """Expected number of accepted drafts in the same steps. Greedy answers have ``accepted``."""
    accepted_at: list[float] = field(default_factory=list)

    @property
    def delivered(self) -> float:
        return self.steps + self.accepted

    def add(self, accepted: int, expected: float) -> None:
        """Add one verify step."""
        self.steps += 1
        self.accepted += accepted
        self.expected += expected
        for position in range(accepted):
            self.accepted_at[position] += 1


class Walks(dict[str, Walk]):
    """Walks of one answer at one depth, by phase of a step's first token and in total."""

    def __init__(self, depth: int, phases: Sequence[str]) -> None:
        super().__init__({ALL: Walk(accepted_at=[0.0] * depth)})
        self._phases = phases

    def at(self, token: int) -> Iterator[Walk]:
        """Yield the walks to which a step belongs that begins with this token."""
        total = self[ALL]
        yield total
        phase = self._phases[min(token, len(self._phases) - 1)]
        yield self.setdefault(phase, Walk(accepted_at=[0.0] * len(total.accepted_at)))


def walk_answer(
    matches: Sequence[int], chances: Sequence[Sequence[float]], depth: int, phases: Sequence[str]
) -> Walks:
    """Replay an answer's verify steps.

    The last step may have no bonus token. It is counted as in the engine, where drafts beyond the
    end of the answer are never accepted.
    """
    walks = Walks(depth, phases)
    position, end = 0, len(matches)
    while position < end:
        hits = min(depth, matches[position])
        for walk in walks.at(position + 1):
            walk.add(hits, sum(chances[position][:depth]))
        position += hits + 1
    return walks


def walk_sampled_drafts(
    chances: Sequence[Sequence[float]], depth: int, phases: Sequence[str]
) -> Walks:
    """Replay an answer with sampled drafts: expectations over all ways to step through it.

    ``chances`` are, by position and depth, the probabilities that a draft is accepted if all before
    it are. Each position begins a step with some probability, which is passed on to the places
    where the step may end.
    """
    walks, end = Walks(depth, phases), len(chances)
    start_chances = [1.0, *[0.0] * (end + depth)]
    for position in range(end):
        reach_chances = [start_chances[position]]
        for offset in range(depth):
            accepted = reach_chances[-1] * chances[position][offset]
            start_chances[position + offset + 1] += reach_chances[-1] - accepted
            reach_chances.append(accepted)
        start_chances[position + depth + 1] += reach_chances[-1]
        for walk in walks.at(position + 1):
            walk.steps += reach_chances[0]
            walk.accepted += sum(reach_chances[1:])
            walk.expected += sum(reach_chances[1:])
            for offset, chance in enumerate(reach_chances[1:]):
                walk.accepted_at[offset] += chance
    return walks


def walk_captured(steps: Sequence[CapturedStep], depth: int, phases: Sequence[str]) -> Walks:
    """Return the verify steps that an engine recorded, in the form of ``walk_answer``."""
    walks = Walks(depth, phases)
    position = len(phases) - sum(step.delivered for step in steps)
    for step in steps:
        if step.drafted:
            for walk in walks.at(position):
                walk.add(step.accepted, float(step.accepted))
        position += step.delivered
    return walks


@dataclass(frozen=True, slots=True)
class CostTable:
    """Measured step times of an engine, by sequences in the batch and by depth."""

    batches: tuple[float, ...]
    depths: tuple[float, ...]
    step_ms: tuple[tuple[float, ...], ...]
    source: str = ""

    @classmethod
    def parse(cls, row: Mapping[str, Any], source: str) -> CostTable:
        """Parse a table, or an answer of ``GET /admin/speculation`` that holds one.

        Raises ValueError.
        """
        planner = row.get("planner")
        if isinstance(planner, Mapping):
            row = planner.get("cost", {}).get("table") or {}
        try:
            table = cls(
                tuple(map(float, row["batches"])),
                tuple(map(float, row["depths"])),
                tuple(tuple(map(float, line)) for line in row["step_ms"]),
                source,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{source}: a cost table needs batches, depths, step_ms: {error}"
            ) from None
        is_rising = all(sorted(set(axis)) == list(axis) for axis in (table.batches, table.depths))
        shape = [len(table.depths)] * len(table.batches)
        if not is_rising or [len(line) for line in table.step_ms] != shape:
            raise ValueError(
                f"{source}: step_ms needs one row per batch and one column per depth, both rising"
            )
        return table

    def step_time(self, batch: float, depth: float) -> float:
        """Return milliseconds, interpolated linearly. Raises ValueError outside the table."""
        axes = (("depths", depth, self.depths), ("batches of", batch, self.batches))
        for name, value, axis in axes:
            if not axis[0] <= value <= axis[-1]:
                raise ValueError(f"{self.source} measured {name} {axis[0]:g} to {axis[-1]:g}")
        columns = [np.interp(depth, self.depths, line) for line in self.step_ms]
        return float(np.interp(batch, self.batches, columns))


@dataclass(frozen=True, slots=True)
class DraftReplay:
    """One draft on one answer."""

    facts: AnswerFacts
    walks: Mapping[int, Mapping[str, Walk]]
    """Walks by depth, then by phase."""


Select = Callable[[AnswerFacts], bool]


def list_slices(facts: Iterable[AnswerFacts]) -> dict[str, Select]:
    """Return the slices: all, every workload, and context buckets if there are several."""
    answers = list(facts)
    slices: dict[str, Select] = {ALL: lambda _: True}
    for name in sorted({answer.workload for answer in answers}):
        slices[f"workload {name or '-'}"] = lambda answer, name=name: answer.workload == name  # type: ignore[misc]
    for name in sorted({answer.context for answer in answers}):
        slices[f"context {name or '-'}"] = lambda answer, name=name: answer.context == name  # type: ignore[misc]
    return slices


def summarise_draft(
    observations: Sequence[DraftReplay], depths: Sequence[int], cost: CostTable | None, batch: float
) -> dict[str, Any]:
    """Return acceptance by slice, phase, depth and position, and the predicted time per token."""
    last = depths[-1]
    phases = sorted({name for replay in observations for name in replay.walks[last]} - {ALL})
    slices = list_slices(replay.facts for replay in observations)

    def estimate(replays: Sequence[DraftReplay], phase: str) -> dict[int, Estimate | None]:
        return {depth: _length(replays, depth, phase) for depth in depths}

    out: dict[str, Any] = {
        "slices": {
            name: estimate([replay for replay in observations if select(replay.facts)], ALL)
            for name, select in slices.items()
        },
        "phases": {name: estimate(observations, name) for name in phases},
        "positions": estimate_positions(observations, last),
        "expected": {depth: _length(observations, depth, ALL, expected=True) for depth in depths},
        "time_per_token_ms": {},
    }
    if cost is not None:
        for depth, length in out["slices"][ALL].items():
            time = length and invert(length, cost.step_time(batch, depth))
            out["time_per_token_ms"][depth] = time
    return out


def _length(
    observations: Iterable[DraftReplay], depth: int, phase: str, expected: bool = False
) -> Estimate | None:
    """Estimate the acceptance length, with sessions as clusters."""
    pairs = [
        (replay.facts.session, replay.walks[depth][phase])
        for replay in observations
        if phase in replay.walks[depth] and replay.walks[depth][phase].steps
    ]
    accepted = [walk.expected if expected else float(walk.accepted) for _, walk in pairs]
    steps = [float(walk.steps) for _, walk in pairs]
    ratio = bootstrap_ratio(accepted, steps, [session for session, _ in pairs])
    return None if ratio is None else ratio.transform(lambda value: 1 + value)


def invert(estimate: Estimate, numerator: float) -> Estimate:
    """Return ``numerator`` over an estimate."""
    low, high = estimate.low, estimate.high
    return replace(
        estimate,
        value=numerator / estimate.value,
        low=None if high is None else numerator / high,
        high=None if low is None else numerator / low,
    )


def estimate_positions(
    observations: Sequence[DraftReplay], depth: int
) -> list[dict[str, Estimate | None]]:
    """Estimate by position the accepted share of the steps that reached it."""
    walks = [(replay.facts.session, replay.walks[depth][ALL]) for replay in observations]
    sessions = [session for session, _ in walks]
    reached = [float(walk.steps) for _, walk in walks]
    rows = []
    for position in range(depth):
        accepted = [float(walk.accepted_at[position]) for _, walk in walks]
        rows.append({"conditional": bootstrap_ratio(accepted, reached, sessions)})
        reached = accepted
    return rows


def compare_pair(
    base: Sequence[DraftReplay], other: Sequence[DraftReplay], depth: int
) -> dict[str, dict[str, Any]]:
    """Compare tokens per step of ``other`` to those of ``base`` by slice, paired by answer."""
    by_id = {replay.facts.id: replay for replay in other}
    out: dict[str, dict[str, Any]] = {}
    for name, select in list_slices(replay.facts for replay in base).items():
        pairs = [
            (replay, by_id[replay.facts.id])
            for replay in base
            if select(replay.facts) and replay.facts.id in by_id and replay.walks[depth][ALL].steps
        ]
        ratio = _pool_ratio(pairs, depth)
        finding: Finding = judge_ratio(ratio, lower_is_better=False)
        out[name] = {"ratio": ratio, "verdict": finding.verdict.value, "reason": finding.reason}
    return out


def _pool_ratio(pairs: Sequence[tuple[DraftReplay, DraftReplay]], depth: int) -> Estimate | None:
    """Estimate the ratio of tokens per verify step, summed over answers so that length counts."""
    walks = [[replay.walks[depth][ALL] for replay in pair] for pair in pairs]
    rows = [(a.delivered, a.steps, b.delivered, b.steps) for a, b in walks]
    return bootstrap(
        list(zip(*rows, strict=True)),
        lambda sums: sums[:, 2] / sums[:, 3] * sums[:, 1] / sums[:, 0],
        [base.facts.session for base, _ in pairs],
    )


@dataclass(frozen=True, slots=True)
class ServedLength:
    """Acceptance length of one slice or phase, as served and as predicted for the same requests."""

    live: Estimate | None
    predicted: Estimate | None
    difference: Estimate | None
    """Live minus predicted length. Requests are paired and sessions resampled."""

    @property
    def is_inside(self) -> bool | None:
        """True if the live length is within the predicted interval; None without an interval."""
        if self.live is None or self.predicted is None or self.predicted.low is None:
            return None
        assert self.predicted.high is not None
        return self.predicted.low <= self.live.value <= self.predicted.high

    def to_json(self) -> dict[str, Any]:
        return {
            "live": self.live,
            "predicted": self.predicted,
            "difference": self.difference,
            "inside": self.is_inside,
        }


def compare_served(
    replays: Sequence[DraftReplay], predictions: Sequence[DraftReplay], depth: int
) -> dict[str, ServedLength]:
    """Compare lengths by slice and phase over the answers in both."""
    by_id = {replay.facts.id: replay for replay in predictions}
    pairs = [(replay, by_id[replay.facts.id]) for replay in replays if replay.facts.id in by_id]
    if not pairs:
        return {}
    out = {
        name: _compare_lengths([pair for pair in pairs if select(pair[0].facts)], depth, ALL)
        for name, select in list_slices(replay.facts for replay, _ in pairs).items()
    }
    phases = {name for pair in pairs for replay in pair for name in replay.walks[depth]} - {ALL}
    return out | {f"phase {name}": _compare_lengths(pairs, depth, name) for name in sorted(phases)}


def _compare_lengths(
    pairs: Sequence[tuple[DraftReplay, DraftReplay]], depth: int, phase: str
) -> ServedLength:
    no_walk = Walk()
    rows = [
        (replay.walks[depth].get(phase, no_walk), prediction.walks[depth].get(phase, no_walk))
        for replay, prediction in pairs
    ]
    sums = [(a.accepted, a.steps, b.accepted, b.steps) for a, b in rows]
    sessions = [replay.facts.session for replay, _ in pairs]
    return ServedLength(
        _length((replay for replay, _ in pairs), depth, phase),
        _length((prediction for _, prediction in pairs), depth, phase),
        bootstrap(
            list(zip(*sums, strict=True)),
            lambda sums: sums[:, 0] / sums[:, 1] - sums[:, 2] / sums[:, 3],
            sessions,
        ),
    )
