"""The estimate of ``eaglegate drafts compare --lookup N``: gain of lookups beside a serving draft.

A *lookup* proposes the tokens that followed the last tokens at an earlier position of the same
conversation. Whether it would be right follows from the captured answer; what the draft accepts is
in the captured steps. A replay chooses between the two at every step, as a planner would that
learns both. Definitions and assumptions: docs/drafts-compare.md.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from eaglegate.lab.measure.drafts import ALL, CostTable
from eaglegate.lab.measure.lookup_answers import TEXT, TWIN, LookupAnswer
from eaglegate.lab.measure.lookup_index import Proposal
from eaglegate.lab.measure.statistics import Estimate, bootstrap_ratio
from eaglegate.observability.captures.record import CapturedStep

TRIALS = 0.03
"""Share of lookups replaced by the draft, so that its acceptance beside a match stays learnt."""
PRIOR_STEPS = 8
"""Weight of the draft's mean acceptance against its acceptance beside such a match."""
PRIOR_TOKENS = 3
"""Weight of all lookups' acceptance by position against that beside such a match."""
MODEL_FREE = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Methods of speculation whose drafts cost no forward pass."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Cost of a step beyond one without drafts, which is 1."""

    draft: float = 0.07
    """Forward pass of the draft, per draft token."""
    verification: float = 0.01
    """Verification, per draft token or looked-up token."""
    source: str = "assumed"

    @classmethod
    def from_table(cls, table: CostTable, batch: float) -> Prices:
        """Read the price of a draft token with its verification from measured step costs.

        Depths do not tell the two apart; the verification keeps its assumed price. Raises
        ValueError.
        """
        min_depth, max_depth = table.depths[0], table.depths[-1]
        slope = (table.step_time(batch, max_depth) - table.step_time(batch, min_depth)) / max(
            1, max_depth - min_depth
        )
        plain_s = table.step_time(batch, min_depth) - min_depth * slope
        if min_depth == max_depth or plain_s <= 0:
            raise ValueError(f"{table.source}: --lookup needs step costs that grow from two depths")
        total = max(0.0, slope / plain_s)
        verification = min(cls().verification, total)
        return cls(total - verification, verification, table.source)

    def price_draft(self, drafted: int, method: str) -> float:
        return 1 + drafted * (self.verification + self.draft * (method not in MODEL_FREE))

    def price_lookup(self, width: int, drafted: int, method: str) -> float:
        """Price a lookup's step, in which the draft goes on with one pass for its own cache."""
        num_passes = min(1, drafted) * (method not in MODEL_FREE)
        return 1 + width * self.verification + num_passes * self.draft

    def describe(self) -> str:
        return (
            f"Cost of a step, in steps without drafts ({self.source}): 1, and {self.draft:.3g} per "
            f"draft token, {self.verification:.3g} per verified token; a step with a lookup keeps "
            "one pass of the draft"
        )


DRAFT = "draft"
VARIANTS = {
    "at once": (TEXT, False),
    "one step late": (TEXT, True),
    "twin, at once": (TWIN, False),
    "twin, one step late": (TWIN, True),
}
"""What a lookup searches, and whether the tokens of the step before are unknown to it."""


class LookupPlanner:
    """Chooses between a draft and a lookup, by what each yielded beside such a match so far."""

    def __init__(self, width: int, steps: Iterable[CapturedStep], prices: Prices) -> None:
        accepted = [step.accepted for step in steps if step.drafted]
        self._mean = sum(accepted) / max(1, len(accepted))
        self._drafts: dict[int | None, list[int]] = defaultdict(lambda: [0, 0])
        """Accepted drafts and steps, by bucket."""
        self._hits = defaultdict[int, list[list[int]]](lambda: [[0, 0] for _ in range(width)])
        """Right tokens and tries of lookups, by bucket and position."""
        self._overall = [[PRIOR_TOKENS, PRIOR_TOKENS + 1] for _ in range(width)]
        self._prices = prices

    def choose_width(self, bucket: int, drafted: int, method: str) -> int:
        """Return the width of the lookup with the most tokens per time; 0 if the draft has more."""
        accepted, steps = self._drafts[bucket]
        expectation = (accepted + PRIOR_STEPS * self._mean) / (steps + PRIOR_STEPS)
        rate = (1 + min(expectation, drafted)) / self._prices.price_draft(drafted, method)
        best_width, survival, tokens = 0, 1.0, 1.0
        table = zip(self._hits[bucket], self._overall, strict=True)
        for width, ((hits, tries), (all_hits, all_tries)) in enumerate(table, 1):
            prior = all_hits / all_tries
            survival *= (hits + PRIOR_TOKENS * prior) / (tries + PRIOR_TOKENS)
            tokens += survival
            lookup_rate = tokens / self._prices.price_lookup(width, drafted, method)
            if lookup_rate > rate:
                best_width, rate = width, lookup_rate
        return best_width

    def learn_draft(self, bucket: int | None, accepted: int) -> None:
        counts = self._drafts[bucket]
        counts[0] += accepted
        counts[1] += 1

    def learn_lookup(self, bucket: int, hits: int) -> None:
        """Score a lookup, taken or not: the tokens that follow tell how far it was right."""
        for counts, overall in zip(self._hits[bucket], self._overall, strict=True):
            for pair in (counts, overall):
                pair[0] += hits > 0
                pair[1] += 1
            hits -= 1
            if hits < 0:
                break


class DraftSteps:
    """Captured steps by kind of match, to draw from where a lookup left the captured path."""

    def __init__(self, answers: Iterable[LookupAnswer]) -> None:
        self.all: list[CapturedStep] = []
        self._by_kind: dict[Any, list[CapturedStep]] = defaultdict(list)
        for answer in answers:
            for position, step in answer.steps.items():
                self.all.append(step)
                self._by_kind[self._kind(answer.sources[TEXT][position])].append(step)

    def draw(self, proposal: Proposal | None, chance: random.Random) -> CapturedStep:
        return chance.choice(self._by_kind.get(self._kind(proposal)) or self.all)

    @staticmethod
    def _kind(proposal: Proposal | None) -> tuple[bool, bool] | None:
        # A draft is better where the lookup is right: both find copies easy.
        return proposal and (proposal.is_strong, proposal.hits > 0)


def list_variants(answers: Iterable[LookupAnswer]) -> dict[str, tuple[str, bool]]:
    """Return the variants, without those of the twin if no answer has one."""
    sources = {source for answer in answers for source in answer.sources}
    return {name: variant for name, variant in VARIANTS.items() if variant[0] in sources}


def replay_answers(answers: Sequence[LookupAnswer], width: int, prices: Prices) -> None:
    """Fill in the costs of all variants. Each workload has a planner of its own."""
    by_workload: dict[str, list[LookupAnswer]] = defaultdict(list)
    for answer in answers:
        by_workload[answer.workload].append(answer)
    for group in by_workload.values():
        steps = DraftSteps(group)
        for answer in group:
            answer.costs[DRAFT] = _price_captured(answer, prices)
        for name, (source, is_late) in list_variants(answers).items():
            planner, chance = LookupPlanner(width, steps.all, prices), random.Random(0)
            for answer in group:
                proposals = answer.sources.get(source) or answer.sources[TEXT]
                replay = Replay(answer, proposals, is_late, width, prices)
                answer.costs[name] = replay.run(planner, steps, chance)


def _price_captured(answer: LookupAnswer, prices: Prices) -> dict[str, float]:
    costs: dict[str, float] = defaultdict(float)
    for position, step in answer.steps.items():
        price = prices.price_draft(step.drafted, answer.method)
        _share_cost(costs, answer.phases, position, step.delivered, price)
    return costs


def _share_cost(
    costs: dict[str, float], phases: Sequence[str], position: int, count: int, price: float
) -> None:
    costs[ALL] += price
    for phase in phases[position : position + count]:
        costs[phase] += price / count


@dataclass(slots=True)
class Replay:
    """Decoding of one captured answer with lookups beside its draft."""

    answer: LookupAnswer
    proposals: Sequence[Proposal | None]
    is_late: bool
    width: int
    prices: Prices

    def run(
        self, planner: LookupPlanner, steps: DraftSteps, chance: random.Random
    ) -> dict[str, float]:
        """Return the time by phase, in steps without drafts.

        Without a lookup the steps are the captured ones. After a lookup that ended within a
        captured step, the draft's step is drawn from those beside such a match.
        """
        answer, costs = self.answer, defaultdict[str, float](float)
        position, last_position, end = min(answer.steps), None, len(answer.phases)
        while position < end:
            proposal = self.look_up(position, last_position)
            captured_step = answer.steps.get(position)
            step = captured_step or steps.draw(answer.sources[TEXT][position], chance)
            width = proposal and planner.choose_width(proposal.bucket, step.drafted, answer.method)
            if width and chance.random() < TRIALS:
                width = 0
            if proposal:
                planner.learn_lookup(proposal.bucket, proposal.hits)
            if proposal and width:
                count = min(proposal.hits, width) + 1
                price = self.prices.price_lookup(width, step.drafted, answer.method)
            else:
                if step.drafted:
                    planner.learn_draft(proposal and proposal.bucket, step.accepted)
                count = captured_step.delivered if captured_step else step.accepted + 1
                price = self.prices.price_draft(step.drafted, answer.method)
            count = min(count, end - position)
            _share_cost(costs, answer.phases, position, count, price)
            position, last_position = position + count, position
        return costs

    def look_up(self, position: int, last_position: int | None) -> Proposal | None:
        """Return the lookup that a step can use; one step late, the rest of the one before."""
        if not self.is_late:
            return self.proposals[position]
        if last_position is None or (proposal := self.proposals[last_position]) is None:
            return None
        hits = proposal.hits - (position - last_position)
        return proposal._replace(hits=hits) if hits >= 0 else None


def summarise_lookups(answers: Sequence[LookupAnswer]) -> dict[str, dict[str, Any]]:
    """Return by slice (all, workload, phase): tokens, predicted share, draft, gains by variant."""
    slices = {ALL: (answers, ALL)}
    for name in sorted({answer.workload for answer in answers}):
        slices[f"workload {name or '-'}"] = ([a for a in answers if a.workload == name], ALL)
    for name in sorted({phase for answer in answers for phase in answer.costs[DRAFT]} - {ALL}):
        slices[f"phase {name}"] = ([a for a in answers if name in a.costs[DRAFT]], name)
    return {name: _summarise_slice(*part) for name, part in slices.items()}


def _summarise_slice(answers: Sequence[LookupAnswer], phase: str) -> dict[str, Any]:
    rights = [
        proposal is not None and proposal.hits > 0
        for answer in answers
        for proposal, name in zip(answer.sources[TEXT], answer.phases, strict=True)
        if phase in (ALL, name)
    ]
    sessions = [answer.session for answer in answers]
    costs = [answer.costs[DRAFT][phase] for answer in answers]
    gains: dict[str, Estimate | None] = {
        name: bootstrap_ratio(costs, [answer.costs[name][phase] for answer in answers], sessions)
        for name in list_variants(answers)
    }
    return {
        "answers": len(answers),
        "tokens": len(rights),
        "predicted": sum(rights) / max(1, len(rights)),
        "tokens_per_step": _count_per_step(answers, phase),
        "gains": gains,
    }


def _count_per_step(answers: Iterable[LookupAnswer], phase: str) -> float:
    """Return the captured tokens per step, of the steps that begin in the phase."""
    delivered = [
        step.delivered
        for answer in answers
        for position, step in answer.steps.items()
        if phase in (ALL, answer.phases[position])
    ]
    return sum(delivered) / max(1, len(delivered))
