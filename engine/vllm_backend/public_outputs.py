"""Steps from vLLM's public ``AsyncLLM.generate``, for a vLLM whose outputs cannot be taken over.

The text is the same. vLLM makes its own objects of every output, at more CPU per token, and gives
no account of decode steps. ``outputs.py`` is used if vLLM fits ``engine/vllm_contract.py``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Protocol

from vllm.exceptions import VLLMError
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.v1.engine.async_llm import AsyncLLM

from eaglegate.engine.errors import EngineDead, EngineFailed
from eaglegate.engine.speculation.totals import Totals
from eaglegate.engine.steps import put
from eaglegate.engine.types import EngineRequest, Step, StepSink
from eaglegate.engine.vllm_backend import translate
from eaglegate.engine.vllm_fields import ABORT, FINISH
from eaglegate.text.events import FinishReason


class Inbox(Protocol):
    """Steps of one request."""

    async def deliver(self, sink: StepSink) -> None:
        """Push every step into ``sink``. Raises EngineError, and any exception of ``sink``."""
        ...


class Outputs(Protocol):
    """Conversion of vLLM's outputs to steps."""

    @property
    def unclaimed(self) -> Totals:
        """Steps made for requests whose consumer had already left."""
        ...

    async def open_request(
        self, llm: AsyncLLM, request: EngineRequest, adapter: LoRARequest | None
    ) -> Any:
        """Return an ``Inbox``. Raises EngineError for a request that vLLM refuses."""
        ...

    async def close_request(self, llm: AsyncLLM, inbox: Any) -> None:
        """Abort the request unless it has ended."""
        ...

    async def fail_all(self, llm: AsyncLLM) -> None:
        """Fail every open request with EngineDead, because the engine is closed."""
        ...


class PublicOutputs:
    """Implementation of ``Outputs`` on the public interface."""

    def __init__(self) -> None:
        self.unclaimed = Totals()
        self._open: set[str] = set()

    async def open_request(
        self, llm: AsyncLLM, request: EngineRequest, adapter: LoRARequest | None
    ) -> PublicInbox:
        try:
            stream = llm.generate(
                prompt=translate.make_prompt(request),
                sampling_params=translate.make_sampling_params(request),
                **translate.make_options(request, adapter),
            )
        except translate.INTAKE_ERRORS as error:
            raise translate.convert_intake_error(error, request.id) from error
        self._open.add(request.id)
        return PublicInbox(self, stream, request)

    async def close_request(self, _llm: AsyncLLM, inbox: PublicInbox) -> None:
        self._open.discard(inbox.request.id)
        await inbox.stream.aclose()

    async def fail_all(self, llm: AsyncLLM) -> None:
        """Abort the open requests. vLLM ends them with an output; a dead engine has already failed
        them."""
        with suppress(VLLMError):
            await llm.abort(list(self._open))


class PublicInbox:
    """Implementation of ``Inbox`` on the public interface."""

    def __init__(
        self,
        outputs: PublicOutputs,
        stream: AsyncGenerator[RequestOutput, None],
        request: EngineRequest,
    ) -> None:
        self.stream = stream
        self.request = request
        self._outputs = outputs
        self._is_first = True

    async def deliver(self, sink: StepSink) -> None:
        ended = False
        while not ended:
            step = await self._get()
            ended = step.finish is not None
            await put(step, sink)

    async def _get(self) -> Step:
        try:
            output = await anext(self.stream)
        except translate.INTAKE_ERRORS as error:
            if self._is_first:
                raise translate.convert_intake_error(error, self.request.id) from error
            raise translate.convert_error(error) from error
        step = convert_output(output, self.request, self._is_first)
        self._is_first = False
        return step


def convert_output(output: RequestOutput, request: EngineRequest, first: bool) -> Step:
    """Convert an output to a step. Raises EngineFailed, and EngineDead if the engine aborted the
    request."""
    (completion,) = output.outputs
    if completion.finish_reason == ABORT:
        raise EngineDead(translate.ABORTED)
    if completion.finish_reason == "error":
        raise EngineFailed("The engine failed on this request.")
    token_ids = tuple(completion.token_ids)
    finish = FINISH.get(completion.finish_reason)
    sampling = request.sampling
    return Step(
        token_ids,
        logprobs=translate.convert_output_logprobs(
            token_ids, completion.logprobs, sampling.logprobs
        ),
        prompt_logprobs=translate.convert_prompt_logprobs(
            output.prompt_token_ids, output.prompt_logprobs, sampling.prompt_logprobs
        ),
        cached_tokens=output.num_cached_tokens if first else None,
        finish=finish,
        stop_token=token_ids[-1] if finish is FinishReason.STOP and token_ids else None,
    )
