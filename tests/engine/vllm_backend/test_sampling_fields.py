"""Every field that steers sampling gives the same text with a draft as without one."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from eaglegate.engine.types import Constraint, EngineRequest, RepetitionStop, Sampling
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from tests.engine.drive import Outcome, fix_depth, make_greedy, run, run_all
from tests.engine.vllm_backend.conftest import DEPTHS, FEW, MOST, SECOND_RUNNER, TOKENS
from tests.engine.vllm_backend.test_lossless import preemptions

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

Prompts = list[tuple[int, ...]]
FIELDS = (
    "logit_bias", "allowed_token_ids", "bad_words", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "min_tokens", "all_together",
)  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


class Steered:
    """Requests whose fields change what the model would write, and what it then writes."""

    def __init__(self, free: Outcome, prompt: tuple[int, ...], renderer: VllmRenderer) -> None:
        self.free, self.prompt = free, prompt
        common = [token for token, _ in Counter(free.token_ids).most_common()]
        word = renderer.decode(free.token_ids[4:6]).strip()
        self.fields: dict[str, dict[str, Any]] = {
            "logit_bias": {"logit_bias": {common[0]: -100.0, common[1]: -4.0, common[2]: 3.0}},
            "allowed_token_ids": {"allowed_token_ids": tuple(sorted(common[1:]))},
            "bad_words": {"bad_words": (word, "the")},
            "presence_penalty": {"presence_penalty": 2.0},
            "frequency_penalty": {"frequency_penalty": 2.0},
            "repetition_penalty": {"repetition_penalty": 3.0},
            "min_tokens": {"min_tokens": len(free.token_ids) + 15},
        }
        self.fields["all_together"] = {
            name: value for given in self.fields.values() for name, value in given.items()
        }
        del self.fields["all_together"]["allowed_token_ids"]

    def request(self, field: str) -> EngineRequest:
        tokens = len(self.free.token_ids) + 30
        return make_greedy(field, self.prompt, tokens, **self.fields[field])


@pytest.fixture(scope="session")
def index() -> int:
    """Index of the prompt: one with a long answer, or the one with the shortest."""
    return 2 if SECOND_RUNNER else 1


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def steered(
    plain_engine: VllmEngine, prompts: Prompts, renderer: VllmRenderer, index: int
) -> Steered:
    free = await run(plain_engine, make_greedy("free", prompts[index], 100))
    return Steered(free, prompts[index], renderer)


async def test_fields_of_one_request_leave_the_others_of_its_batch_alone(
    engine: VllmEngine, plain_engine: VllmEngine, steered: Steered, prompts: Prompts
) -> None:
    requests = [
        *(steered.request(field) for field in FIELDS),
        *(make_greedy(f"other-{at_}", prompt, TOKENS) for at_, prompt in enumerate(prompts[:FEW])),
    ]
    want = [await run(plain_engine, request) for request in requests]
    for expected in want[: len(FIELDS)]:
        assert expected.token_ids != steered.free.token_ids, "the field has an effect"
    others = [await run(engine, request) for request in requests[len(FIELDS) :]]
    mixed = [fix_depth(depth, request) for request in requests for depth in DEPTHS]
    got = await run_all(engine, mixed)
    for number, (request, outcome) in enumerate(zip(mixed, got, strict=True)):
        expected = want[number // len(DEPTHS)]
        assert outcome.token_ids == expected.token_ids, request.id
        assert outcome.finish == expected.finish
        assert outcome.totals.imbalance == 0
    beside = got[len(FIELDS) * len(DEPTHS) :][len(DEPTHS) - 1 :: len(DEPTHS)]
    for alone, outcome in zip(others, beside, strict=True):
        # A draft's near tie may go the other way in another batch, which moves one step's end.
        assert abs(outcome.totals.verify_steps - alone.totals.verify_steps) <= 1


@pytest.mark.gpu_path
async def test_a_bias_and_a_grammar(
    engine: VllmEngine, plain_engine: VllmEngine, steered: Steered, renderer: VllmRenderer
) -> None:
    """The grammar leaves two cities; a bias against the one chosen makes it the other."""
    request = replace(
        make_greedy("schema", steered.prompt, 60),
        constraint=Constraint("json_schema", json.dumps(SCHEMA)),
    )
    free = (await run(plain_engine, request)).token_ids
    chosen = json.loads(renderer.decode(free[:-1]))["city"]
    vocabulary = ((token, renderer.decode([token])) for token in range(2048))
    bias = {token: -100.0 for token, text in vocabulary if text.startswith(chosen[0])}
    sampling = replace(request.sampling, logit_bias=bias)
    biased = replace(request, sampling=sampling)
    want = await run(plain_engine, biased)
    assert {chosen, json.loads(renderer.decode(want.token_ids[:-1]))["city"]} == {"Paris", "Rome"}
    for outcome in await run_all(engine, [fix_depth(depth, biased) for depth in DEPTHS]):
        assert outcome.token_ids == want.token_ids


SAMPLED: dict[str, dict[str, Any]] = {
    "min_p": {"min_p": 0.3},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.8},
    "min_p_and_bias": {"min_p": 0.05, "logit_bias": {20: 2.0}},
    "top_p_and_bias": {"top_p": 0.9, "top_k": 40, "logit_bias": {20: -9.0}},
    "budget": {"thinking_token_budget": 5},
}


@pytest.mark.gpu_path
async def test_every_field_in_one_seeded_batch(
    engine: VllmEngine, plain_engine: VllmEngine, steered: Steered, renderer: VllmRenderer
) -> None:
    """Rows of a batch whose neighbours have other fields, other depths, or none; and at random
    depths."""
    tokens = TOKENS
    fields: dict[str, dict[str, Any]] = {"none": {}, **steered.fields, **SAMPLED}
    fields["min_p_and_bias"] = {"min_p": 0.05, **steered.fields["logit_bias"]}
    prompt = tuple(renderer.encode("<think>\nI look for", False))
    requests = []
    for seed, (name, given) in enumerate(fields.items()):
        given = given | ({"min_tokens": tokens - 4} if "min_tokens" in given else {})
        sampling = Sampling(tokens, temperature=1.5, seed=seed, **given)
        requests.append(EngineRequest(name, steered.prompt + prompt, sampling))
    if not SECOND_RUNNER:
        schema = Constraint("json_schema", json.dumps(SCHEMA))
        requests.append(replace(requests[0], id="grammar", constraint=schema))
        scored = replace(requests[0].sampling, logprobs=2)
        requests.append(replace(requests[0], id="logprobs", sampling=scored))
    want = [await run(plain_engine, request) for request in requests]
    free = [
        replace(one, sampling=Sampling(tokens, temperature=1.5, seed=seed))
        for seed, one in enumerate(requests)
    ]
    unsteered = await run_all(plain_engine, free)
    same = [
        one.id
        for one, ours, theirs in zip(requests, want, unsteered, strict=True)
        if ours.token_ids == theirs.token_ids
    ]
    assert len(same) < len(fields) / 2, "too few fields have an effect on this seed's text"
    depths = [MOST] if SECOND_RUNNER else DEPTHS
    mixed = [fix_depth(depth, request) for request in requests for depth in depths]
    if SECOND_RUNNER:  # whose rows take long
        mixed[::4] = [fix_depth(0, request) for request in requests[::4]]
    got = await run_all(engine, mixed)
    assert await engine.set_planning("random") == "random"
    try:
        got += [] if SECOND_RUNNER else await run_all(engine, requests)
    finally:
        await engine.set_planning("off")
    expected = [one for one in want for _ in depths] + want
    for number, (outcome, one) in enumerate(zip(got, expected, strict=False)):
        assert outcome.token_ids == one.token_ids, number
        assert outcome.finish == one.finish, number
        assert len(outcome.logprobs) == len(one.logprobs)
        assert outcome.totals.imbalance == 0
    await check_continued(engine, requests, want)


async def check_continued(
    engine: VllmEngine, requests: list[EngineRequest], want: list[Outcome]
) -> None:
    """Ask for the rest of answers, as after the loss of an engine: a seed counts positions."""
    pairs = [
        (request, outcome.token_ids)
        for request, outcome in zip(requests, want, strict=True)
        if request.id in ("none", "min_p", "top_k", "top_p")
    ]
    rests = [
        replace(
            request,
            prompt=request.prompt + token_ids[:9],
            sampling=replace(request.sampling, max_tokens=TOKENS - 9),
        )
        for request, token_ids in pairs
    ]
    for (request, token_ids), rest in zip(pairs, await run_all(engine, rests), strict=True):
        assert rest.token_ids == token_ids[9:], request.id


@pytest.mark.gpu_path
async def test_a_budget_of_reasoning_tokens(
    engine: VllmEngine, plain_engine: VllmEngine, prompts: Prompts, renderer: VllmRenderer
) -> None:
    (end,) = renderer.encode("</think>", False)
    requests = [
        make_greedy(f"budget-{budget}-{number}", prompt, TOKENS + 10, thinking_token_budget=budget)
        for budget in ((1, 4, 9) if SECOND_RUNNER else (0, 1, 2, 5, 9, 30))
        for number, prompt in enumerate(prompts[:FEW])
    ]
    want = await run_all(plain_engine, requests)
    for request, outcome in zip(requests, want, strict=True):
        budget = request.sampling.thinking_token_budget
        assert budget is not None
        assert end in outcome.token_ids[: budget + 2], request.id
    accepted = 0
    for depth in [MOST] if SECOND_RUNNER else [0, MOST]:
        got = await run_all(engine, [fix_depth(depth, request) for request in requests])
        for request, outcome, expected in zip(requests, got, want, strict=True):
            assert outcome.token_ids == expected.token_ids, (depth, request.id)
            assert outcome.totals.imbalance == 0
            accepted += outcome.totals.accepted
    assert accepted > 0


@pytest.mark.gpu_path
@pytest.mark.parametrize("depth", [MOST] if SECOND_RUNNER else DEPTHS)
async def test_a_repetition_ends_the_answer(
    engine: VllmEngine, prompts: Prompts, depth: int
) -> None:
    """One token alone is allowed: its fourth in a row is the last."""
    fields: dict[str, Any] = {
        "allowed_token_ids": (300,),
        "repetition": RepetitionStop(3, 1, 4),
    }
    request = make_greedy(f"repeated-{depth}", prompts[0], 60, **fields)
    outcome = await run(engine, fix_depth(depth, request))
    assert tuple(outcome.token_ids) == (300,) * 4


async def test_preemption_chunks_and_prefix_hits(
    engine: VllmEngine, plain_engine: VllmEngine, steered: Steered, prompts: Prompts
) -> None:
    """Run at full depth, with too little KV for all and with prompts longer than a chunk.

    The text is that of each request alone and without a draft. ``min_p`` of 1 leaves the likeliest
    token alone, so that sampled text is the greedy one.
    """
    filler = ((prompts[1] + prompts[4]) * 20)[:480]
    fields = [steered.fields[name] for name in ("logit_bias", "bad_words", "all_together")]
    fields += [{"thinking_token_budget": 8}, {"min_p": 1.0}]
    requests = []
    for number, more in enumerate([*fields, fields[0]]):
        prompt = prompts[number % 6] + filler[number:]
        request = make_greedy(f"long-{number}", prompt, 120, ignore_eos=True, **more)
        if "min_p" in more:
            sampling = replace(request.sampling, temperature=1.5, logit_bias={20: 2.0})
            request = replace(request, sampling=sampling)
        requests.append(request)
    want = [await run(plain_engine, request) for request in requests]
    before = preemptions(engine)
    for outcome, expected in zip(await run_all(engine, requests), want, strict=True):
        assert outcome.token_ids == expected.token_ids, expected
        assert outcome.totals.imbalance == 0
    assert preemptions(engine) > before
    for number in range(len(fields)):
        sampling = replace(requests[number].sampling, max_tokens=1, min_tokens=0)
        await run(engine, replace(requests[number], sampling=sampling))  # leaves a prefix to hit
        again = await run(engine, requests[number])
        assert again.cached_tokens >= 256
        assert again.token_ids == want[number].token_ids
        assert again.totals.accepted > 0, requests[number].id
