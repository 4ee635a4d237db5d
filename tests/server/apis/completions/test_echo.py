"""Answers that repeat their prompts: priced before the work, and encoded as they are made."""

from __future__ import annotations

import asyncio
import tracemalloc
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import orjson
import pytest

from eaglegate.engine.events import Finish, PromptEcho, Usage
from eaglegate.engine.types import EngineRequest, PositionLogprobs, Step, TokenLogprob
from eaglegate.server.access.budget import ECHO_BYTES, LOGPROB_BYTES, RequestBudget
from eaglegate.server.access.caller import Caller
from eaglegate.server.access.memory import GIB, MemoryMonitor
from eaglegate.server.apis.completions.response import CompletionFold
from eaglegate.server.apis.completions.to_job import CompletionRequest, make_completion_job
from eaglegate.server.apis.shared.route import make_encoding_context
from eaglegate.text.events import FinishReason
from tests.server.access.test_memory import Tank
from tests.server.conftest import Answer, Lab

TOKENS = 100
PROMPT = " a" * TOKENS


def give_logprobs(request: EngineRequest) -> list[Step]:
    """Script that returns as many log probabilities of the prompt as the request wants."""
    count = request.sampling.prompt_logprobs
    if count is None:
        return [Step((5,), finish=FinishReason.STOP)]
    entry = tuple(TokenLogprob(5 + at, -0.123456789 * at, at) for at in range(count))
    position = PositionLogprobs(TokenLogprob(5, -0.5, 1), entry)
    given = (None, *[position] * (len(request.prompt) - 1))
    return [Step((5,), prompt_logprobs=given, finish=FinishReason.STOP)]


@pytest.fixture
def echo_lab(lab: Lab) -> Lab:
    lab.engine.script = give_logprobs
    return lab


async def ask(lab: Lab, prompts: int = 1, **fields: Any) -> Answer:
    return await lab.complete(**{"prompt": [PROMPT] * prompts, "max_tokens": 1} | fields)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "entries"),
    [
        ({"echo": True, "logprobs": 20}, 21),
        ({"echo": True, "logprobs": 0}, 1),
        ({"echo": True}, 0),
        ({"return_token_ids": True}, 0),
    ],
)
async def test_copies_of_prompts_are_priced_before_the_work(echo_lab, fields, entries, stream):
    """Each choice has a copy."""
    price = TOKENS * (ECHO_BYTES + LOGPROB_BYTES * entries)
    echo_lab.gateway.budget = RequestBudget(held_bytes=int(6.9 * price))
    for prompts, n in ((7, 1), (1, 7), (4, 2)):
        refused = await ask(echo_lab, prompts, n=n, stream=stream, **fields)
        assert (refused.status, refused.json["error"]["code"]) == (400, "echo_too_large")
        assert "lower 'n', 'logprobs'" in refused.json["error"]["message"]
    assert not echo_lab.engine.requests
    answer = await ask(echo_lab, 3, n=2, stream=stream, **fields)
    assert answer.status == 200, answer.body
    assert echo_lab.gateway.budget.held == 0


async def test_prompts_that_are_not_repeated_are_not_tokenized(echo_lab):
    pipeline = echo_lab.gateway.require()
    renderer = Mock(wraps=pipeline.renderer)
    echo_lab.gateway.open(replace(pipeline, renderer=renderer))
    echo_lab.gateway.budget = RequestBudget(held_bytes=int(6.9 * TOKENS * (8 + 64 * 21)))
    refused = await ask(echo_lab, 50, echo=True, logprobs=20)
    assert refused.json["error"]["code"] == "echo_too_large"
    assert renderer.encode.call_count == 7


async def test_the_price_covers_the_answer(echo_lab):
    """The largest entries: a token of the longest text, and no two equal numbers."""
    for count in (0, 1, 20):
        answer = await ask(echo_lab, 4, echo=True, logprobs=count)
        assert len(answer.body) < 4 * TOKENS * (ECHO_BYTES + LOGPROB_BYTES * (count + 1)) + 2000


async def test_one_key_cannot_hold_all_bytes_of_copies(echo_lab):
    echo_lab.admit("a", "b")
    price = TOKENS * (ECHO_BYTES + 21 * LOGPROB_BYTES)
    echo_lab.gateway.budget = RequestBudget(held_bytes=8 * price)
    fields = {"echo": True, "logprobs": 20}
    first = [asyncio.create_task(ask(echo_lab, 3, key="a", **fields)) for _ in range(2)]
    second = await ask(echo_lab, 3, key="b", **fields)
    statuses = sorted(answer.status for answer in await asyncio.gather(*first))
    assert statuses == [200, 429]
    assert second.status == 200


async def test_a_copy_that_would_exceed_the_memory_is_refused(echo_lab):
    tank = Tank(8.0)
    echo_lab.gateway.memory = monitor = MemoryMonitor([tank])
    monitor.settle()
    echo_lab.gateway.open(echo_lab.gateway.require())
    tank.level = 9.0 - 10 * TOKENS * LOGPROB_BYTES / GIB
    monitor.sample()
    answer = await ask(echo_lab, echo=True, logprobs=20)
    assert (answer.status, answer.json["error"]["code"]) == (503, "memory_pressure")
    assert int(answer.headers["retry-after"]) > 0
    assert (await ask(echo_lab, echo=True, logprobs=0)).status == 200


def test_choices_are_encoded_as_they_are_made(lab):
    """Folding 64 choices takes little more memory than their JSON."""
    pipeline = lab.gateway.require()
    request = CompletionRequest(model="demo", prompt=["x"] * 64, echo=True, logprobs=20)
    job = make_completion_job(request, pipeline.served_model, Caller())
    fold = CompletionFold(job, make_encoding_context(pipeline))
    position = PositionLogprobs(
        TokenLogprob(5, -0.5, 1),
        tuple(TokenLogprob(6 + at, -0.123456789 * at, at) for at in range(20)),
    )
    end = Finish(FinishReason.STOP, Usage(TOKENS, 1))
    tracemalloc.start()
    try:
        for index in range(64):
            fold.add(index, [PromptEcho((5,) * TOKENS, (None, *[position] * (TOKENS - 1))), end])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * len(orjson.dumps(fold.result()))  # 15 times as its objects
