"""LoRA adapters on an engine with a draft: each its own text, whatever the batch and the depth.

The same engine shows which steps run the draft model, and what the second model runner does without
our patches of it: each is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager

import pytest
import pytest_asyncio
from msgspec.structs import replace

from eaglegate.engine.errors import EngineError
from eaglegate.engine.speculation.accounts.rounding import find_tie
from eaglegate.engine.steps import read_steps
from eaglegate.engine.types import EngineRequest, Sampling
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.features.audit.evidence import AuditOutcome, judge_margins
from tests.engine.drive import (
    call_worker,
    fix_depth,
    get_scorer,
    make_greedy,
    run,
    run_all,
    speculation,
)
from tests.engine.vllm_backend.conftest import FEW, SECOND_RUNNER, SMALL, run_engine
from tests.engine.vllm_backend.lora import make_adapter

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

DEPTH = 3
DEPTHS = (0, DEPTH) if SECOND_RUNNER else (0, 1, DEPTH)
TOKENS = 20 if SECOND_RUNNER else 40
PASSED_TOKENS = 12
WORKER = "tests.engine.vllm_backend.counting_worker.CountingWorker"
DRAFT_PASS = (
    "vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator",
    "TargetDependentARSpeculator",
    "propose",
)
VERIFY = ("vllm.v1.worker.gpu.spec_decode.rejection_sampler", "RejectionSampler", "_verify")
ROWS = ("vllm.v1.worker.gpu.lora_utils", "LoraState", "make_lora_inputs")
Prompts = list[tuple[int, ...]]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def adapted(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[VllmEngine, None]:
    folder = tmp_path_factory.mktemp("lora")
    adapters = {
        name: str(make_adapter(folder / name, len(name), head=name == "three"))
        for name in ("one", "three")
    }
    async with run_engine(
        adapters=adapters,
        **SMALL,
        enable_lora=True,
        max_num_seqs=32,
        max_loras=2,
        max_lora_rank=8,
        speculative_config=speculation(DEPTH),
        worker_extension_cls=WORKER,
    ) as engine:
        yield engine


def requests(prompts: Prompts) -> list[EngineRequest]:
    return [
        replace(make_greedy(f"{name}-{number}", prompt, TOKENS), adapter=name)
        for name in (None, "one", "three")
        for number, prompt in enumerate(prompts[:FEW])
    ]


@pytest.mark.gpu_path
async def test_each_adapter_has_its_text_at_every_depth_and_in_every_batch(
    adapted: VllmEngine, plain_engine: VllmEngine, prompts: Prompts
) -> None:
    asked = requests(prompts)
    prompts = prompts[:FEW]
    alone = [await run(adapted, fix_depth(0, request)) for request in asked]
    base = [await run(plain_engine, request) for request in asked[: len(prompts)]]
    assert [one.token_ids for one in alone[: len(prompts)]] == [one.token_ids for one in base]
    texts = [one.token_ids for one in alone]
    by_adapter = [tuple(texts[begin : begin + len(prompts)]) for begin in range(0, len(texts), FEW)]
    assert len(set(by_adapter)) == 3, "adapters change what is said"
    for depth in DEPTHS:
        together = await run_all(adapted, [fix_depth(depth, request) for request in asked])
        assert [one.token_ids for one in together] == texts, depth
        assert all(one.totals.imbalance == 0 for one in together)
        drafted = [one.totals.accepted for one in together[: len(prompts)]]
        assert all(drafted) == bool(depth)


@pytest.mark.gpu_path
async def test_no_adapter_reads_anothers_prefix(adapted: VllmEngine, prompts: Prompts) -> None:
    prompt = (prompts[1] * 40)[:400]
    for name in (None, "one", "three"):
        request = replace(make_greedy("p", prompt, 2), adapter=name)
        first, again = await run(adapted, request), await run(adapted, request)
        assert (first.cached_tokens, again.cached_tokens >= 256) == (0, True), name


@pytest.mark.gpu_path
async def test_the_log_probabilities_of_a_prompt_are_those_of_its_adapter(
    adapted: VllmEngine, prompts: Prompts
) -> None:
    """Beside audits and other adapters' requests, which decode drafts, they are as alone."""
    asked = requests(prompts)
    sampling = replace(asked[0].sampling, max_tokens=2, prompt_logprobs=1)
    scored = [replace(one, id=f"{one.id}-scored", sampling=sampling) for one in asked]
    alone = [await score_prompt(adapted, one) for one in scored]
    scoring = (get_scorer(adapted).score(one, one.prompt[-4:], "float32") for one in asked)
    others = asyncio.gather(run_all(adapted, asked), *scoring)
    together = await asyncio.gather(*(score_prompt(adapted, one) for one in scored))
    await others
    for request, one, other in zip(scored, alone, together, strict=True):
        assert len(one) == len(request.prompt) - 1
        assert other == pytest.approx(one, abs=1e-3), request.id
    assert len({tuple(one) for one in alone}) == len(alone), "adapters change them"


async def score_prompt(engine: VllmEngine, request: EngineRequest) -> list[float]:
    """Log probabilities of the prompt's tokens behind the first."""
    async with aclosing(read_steps(engine.generate, request)) as steps:
        found = [step.prompt_logprobs async for step in steps]
    positions = next(one for one in found if one is not None)
    return [one.chosen.logprob for one in positions if one is not None]


async def count_passes(engine: VllmEngine) -> int:
    """Passes since the last call."""
    return int(await call_worker(engine, "count_draft_passes"))


@asynccontextmanager
async def without(engine: VllmEngine, patch: tuple[str, str, str]) -> AsyncGenerator[None, None]:
    await call_worker(engine, "remove_patch", *patch)
    yield
    await call_worker(engine, "restore_patch")


@pytest.mark.gpu_path
async def test_only_decode_steps_at_depth_0_run_no_draft_model(
    adapted: VllmEngine, prompts: Prompts
) -> None:
    request = make_greedy("passes", prompts[1], PASSED_TOKENS, ignore_eos=True)
    await count_passes(adapted)
    without_drafts = await run(adapted, fix_depth(0, request))
    assert await count_passes(adapted) == 1, "the prompt's"
    shallow = await run(adapted, fix_depth(1, request))
    assert await count_passes(adapted) >= shallow.totals.verify_steps
    assert shallow.token_ids == without_drafts.token_ids


@pytest.mark.gpu_path
@pytest.mark.skipif(not SECOND_RUNNER, reason="a patch of the second model runner")
async def test_without_its_patch_the_second_runner_drafts_at_depth_0(
    adapted: VllmEngine, prompts: Prompts
) -> None:
    request = fix_depth(0, make_greedy("unpatched", prompts[1], PASSED_TOKENS, ignore_eos=True))
    async with without(adapted, DRAFT_PASS):
        await count_passes(adapted)
        await run(adapted, request)
        assert await count_passes(adapted) >= PASSED_TOKENS - 1
    await run(adapted, request)
    assert await count_passes(adapted) == 1


@pytest.mark.gpu_path
@pytest.mark.skipif(not SECOND_RUNNER, reason="a patch of the second model runner")
async def test_without_its_patch_the_text_of_a_seed_depends_on_the_depth(
    adapted: VllmEngine, prompts: Prompts
) -> None:
    requests = [
        EngineRequest(
            f"seed-{seed}", prompts[1], Sampling(PASSED_TOKENS, temperature=1.5, seed=seed)
        )
        for seed in range(6)
    ]

    async def write(depth: int) -> list[tuple[int, ...]]:
        outcomes = await run_all(adapted, [fix_depth(depth, request) for request in requests])
        return [outcome.token_ids for outcome in outcomes]

    plain = await write(0)
    assert await write(DEPTH) == plain
    async with without(adapted, VERIFY):
        assert await write(DEPTH) != plain


@pytest.mark.gpu_path
@pytest.mark.skipif(not SECOND_RUNNER, reason="a patch of the second model runner")
async def test_without_its_patch_the_second_runner_takes_no_adapter_beside_drafts(
    adapted: VllmEngine, prompts: Prompts
) -> None:
    """The last test: on a CPU the engine dies, once a batch has several requests."""
    asked = [fix_depth(DEPTH, request) for request in requests(prompts)]
    await run_all(adapted, asked)
    await call_worker(adapted, "remove_patch", *ROWS)
    together = (run(adapted, request) for request in asked)
    found = await asyncio.gather(*together, return_exceptions=True)
    assert all(isinstance(one, EngineError) for one in found)


async def test_answers_of_adapters_are_audited_with_them(
    adapted: VllmEngine, prompts: Prompts
) -> None:
    """Greedy and seeded ones, written and scored in one batch; another adapter's answer is a
    violation.
    """
    seeded = Sampling(max_tokens=TOKENS, temperature=0.8, seed=5, min_tokens=TOKENS)
    asked = requests(prompts)
    asked += [replace(one, id=f"{one.id}-seeded", sampling=seeded) for one in asked]
    answers = await run_all(adapted, asked)
    tie, swapped = find_tie("float32"), 0
    pairs = zip(asked, answers, strict=True)
    scoring = (get_scorer(adapted).score(one, answer.token_ids, "float32") for one, answer in pairs)
    for request, scores in zip(asked, await asyncio.gather(*scoring), strict=True):
        assert judge_margins(scores, tie) is not AuditOutcome.VIOLATED, (request.id, scores.worst)
    for request, answer in zip(asked, answers, strict=True):
        if request.adapter == "three":
            other = replace(request, adapter="one")
            scores = await get_scorer(adapted).score(other, answer.token_ids, "float32")
            swapped += judge_margins(scores, tie) is AuditOutcome.VIOLATED
    assert swapped
