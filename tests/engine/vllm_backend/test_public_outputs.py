"""Steps by vLLM's public AsyncLLM.generate."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from msgspec.structs import replace
from vllm.exceptions import VLLMValidationError
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.v1.engine.exceptions import EngineDeadError

from eaglegate.engine.errors import EngineDead, EngineFailed, RequestRejected
from eaglegate.engine.steps import read_steps
from eaglegate.engine.types import (
    EngineRequest,
    PositionLogprobs,
    Sampling,
    Step,
    StepSink,
    TokenLogprob,
)
from eaglegate.engine.vllm_backend.public_outputs import PublicInbox, PublicOutputs
from eaglegate.text.events import FinishReason

REQUEST = EngineRequest("a", (1, 2, 3), Sampling(max_tokens=9))


def output(token_ids: list[int], finish: str | None = None, **more: Any) -> RequestOutput:
    completion = CompletionOutput(0, "", token_ids, None, more.get("logprobs"), None, finish)
    prompt = more.get("prompt_logprobs")
    done = finish is not None
    return RequestOutput("a", None, [1, 2, 3], prompt, [completion], done, num_cached_tokens=2)


class Llm:
    """Yields what it is given; an error is raised."""

    def __init__(self, *given: RequestOutput | Exception) -> None:
        self._given = given
        self.asked: dict[str, Any] = {}
        self.aborted: list[str] = []
        self.left = False

    async def generate(self, **asked: Any) -> AsyncGenerator[RequestOutput, None]:
        self.asked = asked
        try:
            for one in self._given:
                if isinstance(one, Exception):
                    raise one
                yield one
        finally:
            self.left = True

    async def abort(self, names: list[str]) -> None:
        self.aborted += names


async def open_inbox(
    llm: Llm, request: EngineRequest = REQUEST
) -> tuple[PublicOutputs, PublicInbox]:
    outputs = PublicOutputs()
    return outputs, await outputs.open_request(llm, request, None)


def read(inbox: PublicInbox) -> AsyncGenerator[Step, None]:
    """The steps of ``inbox``, as a reader that asks for one at a time gets them."""

    async def deliver(_: EngineRequest, sink: StepSink) -> None:
        await inbox.deliver(sink)

    return read_steps(deliver, REQUEST)


async def test_outputs_become_steps() -> None:
    llm = Llm(output([5]), output([6, 7]), output([8, 2], "stop"))
    outputs, inbox = await open_inbox(llm)
    steps = read(inbox)
    assert await anext(steps) == Step((5,), cached_tokens=2)
    assert await anext(steps) == Step((6, 7))
    assert await anext(steps) == Step((8, 2), finish=FinishReason.STOP, stop_token=2)
    await outputs.close_request(llm, inbox)
    assert llm.left
    assert llm.asked["request_id"] == "a"
    assert llm.asked["prompt"]["prompt_token_ids"] == [1, 2, 3]


async def test_log_probabilities_are_those_that_were_asked_for() -> None:
    one = {5: Logprob(-0.5, 2, None), 6: Logprob(-0.1, 1, None)}
    given = output([5], logprobs=[one], prompt_logprobs=[None, one, one | {3: one[5]}])
    given.prompt_token_ids = [1, 5, 6]
    sampling = replace(REQUEST.sampling, logprobs=1, prompt_logprobs=1)
    _, inbox = await open_inbox(Llm(given), replace(REQUEST, sampling=sampling))
    steps = read(inbox)
    step = await anext(steps)
    best = (TokenLogprob(6, -0.1, 1),)
    assert step.logprobs == (PositionLogprobs(TokenLogprob(5, -0.5, 2), best),)
    assert step.prompt_logprobs is not None
    assert step.prompt_logprobs[0] is None
    assert step.prompt_logprobs[1] == step.logprobs[0]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (VLLMValidationError("too long"), RequestRejected),
        (EngineDeadError(), EngineDead),
        (output([], "error"), EngineFailed),
        (output([5], "abort"), EngineDead),
    ],
)
async def test_errors_are_ours(given: RequestOutput | Exception, expected: type[Exception]) -> None:
    _, inbox = await open_inbox(Llm(given))
    steps = read(inbox)
    with pytest.raises(expected):
        await anext(steps)


async def test_a_closed_engine_fails_its_requests() -> None:
    """The failure lets recovery take them to the next engine: vLLM would end them as aborted."""
    llm = Llm(output([5]), output([], "abort"))
    outputs, inbox = await open_inbox(llm)
    steps = read(inbox)
    await anext(steps)
    await outputs.fail_all(llm)
    assert llm.aborted == ["a"]
    with pytest.raises(EngineDead):
        await anext(steps)
