"""Prompts with images on real engines: text never depends on speculation, and no client's image
affects another client's answer. The target is the demo as a model that reads images.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from io import BytesIO
from typing import Any

import PIL.Image
import pytest
import pytest_asyncio
from msgspec.structs import replace
from vllm import envs
from vllm.inputs import TokensPrompt

from eaglegate.engine.errors import RequestRejected
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import EngineRequest
from eaglegate.engine.vllm_backend.arguments import make_demo_arguments
from eaglegate.engine.vllm_backend.child_process import replace_environment
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from tests.engine.drive import (
    QUESTIONS,
    Outcome,
    call_worker,
    fix_depth,
    get_scorer,
    make_greedy,
    render,
    run,
    run_all,
    run_engine,
)
from tests.engine.vllm_backend.conftest import FIRST_RUNNER, SECOND_RUNNER
from tests.vision_demo import IMAGE, PLACEHOLDER, VisionDemo, draw_picture

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

WORKER = "tests.engine.vllm_backend.counting_worker.CountingWorker"
SLOTS = (
    "vllm.v1.spec_decode.llm_base_proposer",
    "SpecDecodeBaseProposer",
    "_update_positions_dependent_metadata",
)
TOKENS = 13 if SECOND_RUNNER else 32
SMALL: dict[str, Any] = {
    "max_model_len": 1024,
    "max_num_batched_tokens": 256,
    "block_size": 32,
    "kv_cache_memory_bytes": 64 << 20,
}
"""Prefills in chunks that end inside images, and blocks that short prompts share."""
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "seed": 7}
TURN = 3
"""Tokens that begin a user's turn."""
Texts = list[tuple[int, ...]]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(vision_demo: VisionDemo) -> AsyncGenerator[VllmEngine, None]:
    async with run_engine(**vision_demo.arguments(**SMALL, worker_extension_cls=WORKER)) as started:
        yield started


@pytest.fixture(scope="module")
def questions(vision_demo: VisionDemo) -> Texts:
    """Prompts of questions without images, which begin with a user's turn."""
    renderer = VllmRenderer(make_demo_arguments(**vision_demo.arguments(**SMALL)))
    return render(renderer, QUESTIONS[1:3])


@pytest.fixture(scope="module")
def requests(questions: Texts) -> list[EngineRequest]:
    """Prompts with no image, one and two, of several sizes. The last prompt repeats an image."""
    made = []
    for number, question in enumerate(questions):
        made.append(make_greedy(f"none-{number}", question, TOKENS, ignore_eos=True))
        for width, height in ((112, 112), (448, 336)):
            name = f"one-{number}-{width}"
            made.append(with_images(name, question, (10 * number + width, width, height)))
        pair = (number, 200, 200), (number + 5, 300, 100)
        made.append(with_images(f"two-{number}", question, *pair))
    made.append(with_images("same", questions[0], (112, 112, 112), (112, 112, 112)))
    return made


def with_images(
    name: str, question: tuple[int, ...], *pictures: tuple[int, int, int]
) -> EngineRequest:
    """Ask a question after its pictures, each a seed and a size."""
    prompt = (*question[:TURN], *IMAGE * len(pictures), *question[TURN:])
    request = make_greedy(name, prompt, TOKENS, ignore_eos=True)
    return replace(request, images=tuple(draw_picture(*picture) for picture in pictures))


def sampled(requests: list[EngineRequest]) -> list[EngineRequest]:
    return [
        replace(request, id=f"{request.id}-hot", sampling=replace(request.sampling, **SAMPLED))
        for request in requests
    ]


def texts(outcomes: list[Outcome]) -> Texts:
    return [outcome.token_ids for outcome in outcomes]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def expected(vision_demo: VisionDemo, requests: list[EngineRequest]) -> tuple[Texts, Texts]:
    """The greedy and the sampled texts of an engine without a draft, on the first runner."""
    envs.disable_envs_cache()
    with replace_environment(FIRST_RUNNER):
        async with run_engine(**vision_demo.arguments(None, **SMALL)) as plain:
            greedy = texts([await run(plain, request) for request in requests])
            hot = texts([await run(plain, request) for request in sampled(requests)])
    envs.disable_envs_cache()
    return greedy, hot


@pytest.mark.gpu_path
async def test_the_text_is_the_same_at_every_depth(
    expected: tuple[Texts, Texts], engine: VllmEngine, requests: list[EngineRequest]
) -> None:
    greedy, hot = expected
    assert len(set(greedy)) > len(greedy) // 2, "the texts depend on the images"
    for depth in (0, 3) if SECOND_RUNNER else (0, 1, 3):
        fixed = [fix_depth(depth, request) for request in requests]
        assert texts(await run_all(engine, fixed)) == greedy
        if not SECOND_RUNNER:
            fixed = [fix_depth(depth, request) for request in sampled(requests)]
            assert texts(await run_all(engine, fixed)) == hot
    await engine.set_planning("auto")
    try:
        assert texts(await run_all(engine, requests)) == greedy
        assert texts(await run_all(engine, sampled(requests))) == hot
        slices = (await engine.describe_planning())["traffic"]
        assert {row["traffic"].endswith("/images") for row in slices} == {True, False}
    finally:
        await engine.set_planning("off")


async def test_a_prompt_is_as_long_as_its_count(
    engine: VllmEngine, requests: list[EngineRequest]
) -> None:
    """A token stands for 28 by 28 pixels: sixteen for 112 by 112."""
    assert await engine.count_image(requests[1].images[0]) == 16
    counts = [await engine.count_image(image) for image in requests[3].images]
    assert counts == [49, 44]


@pytest.mark.parametrize(
    ("pictures", "placeholders", "words"),
    [(0, 1, "stands for an image"), (1, 0, "stands for an image"), (1, 2, "stands for an image"),
     (4, 4, "at most 3 images")],
)  # fmt: skip
async def test_placeholders_without_their_images_are_refused(
    engine: VllmEngine, questions: Texts, pictures: int, placeholders: int, words: str
) -> None:
    """vLLM takes some of them for words, and fails on others."""
    request = make_greedy("odd", (*questions[0], *[PLACEHOLDER] * placeholders), 4)
    images = tuple(draw_picture(seed, 56, 56) for seed in range(pictures))
    with pytest.raises(RequestRejected, match=words):
        await run(engine, replace(request, images=images))


async def test_images_that_the_processor_refuses_are_named(engine: VllmEngine) -> None:
    with pytest.raises(RequestRejected, match="aspect ratio"):
        await engine.count_image(draw_picture(1, 2000, 4))


async def test_a_client_that_leaves_does_not_harm_the_next_one(
    engine: VllmEngine, questions: Texts
) -> None:
    """It leaves at every stage of its request; the engine may have its image or not."""
    for number, wait_s in enumerate((0.0, 0.01, 0.1)):
        request = with_images(f"leaves-{number}", questions[0], (40 + number, 448, 336))
        leaving = asyncio.create_task(run(engine, request))
        await asyncio.sleep(wait_s)
        leaving.cancel()
        with suppress(asyncio.CancelledError):
            await leaving
        outcome = await run(engine, replace(request, id=f"stays-{number}"))
        assert len(outcome.token_ids) == TOKENS


async def test_a_prompt_that_is_too_long_does_not_harm_the_next_one(
    engine: VllmEngine, questions: Texts
) -> None:
    """It is too long only with its image's tokens: vLLM refuses it after the features are made."""
    request = with_images("short", questions[0], (60, 448, 336))
    long = replace(request, id="long", prompt=(*questions[1] * 100, *request.prompt)[-1000:])
    with pytest.raises(RequestRejected, match="1024"):
        await run(engine, long)
    assert len((await run(engine, request)).token_ids) == TOKENS


@pytest.mark.gpu_path
async def test_features_that_the_engine_lost_are_sent_again(
    engine: VllmEngine, questions: Texts
) -> None:
    """vLLM's front end believes that the engine has images which were only rendered."""
    for number in range(2):
        pair = (70 + number, 112, 112), (90 + number, 56, 56)
        request = with_images(f"lost-{number}", questions[0], *pair)
        await render_only(engine, request)
        copies = [replace(request, id=f"{request.id}-{copy}") for copy in range(4)]
        answers = texts(await run_all(engine, copies))
        assert [len(answer) for answer in answers] == [TOKENS] * 4
        assert len(set(answers)) == 1


async def render_only(engine: VllmEngine, request: EngineRequest) -> None:
    assert engine._llm is not None
    pictures = [PIL.Image.open(BytesIO(image.data)) for image in request.images]
    tokens = TokensPrompt(
        prompt_token_ids=list(request.prompt), multi_modal_data={"image": pictures}
    )
    await engine._llm.renderer.render_cmpl_async([tokens])


async def test_another_image_is_not_taken_from_the_prefix_cache(
    engine: VllmEngine, questions: Texts
) -> None:
    first = with_images("first", questions[0], (80, 224, 224))
    other = with_images("other", questions[0], (81, 224, 224))
    await run(engine, first)
    assert (await run(engine, replace(first, id="hit"))).cached_tokens >= 32
    assert (await run(engine, other)).cached_tokens < 32
    salted = replace(first, id="salted", cache_salt="other")
    assert (await run(engine, salted)).cached_tokens == 0


@pytest.mark.gpu_path
async def test_an_answer_to_images_is_scored_with_them(
    engine: VllmEngine, requests: list[EngineRequest]
) -> None:
    two = requests[3]
    counts = [await engine.count_image(image) for image in two.images]
    length = len(two.prompt) - 2 + sum(counts)
    for request in (two, *sampled([two])):
        answer = (await run(engine, request)).token_ids
        counted = replace(request, expanded_length=length)
        scores = await get_scorer(engine).score(counted, answer, "float32")
        assert len(scores.margins) == TOKENS
        assert max(scores.margins) < 0.01
        wrong = (*answer[:5], answer[5] + 1, *answer[6:])
        assert (await get_scorer(engine).score(counted, wrong, "float32")).margins[5] > 0.01


async def test_answers_continue_with_their_images(
    expected: tuple[Texts, Texts], engine: VllmEngine, requests: list[EngineRequest]
) -> None:
    """After the loss of an engine, the next one gets the images and the tokens so far."""
    for asked, answers in zip((requests, sampled(requests)), expected, strict=True):
        rests = [
            replace(
                request,
                prompt=request.prompt + answer[:5],
                sampling=replace(request.sampling, max_tokens=TOKENS - 5),
            )
            for request, answer in zip(asked, answers, strict=True)
        ]
        assert texts(await run_all(engine, rests)) == [answer[5:] for answer in answers]


async def test_a_draft_keeps_its_memory_of_images(engine: VllmEngine, questions: Texts) -> None:
    """Not on the second runner, which finds slots by the tokens' indices.

    The last test: vLLM's own slots put the KV of later draft tokens over that of the images."""
    requests = [
        with_images(f"{number}-{name}", question, (number, 200, 200), (number + 50, 300, 100))
        for number in range(6)
        for name, question in enumerate(questions)
    ]
    fixed = await run_all(engine, requests)
    await call_worker(engine, "remove_patch", *SLOTS)
    without = await run_all(engine, requests)
    assert texts(fixed) == texts(without)
    assert count_accepted(fixed) > 1.05 * count_accepted(without)


def count_accepted(outcomes: list[Outcome]) -> float:
    """Accepted draft tokens per step that verified some."""
    totals = sum((outcome.totals for outcome in outcomes), Totals())
    return totals.accepted / totals.verify_steps
