"""The output never depends on speculation: greedy text of an engine without a draft, and ours.

One engine without a draft writes the reference; the shared one (K = 7, little KV, small chunks)
must write the same at every depth.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import pytest_asyncio
import torch
from msgspec.structs import replace

from eaglegate.engine.totals import Totals
from eaglegate.engine.types import Constraint, EngineRequest, Sampling
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from eaglegate.text.events import FinishReason
from tests.engine.drive import Outcome, find_logger, fix_depth, make_greedy, run, run_all
from tests.engine.vllm_backend.conftest import FEW, MOST, SECOND_RUNNER

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

DEPTHS = range(MOST + 1)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<tool_call>",
        "content": {"type": "json_schema", "json_schema": SCHEMA},
        "end": "</tool_call>",
    },
}
CONSTRAINTS = {
    "json_schema": Constraint("json_schema", json.dumps(SCHEMA)),
    "regex": Constraint("regex", r"[A-Z][a-z ]{3,40}\."),
    "structural_tag": Constraint("structural_tag", json.dumps(TAG)),
    "after_reasoning": Constraint("json_schema", json.dumps(SCHEMA), after_reasoning=True),
}
WAYS_TO_SAMPLE: dict[str, dict[str, Any]] = {
    "top_p": {"temperature": 2.0, "top_k": 16, "top_p": 0.9},
    "min_p": {"temperature": 2.0, "min_p": 0.1, "logit_bias": {300: 1.0, 312: -1.0}},
}
"""Hot settings, because the demo model is sure of itself."""
SAMPLES = 280 if SECOND_RUNNER else 400
"""Short samples per side of a statistical test."""
SEEDS = 40 if SECOND_RUNNER else 100
"""Number of those samples that are taken with their seeds, too."""
SAMPLED_TOKENS = 3 if SECOND_RUNNER else 6
ACCEPTED = 0.2 if SECOND_RUNNER else 0.5
"""Draft tokens that a sample must accept on average, or its text says little about drafts: 0.1 for
each token after the first.
"""
LAST_STOP = 12 if SECOND_RUNNER else 30
"""Tokens of an answer that are tried as its stop."""
LONG_TOKENS = 500
"""Four blocks of KV to begin with, five in the end: there is room for four of them."""
REPEATED = (0, MOST) if SECOND_RUNNER else (0, 1, 3, MOST)
"""Depths of requests that hit the prefix cache."""
LONG_ANSWER = 24 if SECOND_RUNNER else 60

Reference = dict[str, Outcome]
Prompts = list[tuple[int, ...]]


def plain(prompts: Prompts) -> list[EngineRequest]:
    """The second prompt's answer has an end; more of them where that is quick."""
    tokens = 40 if SECOND_RUNNER else 100
    return [
        make_greedy(f"plain-{index}", prompt, tokens) for index, prompt in enumerate(prompts[:FEW])
    ]


def long(prompts: Prompts) -> list[EngineRequest]:
    return [
        make_greedy(f"long-{index}", prompt, LONG_ANSWER, ignore_eos=True)
        for index, prompt in enumerate(lengthen(prompts))
    ]


def lengthen(prompts: Prompts) -> Prompts:
    """Prompts longer than a prefill chunk, which need more KV than there is: chunks and
    preemption."""
    filler = repeated(prompts[1] + prompts[4], LONG_TOKENS)
    return [
        (prompt + filler[index:])[: LONG_TOKENS - index] for index, prompt in enumerate(prompts)
    ]


def repeated(tokens: tuple[int, ...], count: int) -> tuple[int, ...]:
    return (tokens * -(-count // len(tokens)))[:count]


def with_logprobs(prompts: Prompts) -> list[EngineRequest]:
    few = prompts[:FEW]
    return [
        make_greedy(f"logprobs-{index}", prompt, 24, logprobs=3) for index, prompt in enumerate(few)
    ]


def constrained(prompts: Prompts) -> list[EngineRequest]:
    return [
        replace(make_greedy(f"{name}-{index}", prompt, 60), constraint=constraint)
        for name, constraint in CONSTRAINTS.items()
        for index, prompt in enumerate(prompts[: min(3, FEW)])
    ]


def sampled(opening: tuple[int, ...], name: str) -> list[EngineRequest]:
    """Many short samples of one prompt, each with its seed: an engine without a draft takes them
    from the exact distribution (``test_position_noise.py``).
    """
    sampling = Sampling(max_tokens=SAMPLED_TOKENS, **WAYS_TO_SAMPLE[name])
    return [
        EngineRequest(f"{name}-{seed}", opening, replace(sampling, seed=seed))
        for seed in range(SAMPLES)
    ]


def names(requests: list[EngineRequest]) -> list[str]:
    return [request.id for request in requests]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def opening(renderer: VllmRenderer) -> tuple[int, ...]:
    """A thought begun that nothing in the prompt goes on with, so that there is much to choose."""
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "<think>\nI look for"},
    ]
    return tuple(
        renderer.render_chat(
            messages, None, add_generation_prompt=False, continue_final_message=True
        )
    )


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def reference(
    plain_engine: VllmEngine, prompts: Prompts, opening: tuple[int, ...]
) -> Reference:
    """Answers of an engine without a draft, one request at a time where batching could matter."""
    cases = [*plain(prompts), *with_logprobs(prompts), *constrained(prompts)]
    ways = ["min_p"] if SECOND_RUNNER else WAYS_TO_SAMPLE
    crowd = [*long(prompts), *(one for way in ways for one in sampled(opening, way))]
    alone = [await run(plain_engine, request) for request in cases]
    together = await run_all(plain_engine, crowd)
    return dict(zip(names([*cases, *crowd]), [*alone, *together], strict=True))


def assert_same(got: list[Outcome], requests: list[EngineRequest], reference: Reference) -> None:
    for outcome, request in zip(got, requests, strict=True):
        want = reference[request.id]
        assert outcome.token_ids == want.token_ids, request.id
        assert outcome.finish == want.finish, request.id
        assert outcome.totals.imbalance == 0, request.id


async def test_the_reference_has_something_to_say(reference: Reference) -> None:
    lengths = [len(outcome.token_ids) for name, outcome in reference.items() if "plain" in name]
    assert min(lengths) > 25
    assert all(outcome.totals.verify_steps == 0 for outcome in reference.values())


@pytest.mark.gpu_path
@pytest.mark.parametrize("depth", [1, MOST])
async def test_plain_text_of_one_request_at_a_time(
    engine: VllmEngine, prompts: Prompts, reference: Reference, depth: int
) -> None:
    requests = plain(prompts)
    got = [await run(engine, fix_depth(depth, request)) for request in requests]
    assert_same(got, requests, reference)
    for outcome in got:
        assert len(outcome.totals.proposed_at) == depth
        assert outcome.totals.accepted


@pytest.mark.gpu_path
async def test_every_depth_in_one_batch(
    engine: VllmEngine, prompts: Prompts, reference: Reference
) -> None:
    requests = [request for request in plain(prompts) for _ in DEPTHS]
    depths = [depth for _ in plain(prompts) for depth in DEPTHS]
    mixed = [fix_depth(depth, request) for depth, request in zip(depths, requests, strict=True)]
    got = await run_all(engine, mixed)
    assert_same(got, requests, reference)
    for depth, outcome in zip(depths, got, strict=True):
        assert len(outcome.totals.proposed_at) == depth


@pytest.mark.gpu_path
async def test_the_token_limit_inside_a_draft(
    engine: VllmEngine, prompts: Prompts, reference: Reference
) -> None:
    requests = [make_greedy("plain-1", prompts[1], limit) for limit in range(1, 20)]
    for limit, got in enumerate(
        await run_all(engine, [fix_depth(MOST, request) for request in requests]), start=1
    ):
        assert got.token_ids == reference["plain-1"].token_ids[:limit]
        assert got.finish is FinishReason.LENGTH
        assert got.totals.imbalance == 0
        assert got.totals.cut == 0, "no draft is verified that could not be delivered"


@pytest.mark.gpu_path
async def test_a_stop_token_inside_a_draft(
    engine: VllmEngine, prompts: Prompts, reference: Reference
) -> None:
    written = reference["plain-1"].token_ids
    cut = 0
    for stop in dict.fromkeys(written[1:LAST_STOP]):
        end = written.index(stop) + 1
        got = await run(
            engine, fix_depth(MOST, make_greedy("s", prompts[1], 100, stop_token_ids=(stop,)))
        )
        assert got.token_ids == written[:end]
        assert got.finish is FinishReason.STOP
        assert got.totals.imbalance == 0
        cut += got.totals.cut
    assert cut > 0, "some stop must have fallen inside an accepted draft"


async def test_leaving_inside_a_draft(
    engine: VllmEngine, prompts: Prompts, reference: Reference
) -> None:
    """A stop string the gateway finds: it leaves, and trims what the client did not get."""
    written = reference["plain-1"].token_ids
    for tokens in range(1, 40, 6):
        got = await run(
            engine, fix_depth(MOST, make_greedy("l", prompts[1], 100)), leave_after=tokens
        )
        assert got.token_ids == written[: len(got.token_ids)]
        got.account.trim(tokens)
        assert got.totals.tokens == tokens
        assert got.totals.imbalance == 0


@pytest.mark.gpu_path
@pytest.mark.parametrize("depth", [MOST] if SECOND_RUNNER else [0, MOST])
async def test_logprobs(
    engine: VllmEngine, prompts: Prompts, reference: Reference, depth: int
) -> None:
    requests = with_logprobs(prompts)
    got = await run_all(engine, [fix_depth(depth, request) for request in requests])
    assert_same(got, requests, reference)
    for outcome, request in zip(got, requests, strict=True):
        want = reference[request.id].logprobs
        assert len(outcome.logprobs) == len(outcome.token_ids)
        for ours, theirs in zip(outcome.logprobs, want, strict=True):
            assert ours.chosen.token_id == theirs.chosen.token_id
            assert ours.chosen.logprob == pytest.approx(theirs.chosen.logprob, abs=2e-3)
            assert len(ours.top) == 3


@pytest.mark.gpu_path
@pytest.mark.parametrize("depth", [0, MOST])
async def test_constraints(
    engine: VllmEngine,
    prompts: Prompts,
    renderer: VllmRenderer,
    reference: Reference,
    depth: int,
) -> None:
    requests = constrained(prompts)
    got = await run_all(engine, [fix_depth(depth, request) for request in requests])
    assert_same(got, requests, reference)
    answer = renderer.decode(got[-1].token_ids)
    assert "</think>" in answer
    assert '"city"' in answer.partition("</think>")[2]
    if depth:
        assert sum(outcome.totals.accepted for outcome in got) > 0


@pytest.mark.gpu_path
async def test_preemption_and_chunked_prefill(
    engine: VllmEngine, prompts: Prompts, reference: Reference
) -> None:
    requests = long(prompts)
    before = preemptions(engine)
    assert_same(await run_all(engine, requests), requests, reference)
    assert preemptions(engine) > before


@pytest.mark.gpu_path
async def test_prefix_cache_hits(
    engine: VllmEngine, prompts: Prompts, reference: Reference
) -> None:
    """One hit leaves a single token, where vLLM would count K drafts that nobody made."""
    request = long(prompts)[0]
    first = await run(engine, fix_depth(MOST, request))
    again = [await run(engine, fix_depth(depth, request)) for depth in REPEATED]
    assert_same([first, *again], [request] * (len(again) + 1), reference)
    assert again[-1].cached_tokens >= 256
    assert again[-1].totals.proposed == first.totals.proposed
    salted = await run(engine, replace(request, cache_salt="another key"))
    assert salted.cached_tokens == 0


@pytest.mark.parametrize("mode", [pytest.param("random", marks=pytest.mark.gpu_path), "auto"])
async def test_planned_depths(
    engine: VllmEngine, prompts: Prompts, reference: Reference, mode: str
) -> None:
    """Depths and widths that change at every step, beside requests that keep their own; with
    constraints, chunked prompts, preemption and prefix hits."""
    few = [*plain(prompts), *constrained(prompts)]
    assert await engine.set_planning(mode) == mode
    try:
        single = [] if SECOND_RUNNER or mode == "auto" else few[:FEW]
        alone = [await run(engine, request) for request in single]
        own = [fix_depth(3, replace(request, id=f"own-{request.id}")) for request in plain(prompts)]
        together = await run_all(engine, [*few, *long(prompts), *own])
        hits = [await run(engine, long(prompts)[0]) for _ in range(2)]
    finally:
        assert await engine.set_planning("off") == "off"
    assert_same(alone, few[: len(alone)], reference)
    assert_same(together, [*few, *long(prompts), *plain(prompts)], reference)
    assert_same(hits, [long(prompts)[0]] * len(hits), reference)
    assert hits[-1].cached_tokens >= 256
    totals = sum((outcome.totals for outcome in [*alone, *together]), Totals())
    assert totals.accepted > 0
    assert all(outcome.totals.imbalance == 0 for outcome in [*alone, *together])


def preemptions(engine: VllmEngine) -> float:
    """Preemptions by the engine's own counter."""
    return float(find_logger(engine).counter_num_preempted_reqs[0]._value.get())


@pytest.mark.parametrize("way", ["top_p", pytest.param("min_p", marks=pytest.mark.gpu_path)])
async def test_sampling_draws_from_the_same_distribution(
    engine: VllmEngine, opening: tuple[int, ...], reference: Reference, way: str
) -> None:
    """Chi-square of homogeneity over the first tokens written, without seeds on the one side."""
    requests = sampled(opening, way)
    free = [replace(one, sampling=replace(one.sampling, seed=None)) for one in requests]
    got = await run_all(engine, [fix_depth(MOST, request) for request in free])
    some = requests[:SEEDS]
    seeded = await run_all(engine, [fix_depth(MOST, request) for request in some])
    for outcome, request in zip(seeded, some, strict=True):
        assert outcome.token_ids == reference[request.id].token_ids
    accepted, with_seeds = (count_accepted(outcomes) / len(outcomes) for outcomes in (got, seeded))
    assert accepted > ACCEPTED
    assert with_seeds == pytest.approx(accepted, rel=0.3)
    for length in (2, 3, 4, 6):
        with_draft = Counter(outcome.token_ids[:length] for outcome in got)
        without = Counter(reference[request.id].token_ids[:length] for request in requests)
        assert homogeneity(with_draft, without) > 1e-5, f"first {length} tokens"


def count_accepted(outcomes: list[Outcome]) -> int:
    return sum(outcome.totals.accepted for outcome in outcomes)


def homogeneity(left: Counter[tuple[int, ...]], right: Counter[tuple[int, ...]]) -> float:
    """The p-value; rare outcomes (fewer than ten on both sides together) share one cell."""
    both = left + right
    common = [key for key, count in both.items() if count >= 10]
    assert len(common) > 5, "a test over a handful of outcomes shows nothing"
    table = [[side[key] for key in common] for side in (left, right)]
    for row, side in zip(table, (left, right), strict=True):
        row.append(side.total() - sum(row))
    seen = torch.tensor(table, dtype=torch.float64)
    seen = seen[:, seen.sum(0) > 0]
    expected = seen.sum(1, keepdim=True) * seen.sum(0) / seen.sum()
    statistic = ((seen - expected) ** 2 / expected).sum()
    freedom = torch.tensor(seen.shape[1] - 1, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))
