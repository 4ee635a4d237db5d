"""The arithmetic of ``eaglegate drafts compare``: from matches to acceptance, slices, time.

A *walk* replays decoding at a depth K over an answer that is known: it begins after the first
token, counts one verify step, goes on behind the tokens that step would have delivered. Acceptance
lengths are 1 + accepted / steps over walks, as in the metrics of a server; intervals resample
sessions. Definitions: docs/drafts-compare.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from measure.statistics import (
    Estimate,
    Finding,
    bootstrap,
    bootstrap_ratio,
    judge_ratio,
)

ALL = "all"


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """Where an answer belongs; ``phases`` are runs of tokens."""

    id: str
    session: str
    workload: str
    context: str
    phases: tuple[tuple[str, int], ...]
    sampled: bool
    tokens: int

    def phase_at(self) -> list[str]:
        """By token."""
        named = [name for name, count in self.phases for _ in range(count)]
        return named + [named[-1] if named else "content"] * (self.tokens - len(named))


@dataclass(slots=True)
class Walk:
    """One answer replayed at one depth; ``accepted_at[k]`` steps accepted draft k + 1."""

    steps: int = 0
    accepted: int = 0
    expected: float = 0.0
    """Accepted drafts expected of the same steps; equals ``accepted`` for greedy answers."""
    accepted_at: list[int] = field(default_factory=list)

    @property
    def delivered(self) -> int:
        return self.steps + self.accepted


def walk_answer(
    matches: Sequence[int], chances: Sequence[Sequence[float]], depth: int, phases: Sequence[str]
) -> dict[str, Walk]:
    """By phase of the step's first token, and all together.

    The last step may have no bonus token: a step is counted as the engine does, whose drafts beyond
    the answer's end are never accepted.
    """
    walks = {ALL: Walk(accepted_at=[0] * depth)}
    position, last = 0, len(matches)
    while position < last:
        right = min(depth, matches[position])
        expected = sum(chances[position][:depth])
        phase = phases[min(position + 1, len(phases) - 1)]
        for name in (ALL, phase):
            walk = walks.setdefault(name, Walk(accepted_at=[0] * depth))
            walk.steps += 1
            walk.accepted += right
            walk.expected += expected
            for at in range(right):
                walk.accepted_at[at] += 1
        position += right + 1
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
        """Raises ValueError."""
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
        shape = {len(line) for line in table.step_ms}
        rising = all(sorted(set(axis)) == list(axis) for axis in (table.batches, table.depths))
        if len(table.step_ms) != len(table.batches) or shape != {len(table.depths)} or not rising:
            raise ValueError(
                f"{source}: step_ms needs one row per batch and one column per depth, both rising"
            )
        return table

    def step_time(self, batch: float, depth: float) -> float:
        """Milliseconds, linear between what was measured. Raises ValueError beyond it."""
        if not self.depths[0] <= depth <= self.depths[-1]:
            raise ValueError(
                f"{self.source} measured depths {self.depths[0]:g} to {self.depths[-1]:g}"
            )
        columns = [np.interp(depth, self.depths, line) for line in self.step_ms]
        return float(np.interp(batch, self.batches, columns))


@dataclass(frozen=True, slots=True)
class DraftReplay:
    """One draft on one answer."""

    facts: AnswerFacts
    walks: Mapping[int, Mapping[str, Walk]]
    """By depth, then by phase."""


def estimate_length(found: Iterable[tuple[str, Walk]], expected: bool = False) -> Estimate | None:
    """Acceptance length with its interval, clustered by session."""
    pairs = [(session, walk) for session, walk in found if walk.steps]
    accepted = [walk.expected if expected else float(walk.accepted) for _, walk in pairs]
    steps = [float(walk.steps) for _, walk in pairs]
    ratio = bootstrap_ratio(accepted, steps, [session for session, _ in pairs])
    return None if ratio is None else ratio.transform(lambda value: 1 + value)


Select = Callable[[AnswerFacts], bool]


def list_slices(facts: Iterable[AnswerFacts]) -> dict[str, Select]:
    """All, every workload, and every context bucket of several."""
    known = list(facts)
    slices: dict[str, Select] = {ALL: lambda _: True}
    for name in sorted({one.workload for one in known}):
        slices[f"workload {name or '-'}"] = lambda one, name=name: one.workload == name  # type: ignore[misc]
    for name in sorted({one.context for one in known}):
        slices[f"context {name or '-'}"] = lambda one, name=name: one.context == name  # type: ignore[misc]
    return slices


def summarise_draft(
    observations: Sequence[DraftReplay], depths: Sequence[int], cost: CostTable | None, batch: float
) -> dict[str, Any]:
    """Acceptance by slice, phase, depth and position, with intervals; predicted time per token."""
    out: dict[str, Any] = {"slices": {}, "phases": {}, "positions": {}, "time_per_token_ms": {}}
    for name, belongs in list_slices(one.facts for one in observations).items():
        chosen = [one for one in observations if belongs(one.facts)]
        out["slices"][name] = {depth: _length(chosen, depth, ALL) for depth in depths}
    phases = sorted({name for one in observations for name in one.walks[depths[-1]]} - {ALL})
    for name in phases:
        out["phases"][name] = {depth: _length(observations, depth, name) for depth in depths}
    out["expected"] = {depth: _length(observations, depth, ALL, expected=True) for depth in depths}
    out["positions"] = estimate_positions(observations, depths[-1])
    if cost is not None:
        for depth in depths:
            length = out["slices"][ALL][depth]
            out["time_per_token_ms"][depth] = length and predict_time(length, cost, batch, depth)
    return out


def _length(
    observations: Iterable[DraftReplay], depth: int, phase: str, expected: bool = False
) -> Estimate | None:
    found = (
        (one.facts.session, one.walks[depth][phase])
        for one in observations
        if phase in one.walks[depth]
    )
    return estimate_length(found, expected)


def predict_time(length: Estimate, cost: CostTable, batch: float, depth: int) -> Estimate:
    """Step time over tokens per step; the interval is that of the acceptance length alone."""
    step = cost.step_time(batch, depth)
    low, high = length.low, length.high
    return Estimate(
        step / length.value,
        None if high is None else step / high,
        None if low is None else step / low,
        length.level,
        length.observations,
        length.clusters,
    )


def estimate_positions(
    observations: Sequence[DraftReplay], depth: int
) -> list[dict[str, Estimate | None]]:
    """By position: accepted of all steps, and accepted of the steps that reached it."""
    walks = [(one.facts.session, one.walks[depth][ALL]) for one in observations]
    sessions = [session for session, _ in walks]
    rows = []
    for at in range(depth):
        accepted = [float(walk.accepted_at[at]) for _, walk in walks]
        reached = [float(walk.accepted_at[at - 1] if at else walk.steps) for _, walk in walks]
        steps = [float(walk.steps) for _, walk in walks]
        rows.append(
            {
                "accepted": bootstrap_ratio(accepted, steps, sessions),
                "conditional": bootstrap_ratio(accepted, reached, sessions),
            }
        )
    return rows


def compare_pair(
    base: Sequence[DraftReplay], other: Sequence[DraftReplay], depth: int
) -> dict[str, dict[str, Any]]:
    """By slice: tokens per step of ``other`` over those of ``base``, paired by answer."""
    by_id = {one.facts.id: one for one in other}
    out: dict[str, dict[str, Any]] = {}
    for name, belongs in list_slices(one.facts for one in base).items():
        pairs = [
            (one, by_id[one.facts.id])
            for one in base
            if belongs(one.facts) and one.facts.id in by_id and one.walks[depth][ALL].steps
        ]
        ratio = _pool_ratio([one for one, _ in pairs], [two for _, two in pairs], depth)
        finding: Finding = judge_ratio(ratio, lower_is_better=False)
        out[name] = {"ratio": ratio, "verdict": finding.verdict.value, "reason": finding.reason}
    return out


def _pool_ratio(
    base: Sequence[DraftReplay], other: Sequence[DraftReplay], depth: int
) -> Estimate | None:
    """Of tokens over verify steps, both summed over answers: a long answer weighs as it costs."""
    walks = [[one.walks[depth][ALL] for one in side] for side in (base, other)]
    columns = [
        [float(count) for count in counts]
        for side in walks
        for counts in ([walk.delivered for walk in side], [walk.steps for walk in side])
    ]
    return bootstrap(
        columns,
        lambda sums: sums[:, 2] / sums[:, 3] * sums[:, 1] / sums[:, 0],
        [one.facts.session for one in base],
    )


def estimate_live(
    steps: Iterable[tuple[str, int, int]],
) -> Estimate | None:
    """Acceptance length the capture recorded: (session, verify steps, accepted) per answer."""
    rows = [row for row in steps if row[1]]
    ratio = bootstrap_ratio(
        [float(accepted) for _, _, accepted in rows],
        [float(count) for _, count, _ in rows],
        [session for session, _, _ in rows],
    )
    return None if ratio is None else ratio.transform(lambda value: 1 + value)
