"""Requests driven as by the gateway, with all results kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace
from vllm.v1.metrics.loggers import PrometheusStatLogger

from eaglegate.engine.speculation.accounts.accounting import Account
from eaglegate.engine.speculation.accounts.scores import ScoresAnswers
from eaglegate.engine.steps import read_steps
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import EngineRequest, PositionLogprobs, Sampling
from eaglegate.engine.vllm_backend.arguments import (
    DEMO_SPECULATION,
    make_demo_arguments,
)
from eaglegate.engine.vllm_backend.engine import NO_ADAPTERS, VllmEngine
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from eaglegate.text.events import FinishReason

QUESTIONS = (
    "What is the weather in Paris?",
    "Tell me a short story about a cat and a key.",
    "Count from one to twenty.",
    "What is 12 plus 30?",
    "Explain rain to a child.",
    "Qwertz uiop, \u00fc\u00f1\u00ef \u6f22\u5b57 :: {}[]",
)
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@dataclass(frozen=True)
class Outcome:
    """Full result of one request."""

    token_ids: tuple[int, ...]
    finish: FinishReason | None
    logprobs: tuple[PositionLogprobs, ...]
    cached_tokens: int
    account: Account

    @property
    def totals(self) -> Totals:
        return self.account.totals


async def run(engine: VllmEngine, request: EngineRequest, leave_after: int = 0) -> Outcome:
    """Read a request to its end, or leave after ``leave_after`` tokens."""
    account = Account()
    tokens: list[int] = []
    logprobs: list[PositionLogprobs] = []
    finish, cached_tokens = None, 0
    async with aclosing(read_steps(engine.generate, request)) as steps:
        async for step in steps:
            account.add(step)
            tokens += step.token_ids
            logprobs += step.logprobs
            finish, cached_tokens = step.finish, step.cached_tokens or cached_tokens
            if leave_after and len(tokens) >= leave_after:
                break
    return Outcome(tuple(tokens), finish, tuple(logprobs), cached_tokens, account)


async def run_all(engine: VllmEngine, requests: Iterable[EngineRequest]) -> list[Outcome]:
    """Run all requests at once, in one batch if the engine has room."""
    return list(await asyncio.gather(*(run(engine, request) for request in requests)))


def fix_depth(depth: int | None, request: EngineRequest) -> EngineRequest:
    return replace(request, id=f"{request.id}@{depth}", depth=depth)


def speculation(depth: int) -> dict[str, Any]:
    return DEMO_SPECULATION | {"num_speculative_tokens": depth}


@asynccontextmanager
async def run_engine(
    planning: str = "off",
    adapters: Mapping[str, str] = NO_ADAPTERS,
    **settings: Any,
) -> AsyncGenerator[VllmEngine, None]:
    arguments = make_demo_arguments(**settings)
    engine = VllmEngine(arguments, adapters=adapters, planning=planning)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.aclose()


def get_scorer(engine: VllmEngine) -> ScoresAnswers:
    """The engine's part of audits."""
    scorer = engine.capability(ScoresAnswers)
    assert scorer is not None
    return scorer


async def call_worker(engine: VllmEngine, method: str, *arguments: Any) -> Any:
    """Call a method that a test's worker adds, in the engine's process."""
    assert engine._llm is not None
    (answer,) = await engine._llm.collective_rpc(method, args=arguments)
    return answer


@asynccontextmanager
async def inject(engine: VllmEngine, fault: str) -> AsyncGenerator[None, None]:
    """Switch on a fault of ``tests/engine/vllm_backend/faulty.py``."""
    await call_worker(engine, "set_fault", fault, True)
    try:
        yield
    finally:
        await call_worker(engine, "set_fault", fault, False)


def find_logger(engine: VllmEngine) -> Any:
    """The statistics of this engine: the registry holds those of the engine started last."""
    assert engine._llm is not None
    assert engine._llm.logger_manager is not None
    loggers = engine._llm.logger_manager.stat_loggers
    (logger,) = [logger for logger in loggers if isinstance(logger, PrometheusStatLogger)]
    return logger


def make_greedy(
    name: str, prompt: Iterable[int], max_tokens: int = 64, **options: Any
) -> EngineRequest:
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0, **options)
    return EngineRequest(name, tuple(prompt), sampling)


def render(renderer: VllmRenderer, questions: Sequence[str] = QUESTIONS) -> list[tuple[int, ...]]:
    """Render prompts as in a chat. Questions about the weather come with a tool."""

    def render_question(question: str) -> tuple[int, ...]:
        tools = [WEATHER_TOOL] if "weather" in question else None
        return tuple(renderer.render_chat([{"role": "user", "content": question}], tools))

    return [render_question(question) for question in questions]
