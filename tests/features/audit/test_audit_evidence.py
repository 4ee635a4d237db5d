"""Verdicts on audited answers, and the sequential test over them."""

from __future__ import annotations

import math
import random

import pytest

from eaglegate.engine.speculation.accounts.scores import AnswerScores, Choosing, ScoringRules
from eaglegate.engine.types import EngineRequest, Sampling
from eaglegate.features.audit.evidence import (
    AuditOutcome,
    SequentialTest,
    judge_margins,
)


@pytest.mark.parametrize(
    ("margins", "outcome"),
    [
        ((), AuditOutcome.LOSSLESS),
        ((0.0, 0.0), AuditOutcome.LOSSLESS),
        ((0.0, 0.009), AuditOutcome.NEAR_TIE),
        ((0.009, 0.011), AuditOutcome.VIOLATED),
        ((math.inf,), AuditOutcome.VIOLATED),
    ],
)
def test_margins_tell_rounding_from_a_fault(
    margins: tuple[float, ...], outcome: AuditOutcome
) -> None:
    assert judge_margins(AnswerScores(margins), 0.01) is outcome


def test_rules_are_those_that_vllm_applies() -> None:
    def rules(**sampling: object) -> ScoringRules:
        given = Sampling(max_tokens=8, **sampling)  # type: ignore[arg-type]
        return ScoringRules.of(EngineRequest("r", (1, 2), given), 9, "bfloat16")

    greedy = rules(temperature=0.0, top_p=0.5, top_k=3, min_p=0.1, seed=4)
    assert greedy.choosing is Choosing.GREEDY
    assert (greedy.top_p, greedy.top_k, greedy.min_p, greedy.seed) == (1.0, 0, 0.0, None)
    assert rules(temperature=0.001).temperature == 0.01
    assert rules(seed=0).choosing is Choosing.SEEDED
    assert rules(seed=-1).choosing is Choosing.SAMPLED
    assert rules(top_k=-1).top_k == 0
    assert rules().tie == 0.1
    given = rules(logit_bias={3: 1.5, 8: -100.0}, allowed_token_ids=(3, 8))
    assert ScoringRules.from_fields(given.to_fields()) == given


def draw_answer(rng: random.Random, share: float, tokens: int = 50) -> dict[str, float]:
    """Two kinds of faults for a coin that should be fair and shows heads with ``share``."""
    heads = sum(rng.random() < share for _ in range(tokens))
    tails = tokens - heads
    return {
        "heads": heads * math.log(1.2) + tails * math.log(0.8),
        "tails": heads * math.log(0.8) + tails * math.log(1.2),
    }


def test_the_test_is_silent_on_clean_answers() -> None:
    rng = random.Random(5)
    tests = [SequentialTest(threshold=1e4) for _ in range(50)]
    assert not any(test.add(draw_answer(rng, 0.5), 50) for test in tests for _ in range(40))


def test_a_fault_that_begins_late_is_found_soon() -> None:
    rng = random.Random(6)
    test = SequentialTest()
    assert not any(test.add(draw_answer(rng, 0.5), 50) for _ in range(2000))
    found = next(at for at in range(200) if test.add(draw_answer(rng, 0.65), 50))
    assert found < 40
    assert test.strongest == "heads"
    assert (test.answers, test.tokens) == (2001 + found, 50 * (2001 + found))


def test_no_evidence_before_the_first_answer() -> None:
    assert SequentialTest().log_evidence == -math.inf
    assert SequentialTest().strongest == ""
