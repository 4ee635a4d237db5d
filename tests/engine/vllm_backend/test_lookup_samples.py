"""10,000 tokens sampled without a seed, with lookups, against their exact distributions.

The answers are long and made of three tokens, so lookups have much to copy, and a copied token is
right as often as chance has it. Another implementation of the model gives the distribution of every
token, given those before it. A step's proposals are known before it samples, so tokens can be
grouped by them, and the counts of a group still have a known mean and covariance.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from functools import partial
from itertools import chain
from typing import NamedTuple

import pytest
import pytest_asyncio
import torch
from transformers import LlamaForCausalLM

from eaglegate.engine.steps import read_steps
from eaglegate.engine.types import Drafter, EngineRequest, Sampling, Step
from eaglegate.engine.vllm_backend.arguments import DEMO
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.features.lookups.engine.arguments import add_lookups
from tests.engine.drive import run_engine, speculation
from tests.engine.vllm_backend.conftest import SECOND_RUNNER, SMALL
from tests.engine.vllm_backend.test_lossless import opening

__all__ = ["opening"]  # a fixture

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(SECOND_RUNNER, reason="the lookups of the first runner"),
]

NUM_ANSWERS, NUM_TOKENS = 20, 500
ALLOWED = (224, 272, 499)
TEMPERATURE = 2.0
FALSE_ALARM = 3e-7
"""Of each of three tests: less than 1e-6 together."""

Tokens = tuple[int, ...]


class SampledToken(NamedTuple):
    """A token of an answer, with what its step proposed at its position."""

    token: int
    proposal: int | None
    """The token that was verified here; None after the last one."""
    drafter: Drafter


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sampling_engine() -> AsyncGenerator[VllmEngine, None]:
    settings = SMALL | {"max_model_len": 2048, "kv_cache_memory_bytes": 256 << 20}
    draft = speculation(1)
    engine = run_engine(
        "random",
        configure=partial(add_lookups, width=8),
        **settings,
        speculative_config=draft,
        async_scheduling=False,
    )
    async with engine as started:
        assert await started.set_planning("random") == "random"
        yield started


async def sample(engine: VllmEngine, name: str, prompt: Tokens) -> list[SampledToken]:
    sampling = Sampling(
        max_tokens=NUM_TOKENS,
        temperature=TEMPERATURE,
        allowed_token_ids=ALLOWED,
        ignore_eos=True,
    )
    request = EngineRequest(name, prompt, sampling, traced=True)
    steps = [step async for step in read_steps(engine.generate, request)]
    return list(read_tokens(steps))


def read_tokens(steps: list[Step]) -> Iterator[SampledToken]:
    """Yield the tokens of an answer. The first comes from the prompt's pass, without an account."""
    token_ids = list(chain.from_iterable(step.token_ids for step in steps))
    accounts = list(chain.from_iterable(step.decode for step in steps))
    traces = list(chain.from_iterable(step.traces for step in steps))[1:]
    yield SampledToken(token_ids[0], None, Drafter.DRAFT)
    index = 1
    for account, trace in zip(accounts, traces, strict=True):
        assert len(trace.drafts) == account.drafted
        for place in range(account.delivered):
            proposal = trace.drafts[place] if place < account.drafted else None
            yield SampledToken(token_ids[index], proposal, account.drafter)
            index += 1
    assert index == len(token_ids)


def compute_distributions(prompt: Tokens, answers: list[Tokens]) -> torch.Tensor:
    """Return the probabilities of the allowed tokens in the shape (all tokens, allowed)."""
    model = LlamaForCausalLM.from_pretrained(DEMO / "target", dtype=torch.float32)
    text = torch.tensor([[*prompt, *answer] for answer in answers])
    rows = []
    with torch.inference_mode():
        for batch in text.split(4):
            logits = model(batch).logits[:, len(prompt) - 1 : -1, list(ALLOWED)]
            rows.append((logits.double() / TEMPERATURE).softmax(-1))
    return torch.cat(rows).flatten(0, 1)


def compute_p_value(probabilities: torch.Tensor, outcomes: torch.Tensor) -> float:
    """Return the p-value of the columns of ``probabilities`` that were drawn, by chi-square.

    The probabilities differ by row, so the counts have the sum of the rows' covariances.
    """
    counts = torch.bincount(outcomes, minlength=probabilities.shape[1])
    mean = probabilities.sum(0)
    covariance = torch.diag(mean) - probabilities.T @ probabilities
    excess, covariance = (counts - mean)[:-1], covariance[:-1, :-1]  # the last one follows
    statistic = excess @ torch.linalg.solve(covariance, excess)
    freedom = torch.tensor(len(excess), dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))


def sort_columns(
    probabilities: torch.Tensor, outcomes: torch.Tensor, keys: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Order the columns of each row by decreasing ``keys``. Without an order, errors of one sign
    would cancel out over rows."""
    columns = keys.argsort(dim=1, descending=True)
    return probabilities.gather(1, columns), (columns == outcomes[:, None]).int().argmax(1)


async def test_tokens_have_the_exact_distribution(
    sampling_engine: VllmEngine, opening: Tokens
) -> None:
    names = [f"answer-{index}" for index in range(NUM_ANSWERS)]
    answers = await asyncio.gather(*(sample(sampling_engine, name, opening) for name in names))
    texts = [tuple(sampled.token for sampled in answer) for answer in answers]
    probabilities = compute_distributions(opening, texts)
    tokens = list(chain.from_iterable(answers))
    assert len(tokens) == len(probabilities) == NUM_ANSWERS * NUM_TOKENS
    outcomes = torch.tensor([ALLOWED.index(sampled.token) for sampled in tokens])
    is_lookup = torch.tensor([sampled.drafter is Drafter.LOOKUP for sampled in tokens])
    proposals = torch.tensor(
        [[sampled.proposal == token for token in ALLOWED] for sampled in tokens]
    )
    has_lookup = is_lookup & proposals.any(1)
    accepted = proposals.gather(1, outcomes[:, None])[:, 0] & has_lookup
    assert has_lookup.sum() > len(tokens) / 2
    assert accepted.sum() < 0.9 * has_lookup.sum()
    # The proposal first, then the others, by their probability.
    keys = {"lookups": probabilities + 2 * proposals, "others": probabilities, "all": probabilities}
    groups = {"lookups": has_lookup, "others": ~has_lookup, "all": torch.ones_like(has_lookup)}
    p_values = {
        name: compute_p_value(*sort_columns(probabilities[rows], outcomes[rows], keys[name][rows]))
        for name, rows in groups.items()
    }
    assert min(p_values.values()) > FALSE_ALARM, p_values
