"""Scores of answers that come from known distributions, with vLLM's own samplers as the source."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from vllm.model_executor.layers.utils import apply_penalties
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from eaglegate.engine.speculation.accounts.scores import AnswerScores, ScoringRules
from eaglegate.engine.vllm_backend import position_noise
from eaglegate.features.audit.engine import scoring
from eaglegate.features.audit.engine.scoring import AnswerScorer, AuditedTokens, apply_rules
from eaglegate.features.audit.evidence import SequentialTest

pytestmark = pytest.mark.usefixtures("one_thread")
VOCABULARY = 200
PROMPT = (5, 6, 7)
LENGTH = 40
Choose = Callable[[torch.Tensor, int], int]
"""Chooses a token from a row of raw logits, at a place in the answer."""


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small are slower in several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def rules(**given: Any) -> ScoringRules:
    return ScoringRules(**{"prompt_tokens": 3, "last": 0, "tie": 0.01, "temperature": 0.0} | given)


def make_logits(seed: int, rows: int = LENGTH, spread: float = 2.5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(rows, VOCABULARY, generator=generator)


def score(
    given: ScoringRules, logits: torch.Tensor, output: list[int], **more: Any
) -> AnswerScores:
    scorer = AnswerScorer(AuditedTokens(given, PROMPT, output, **more))
    for begin in (0, 17):
        scorer.add(begin, logits[begin : 17 if begin == 0 else None])
    return scorer.finish()


def truncate(scaled: torch.Tensor, given: ScoringRules) -> torch.Tensor:
    """vLLM's own: min-p, then top-k and top-p."""
    scaled = scaled.clone()
    if given.min_p:
        probs = scaled.softmax(-1)
        scaled[probs < given.min_p * probs.amax(-1, keepdim=True)] = -torch.inf
    rows = len(scaled)
    k = torch.full((rows,), given.top_k) if given.top_k else None
    p = torch.full((rows,), given.top_p) if given.top_p < 1 else None
    return apply_top_k_top_p(scaled, k, p)


TRUNCATIONS: list[dict[str, Any]] = [
    {},
    {"top_k": 20},
    {"top_p": 0.8},
    {"min_p": 0.05},
    {"top_k": 30, "top_p": 0.9, "min_p": 0.01},
]


def draw(logits: torch.Tensor, given: ScoringRules, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    shares = truncate(logits / given.temperature, given).softmax(-1)
    return torch.multinomial(shares, 1, generator=generator)[:, 0].tolist()


def test_greedy_margins_are_the_distance_to_the_best_token() -> None:
    logits = make_logits(1)
    best = logits.argmax(-1).tolist()
    found = score(rules(), logits, best)
    assert set(found.margins) == {0.0}
    assert [*found.best] == best
    second = logits.topk(2).indices[11, 1].item()
    found = score(rules(), logits, [*best[:11], int(second), *best[12:]])
    gap = (logits[11, best[11]] - logits[11, second]).item()
    assert found.worst == (11, pytest.approx(gap, rel=1e-5))


def test_an_answer_that_is_not_whole_has_no_scores() -> None:
    scorer = AnswerScorer(AuditedTokens(rules(), PROMPT, [1, 2, 3]))
    scorer.add(1, make_logits(1, 2))
    with pytest.raises(ValueError, match="2 of 3 tokens"):
        scorer.finish()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
def test_seeded_tokens_are_exact(temperature: float, truncation: dict[str, Any]) -> None:
    given = rules(temperature=temperature, seed=-77, **truncation)
    logits = make_logits(2)
    positions = torch.arange(len(PROMPT) - 1, len(PROMPT) - 1 + LENGTH)
    scaled = truncate(logits / temperature, given)
    output = position_noise.sample(scaled, torch.full_like(positions, -77), positions).tolist()
    assert max(score(given, logits, output).margins) == 0.0
    other = score(replace(given, seed=78), logits, output)
    assert max(other.margins) > given.tie


@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
def test_seeded_tokens_survive_rounding(truncation: dict[str, Any]) -> None:
    """The engine's logits differ from the audit's by their last bits."""
    given = rules(temperature=0.8, seed=3, tie=0.1, **truncation)
    positions = torch.arange(len(PROMPT) - 1, len(PROMPT) - 1 + LENGTH)
    differing = 0
    torch.manual_seed(2)
    for at in range(8):
        logits = make_logits(at)
        noisy = logits + 0.01 * torch.randn(logits.shape)
        scaled = truncate(noisy / given.temperature, given)
        output = position_noise.sample(scaled, torch.full_like(positions, 3), positions).tolist()
        margins = score(given, logits, output).margins
        differing += sum(margin > 0 for margin in margins)
        assert max(margins) <= given.tie
    assert differing


def test_tokens_outside_of_the_rules_are_violations() -> None:
    logits = make_logits(4)
    ranked = logits.argsort(-1, descending=True)
    for given, rank in (
        (rules(temperature=1.0, top_k=20), 30),
        (rules(temperature=1.0, top_p=0.5), 150),
        (rules(temperature=1.0, min_p=0.3), 60),
        (rules(temperature=1.0, top_k=20, seed=1), 30),
        (rules(allowed=tuple(ranked[0, :5].tolist())), 30),
    ):
        output = [*ranked[:, 0].tolist()]
        output[0] = int(ranked[0, rank])
        assert score(given, logits, output).margins[0] == math.inf, given


def test_penalties_and_biases_are_vllms() -> None:
    logits = make_logits(5)
    output = [9, 9, 12, 5, 9, 30] * 7
    given = rules(
        repetition_penalty=1.3,
        frequency_penalty=0.4,
        presence_penalty=-0.7,
        bias_tokens=(4, 9),
        bias_values=(3.0, -2.0),
    )
    ours = apply_rules(logits[10:14].clone(), 10, AuditedTokens(given, PROMPT, output))
    theirs = logits[10:14].clone()
    theirs[:, 4] += 3.0
    theirs[:, 9] -= 2.0
    for row in range(4):
        one = apply_penalties(
            theirs[row : row + 1].clone(),
            torch.tensor([PROMPT]),
            torch.tensor([output[: 10 + row]]),
            torch.tensor([-0.7]),
            torch.tensor([0.4]),
            torch.tensor([1.3]),
        )
        torch.testing.assert_close(ours[row], one[0])


def test_bad_words_and_the_minimum_of_tokens() -> None:
    logits = torch.zeros(4, VOCABULARY)
    tokens = AuditedTokens(
        rules(min_tokens=3), PROMPT, [1, 2, 3, 4], stops=(50,), bad_words=((2, 8), (40,))
    )
    forbidden = apply_rules(logits, 0, tokens) == -torch.inf
    rows = [row.nonzero()[:, 0].tolist() for row in forbidden]
    assert rows == [[40, 50], [40, 50], [8, 40, 50], [40]]


@pytest.mark.parametrize("temperature", [0.4, 1.0, 1.7])
@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
def test_clean_samples_bring_no_evidence(temperature: float, truncation: dict[str, Any]) -> None:
    given = rules(temperature=temperature, **truncation)
    test = SequentialTest(threshold=1e4)
    for at in range(25):
        logits = make_logits(at)
        found = score(given, logits, draw(logits, given, 1000 + at))
        assert max(found.margins) == 0.0
        assert found.evidence is not None
        assert found.judged >= LENGTH / 2
        assert not test.add(found.evidence, found.judged), test.strongest


@pytest.mark.parametrize("tie", [0.01, 0.1])
def test_samples_of_rounded_logits_bring_no_evidence(tie: float) -> None:
    given = rules(temperature=0.5, tie=tie, top_p=0.9)
    test = SequentialTest(threshold=1e4)
    torch.manual_seed(2)
    for at in range(40):
        logits = make_logits(at)
        noisy = logits + tie / 4 * torch.randn(logits.shape)
        found = score(given, logits, draw(noisy, given, at))
        assert max(found.margins) == 0.0
        assert found.evidence is not None
        assert not test.add(found.evidence, found.judged), test.strongest


def test_the_kinds_of_faults_are_named() -> None:
    logits = make_logits(1)
    found = score(rules(temperature=1.0), logits, draw(logits, rules(temperature=1.0), 1))
    assert tuple(found.evidence or ()) == scoring.FAMILIES


def test_every_ratio_has_a_mean_of_one_at_most() -> None:
    """Exact: over all tokens of a small vocabulary, in their true distribution."""
    given = rules(temperature=0.6, top_k=40)
    row = truncate(make_logits(9, 1) / 0.6, given)
    shares = row.softmax(-1)[0]
    tokens = shares.nonzero()[:, 0]
    kept = row.expand(len(tokens), -1)
    means = torch.zeros(len(scoring.FAMILIES))
    for spread in torch.linspace(0.005, 0.995, 100):
        ratios = scoring.measure_evidence(
            kept, tokens.unsqueeze(1), given, 0.6 * kept, spread.expand(len(tokens))
        )
        means += (ratios.exp() * shares[tokens].unsqueeze(1)).sum(0) / 100
    assert means.max() <= 1.01
    assert means.min() > 0.95
