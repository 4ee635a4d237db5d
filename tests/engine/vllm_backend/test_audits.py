"""Answers of a real engine are scored by the same engine, without the draft."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from eaglegate.engine.errors import EngineFailed
from eaglegate.engine.speculation.accounts.rounding import find_tie
from eaglegate.engine.speculation.accounts.scores import AnswerScores
from eaglegate.engine.types import Constraint, EngineRequest, Sampling
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from eaglegate.features.audit.evidence import (
    AuditOutcome,
    SequentialTest,
    judge_margins,
)
from eaglegate.features.audit.grammars import find_breach
from eaglegate.text.events import FinishReason
from tests.engine.drive import get_scorer, inject, speculation
from tests.engine.drive import run as run_request
from tests.engine.vllm_backend import faulty
from tests.engine.vllm_backend.conftest import MOST, SMALL, run_engine

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

WORKER = "tests.engine.vllm_backend.faulty.FaultyWorker"
DTYPE = "float32"
TIE = find_tie(DTYPE)
TOKENS = 40
TEMPERATURES = [0.3, 1.8]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine() -> AsyncGenerator[VllmEngine, None]:
    config: dict[str, Any] = {
        **SMALL,
        "speculative_config": speculation(MOST),
        "worker_extension_cls": WORKER,
    }
    async with run_engine(**config) as started:
        assert started._llm is not None
        started._llm.input_processor.speculative_config = None  # as ``allow_fields`` does
        yield started


async def audit(engine: VllmEngine, request: EngineRequest, dtype: str = DTYPE) -> AnswerScores:
    answer = await run_request(engine, request)
    return await get_scorer(engine).score(request, answer.token_ids, dtype)


async def audit_all(
    engine: VllmEngine, requests: list[EngineRequest], dtype: str = DTYPE
) -> list[AnswerScores]:
    """Generate together, as users do, and score one after the other."""
    answers = await asyncio.gather(*(run_request(engine, one) for one in requests))
    pairs = zip(requests, answers, strict=True)
    return [await get_scorer(engine).score(one, answer.token_ids, dtype) for one, answer in pairs]


def make(name: str, prompt: tuple[int, ...], **sampling: Any) -> EngineRequest:
    return EngineRequest(name, prompt, Sampling(**{"max_tokens": TOKENS} | sampling))


FIELDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalties": {
        "presence_penalty": 0.7, "frequency_penalty": 0.5, "repetition_penalty": 1.2,
    },
    "bias": {"logit_bias": {40: 5.0, 300: -50.0}},
    "minimum": {"min_tokens": TOKENS},
    "bad words": {"bad_words": ("the", "a", "rain")},
    "allowed": {"allowed_token_ids": tuple(range(5, 400))},
}  # fmt: skip
TRUNCATED = {"top_k": 40, "top_p": 0.95, "min_p": 0.01}


def make_mixed(prompts: list[tuple[int, ...]], temperature: float, **more: Any) -> list[Any]:
    """One request with each of ``FIELDS``, to run in one batch."""
    return [
        make(f"{name} {temperature}", prompts[at % len(prompts)], temperature=temperature,
             **fields, **more)
        for at, (name, fields) in enumerate(FIELDS.items())
    ]  # fmt: skip


async def test_greedy_answers_are_lossless(
    engine: VllmEngine, prompts: list[tuple[int, ...]]
) -> None:
    for found in await audit_all(engine, make_mixed(prompts, 0.0)):
        assert judge_margins(found, TIE) is not AuditOutcome.VIOLATED, found.worst


@pytest.mark.parametrize("temperature", TEMPERATURES)
async def test_seeded_answers_are_lossless(
    engine: VllmEngine, prompts: list[tuple[int, ...]], temperature: float
) -> None:
    for more in ({"seed": 7}, {"seed": -(2**40), **TRUNCATED}):
        for found in await audit_all(engine, make_mixed(prompts, temperature, **more)):
            assert judge_margins(found, TIE) is not AuditOutcome.VIOLATED, found.worst


@pytest.mark.parametrize("temperature", TEMPERATURES)
async def test_sampled_answers_bring_no_evidence(
    engine: VllmEngine, prompts: list[tuple[int, ...]], temperature: float
) -> None:
    test = SequentialTest(threshold=1e5)
    for more in ({}, TRUNCATED):
        for found in await audit_all(engine, make_mixed(prompts, temperature, **more) * 2):
            assert judge_margins(found, TIE) is AuditOutcome.LOSSLESS, found.worst
            assert found.evidence is not None
            assert not test.add(found.evidence, found.judged), test.strongest


async def test_an_answer_in_chunks_and_with_a_cached_prompt(
    engine: VllmEngine, prompts: list[tuple[int, ...]]
) -> None:
    """Longer than a step may read, and never from the prefix cache, which holds its prompt."""
    prompt = (prompts[0] * 20)[:600]
    found = await audit(engine, make("long", prompt, temperature=0.0, max_tokens=8))
    assert judge_margins(found, TIE) is not AuditOutcome.VIOLATED
    assert found.margins


async def test_an_answer_that_was_altered_is_violated(
    engine: VllmEngine, prompts: list[tuple[int, ...]]
) -> None:
    request = make("altered", prompts[1], temperature=0.0, min_tokens=10)
    answer = [*(await run_request(engine, request)).token_ids]
    answer[6] = 17 if answer[6] != 17 else 18
    found = await get_scorer(engine).score(request, answer, DTYPE)
    assert judge_margins(found, TIE) is AuditOutcome.VIOLATED
    assert found.margins[6] > TIE
    assert max(found.margins[:6]) <= TIE


async def test_rules_that_cannot_be_applied_fail_the_audit_alone(
    engine: VllmEngine, prompts: list[tuple[int, ...]]
) -> None:
    request = make("broken", prompts[1], temperature=0.0)
    answer = (await run_request(engine, request)).token_ids
    broken = replace(request, sampling=replace(request.sampling, logit_bias={10**7: 1.0}))
    with pytest.raises(EngineFailed, match="not scored: IndexError"):
        await get_scorer(engine).score(broken, answer, DTYPE)
    assert (await audit(engine, request)).margins


Ask = Callable[[list[tuple[int, ...]], int], list[EngineRequest]]
MOST_ANSWERS = 2000


def vary(prompts: list[tuple[int, ...]], turn: int) -> list[tuple[int, ...]]:
    """Other prompts at every turn."""
    return [prompt[(3 * turn) % (len(prompt) // 2) :] for prompt in prompts]


def ask_with(**sampling: Any) -> Ask:
    def ask(prompts: list[tuple[int, ...]], turn: int) -> list[EngineRequest]:
        return [
            make(f"{turn}-{at}", prompt, **{"min_tokens": TOKENS} | sampling)
            for at, prompt in enumerate(vary(prompts, turn))
        ]

    return ask


def ask_seeded(prompts: list[tuple[int, ...]], turn: int) -> list[EngineRequest]:
    """Of two temperatures, in turns."""
    return [
        make(f"{turn}-{at}", prompt, temperature=(0.6, 1.2)[at % 2], seed=at, min_tokens=TOKENS)
        for at, prompt in enumerate(vary(prompts, turn))
    ]


GREEDY = ask_with(temperature=0.0, min_tokens=0)
SAMPLED = ask_with(temperature=0.5)
FAULTS: list[tuple[str, Ask]] = [
    (faulty.ACCEPTS_ALL, GREEDY),
    (faulty.ACCEPTS_ALL, SAMPLED),
    (faulty.ACCEPTS_WITHIN_A_WINDOW, ask_seeded),
    (faulty.ACCEPTS_TOO_MANY, GREEDY),
    (faulty.REDRAWS_FROM_ALL, ask_seeded),
    (faulty.REPEATS_THE_LAST_ROW, GREEDY),
    (faulty.IGNORES_TEMPERATURE, SAMPLED),
    (faulty.KEEPS_STALE_TEMPERATURES, ask_seeded),
    (faulty.IGNORES_SEED, ask_seeded),
    (faulty.IGNORES_PENALTIES, ask_with(temperature=0.0, frequency_penalty=1.5)),
    (faulty.IGNORES_BIAS, ask_with(temperature=0.0, logit_bias={300: 6.0, 224: -6.0})),
    (faulty.IGNORES_TRUNCATION, ask_with(temperature=1.5, top_k=5)),
    (faulty.IGNORES_MINIMUM, ask_with(temperature=0.0, max_tokens=160, min_tokens=160)),
    (faulty.SWAPS_ROWS, GREEDY),
]


async def find_fault(engine: VllmEngine, prompts: list[tuple[int, ...]], ask: Ask) -> int:
    """Answers until an audit finds a violation."""
    test, answers = SequentialTest(), 0
    while answers < MOST_ANSWERS:
        for found in await audit_all(engine, ask(prompts, answers // len(prompts))):
            answers += 1
            if judge_margins(found, TIE) is AuditOutcome.VIOLATED:
                return answers
            if found.evidence and test.add(found.evidence, found.judged):
                return answers
    raise AssertionError(f"not found; {test.log_evidence:.1f} nats")


@pytest.mark.parametrize(("fault", "ask"), FAULTS)
async def test_faults_are_found(
    engine: VllmEngine,
    prompts: list[tuple[int, ...]],
    record_property: Callable[[str, object], None],
    fault: str,
    ask: Ask,
) -> None:
    async with inject(engine, fault):
        answers = await find_fault(engine, prompts, ask)
    record_property("answers", answers)
    print(f"{fault}: found after {answers} answers")


def make_reasoned(name: str, prompt: tuple[int, ...]) -> EngineRequest:
    """A reasoning of a few words, and a JSON object after it: in one grammar, as the gateway
    writes it."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
    elements = [
        {"type": "regex", "pattern": "[a-z]{1,12}</think>"},
        {"type": "json_schema", "json_schema": schema},
    ]
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}
    request = make(name, prompt, temperature=0.0, max_tokens=120)
    return replace(request, constraint=Constraint("structural_tag", json.dumps(tag)))


async def judge_grammar(
    engine: VllmEngine, renderer: VllmRenderer, request: EngineRequest
) -> str | None:
    """The breach of a finished answer; None where it did not end by itself."""
    answer = await run_request(engine, request)
    assert request.constraint is not None
    if answer.finish is not FinishReason.STOP:
        return None
    text = (
        renderer.decode(answer.token_ids).removesuffix("<|im_end|>").removesuffix("<|endoftext|>")
    )
    return find_breach(request.constraint, text)


async def test_a_grammar_that_drafts_lose_is_found(
    engine: VllmEngine, prompts: list[tuple[int, ...]], renderer: VllmRenderer
) -> None:
    asked = [make_reasoned(f"g{at}", prompt) for at, prompt in enumerate(prompts)]
    clean = [await judge_grammar(engine, renderer, request) for request in asked]
    assert "" in clean
    assert not any(clean), clean
    asked = [make_reasoned(f"f{at}", prompt) for at, prompt in enumerate(prompts)]
    async with inject(engine, faulty.FREES_GRAMMAR):
        found = [await judge_grammar(engine, renderer, request) for request in asked]
    assert any(found), found
