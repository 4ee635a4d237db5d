"""The same request and the same seed give the same text, however the engine comes to it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace

from eaglegate.engine.totals import Totals
from eaglegate.engine.types import EngineRequest, Sampling
from eaglegate.engine.vllm_backend.engine import VllmEngine
from tests.engine.draft_copies import make_noise
from tests.engine.drive import Outcome, fix_depth, run, run_all
from tests.engine.vllm_backend.conftest import MOST
from tests.engine.vllm_backend.test_draft_swap import manage
from tests.engine.vllm_backend.test_lossless import lengthen, preemptions, repeated

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

Prompts = list[tuple[int, ...]]
REQUESTS = 50
TOKENS = 24
TEMPERATURES = (0.7, 1.6)
ALONE = 12
"""Requests that also run one by one."""


@pytest.fixture(scope="session")
def requests(prompts: Prompts) -> list[EngineRequest]:
    """Requests with a text each; the longer ones are prefilled in chunks when they have company."""
    filler = repeated(prompts[1] + prompts[4], 480)

    def make(number: int) -> EngineRequest:
        prompt = prompts[number % len(prompts)]
        prompt += filler[number:] if number % 25 == 0 else filler[number : number + 5]
        sampling = Sampling(TOKENS, temperature=TEMPERATURES[number % 2], seed=number)
        return EngineRequest(f"seed-{number}", prompt, sampling)

    return [make(number) for number in range(REQUESTS)]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def texts(plain_engine: VllmEngine, requests: list[EngineRequest]) -> list[tuple[int, ...]]:
    """Texts of an engine without a draft, in batches of twelve; the long prompts alone and
    whole."""
    found: list[Outcome] = []
    for begin in range(0, REQUESTS, 25):
        found.append(await run(plain_engine, requests[begin]))
        for first in (begin + 1, begin + 13):
            found += await run_all(plain_engine, requests[first : first + 12])
    return [outcome.token_ids for outcome in found]


def assert_texts(
    got: list[Outcome], requests: list[EngineRequest], texts: list[tuple[int, ...]]
) -> Totals:
    others = [
        request.id
        for outcome, request, want in zip(got, requests, texts, strict=False)
        if outcome.token_ids != want
    ]
    assert not others
    return sum((outcome.totals for outcome in got), Totals())


async def test_every_depth_in_one_batch(
    engine: VllmEngine, requests: list[EngineRequest], texts: list[tuple[int, ...]]
) -> None:
    mixed = [fix_depth(at % (MOST + 1), request) for at, request in enumerate(requests)]
    totals = assert_texts(await run_all(engine, mixed), requests, texts)
    assert len(totals.proposed_at) == MOST


async def test_a_seeded_request_accepts_drafts_as_often_as_an_unseeded_one(
    engine: VllmEngine, requests: list[EngineRequest], texts: list[tuple[int, ...]]
) -> None:
    totals = assert_texts(await run_all(engine, requests), requests, texts)
    free = [replace(one, sampling=replace(one.sampling, seed=None)) for one in requests]
    unseeded = sum((outcome.totals for outcome in await run_all(engine, free)), Totals())
    assert totals.accepted > 0
    assert totals.acceptance_length == pytest.approx(unseeded.acceptance_length, rel=0.1)


async def test_alone(
    engine: VllmEngine, requests: list[EngineRequest], texts: list[tuple[int, ...]]
) -> None:
    got = [await run(engine, request) for request in requests[:ALONE]]
    assert_texts(got, requests, texts)


@pytest.mark.parametrize("mode", ["random", "auto"])
async def test_planned_depths(
    engine: VllmEngine, requests: list[EngineRequest], texts: list[tuple[int, ...]], mode: str
) -> None:
    assert await engine.set_planning(mode) == mode
    try:
        got = await run_all(engine, requests)
        alone = [await run(engine, request) for request in requests[:ALONE]]
    finally:
        await engine.set_planning("off")
    assert_texts(got, requests, texts)
    assert_texts(alone, requests, texts)


async def test_a_bound_that_changes(
    engine: VllmEngine, requests: list[EngineRequest], texts: list[tuple[int, ...]]
) -> None:
    streams = asyncio.create_task(run_all(engine, requests[:48]))
    try:
        for bound in (1, MOST, 0, 3) * 3:
            await engine.set_depth(bound)
            await asyncio.sleep(0)
    finally:
        await engine.set_depth(MOST)
    assert_texts(await streams, requests, texts)


async def test_preemption(engine: VllmEngine, plain_engine: VllmEngine, prompts: Prompts) -> None:
    requests = [
        EngineRequest(
            f"long-{number}",
            prompt,
            Sampling(60, temperature=1.6, seed=number, ignore_eos=True),
        )
        for number, prompt in enumerate(lengthen(prompts))
    ]
    want = [(await run(plain_engine, request)).token_ids for request in requests]
    before = preemptions(engine)
    assert_texts(await run_all(engine, requests), requests, want)
    assert preemptions(engine) > before


async def test_a_draft_exchanged_in_mid_stream(
    engine: VllmEngine,
    requests: list[EngineRequest],
    texts: list[tuple[int, ...]],
    tmp_path: Path,
) -> None:
    manager = manage(engine)
    noise = str(make_noise(tmp_path / "noise"))
    for swap in (manager.swap(noise), manager.rollback()):
        begun = asyncio.Event()
        streams = asyncio.create_task(run_all(engine, requests))
        probe = asyncio.create_task(run_until_begun(engine, requests[0], begun))
        await begun.wait()
        await swap
        assert not streams.done(), "the swap came while streams ran"
        assert_texts(await streams, requests, texts)
        assert (await probe).token_ids == texts[0]


async def run_until_begun(
    engine: VllmEngine, request: EngineRequest, begun: asyncio.Event
) -> Outcome:
    await run(engine, replace(request, id="first"), leave_after=1)
    begun.set()
    return await run(engine, request)


async def test_a_resumed_answer_is_the_one_it_was(
    engine: VllmEngine, requests: list[EngineRequest], texts: list[tuple[int, ...]]
) -> None:
    """Tokens delivered before a loss are in the prompt of the next engine."""
    resumed = [
        replace(
            request,
            prompt=(*request.prompt, *text[: len(text) // 2]),
            sampling=replace(request.sampling, max_tokens=TOKENS - len(text) // 2),
        )
        for request, text in zip(requests, texts, strict=True)
    ]
    rest = [text[len(text) // 2 :] for text in texts]
    assert_texts(await run_all(engine, resumed), resumed, rest)
