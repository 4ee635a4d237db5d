"""One worker as an Engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from engine.errors import EngineDead, EngineError, EngineFailed
from engine.remote import probe, wire
from engine.remote.connection import WorkerConnection
from engine.remote.driver import RemoteEngineBase
from engine.remote.reading import (
    WorkerProtocolError,
    compute_limits,
    quote,
    read_integer,
    read_integers,
    read_list,
    read_object,
    read_optional_object,
)
from engine.remote.speculation import SpeculationAccount, lay_decode_steps, parse_totals
from engine.speculation.accounting import Totals, intern_step
from engine.types import (
    DecodeStep,
    EngineInfo,
    EngineRequest,
    FinishReason,
    PositionLogprobs,
    Step,
    UndraftedReason,
)
from engine.vllm_fields import FINISH

ACCOUNT_S = 5.0
"""The account comes right behind the last token; a client waits for it this long at most."""
ACCOUNT_EVENTS = 16


class RemoteEngine(RemoteEngineBase):
    """See ``engine.base.Engine``: token ids over HTTP to and from one vLLM server.

    The account of an answer's decode steps comes with its last step, because the worker tells it
    then. Answers that are broken off have none.
    """

    _speculation = probe.WorkerSpeculation(active=False, told=False)

    async def _meet(self, connection: WorkerConnection, name: str, longest: int) -> EngineInfo:
        await probe.check_vocabulary(connection, self._model, name)
        self._progress(f"warming up {self._upstream}")
        self._speculation = await probe.probe_speculation(connection, self._model)
        found = probe.WorkerFacts(name, longest, self._speculation)
        return probe.build_info(found, self._model, connection)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Step, None]:
        connection = self._running()
        stream = request.sampling.prompt_logprobs is None
        body = wire.build_body(request, stream=stream, depth=self._speculation.per_request)
        most, headers = compute_limits(request), request.trace_headers
        answer = AnswerAssembler(request, self._speculation, most.tokens, self._model.vocab_size)
        if stream:
            payloads = connection.stream(wire.GENERATE, body, headers, most)
            async with aclosing(_steps(payloads, answer)) as steps:
                async for step in steps:
                    yield step
        else:
            answer.read_whole(await connection.whole(wire.GENERATE, body, headers, most))
        yield answer.last()

    async def counted(self) -> Totals | None:
        reply = await self._running().ask("/metrics")
        return parse_totals(reply.text) if reply.ok else None


async def _steps(
    payloads: AsyncGenerator[Any, None], answer: AnswerAssembler
) -> AsyncGenerator[Step, None]:
    """All but the last. A stream that breaks behind its last token has lost its account alone."""
    async with aclosing(payloads):
        async for payload in payloads:
            for step in answer.read(payload):
                yield step
            if answer.complete:
                await _account(payloads, answer)
                return


async def _account(payloads: AsyncGenerator[Any, None], answer: AnswerAssembler) -> None:
    """Read what follows the last token: the account, and not much else."""
    with suppress(TimeoutError, EngineError):
        async with asyncio.timeout(ACCOUNT_S):
            for _ in range(ACCOUNT_EVENTS):
                if (payload := await anext(payloads, None)) is None:
                    return
                answer.read(payload)


class AnswerAssembler:
    """One answer as it comes. Its last step waits for the account, which comes right behind it."""

    def __init__(
        self,
        request: EngineRequest,
        speculation: probe.WorkerSpeculation,
        most: int,
        vocab_size: int,
    ) -> None:
        self._request = request
        self._speculation = speculation
        self._left = most
        """Tokens that may still come."""
        self._vocab_size = vocab_size
        self._sizes: list[int] = []
        self._last: Step | None = None
        self._told: SpeculationAccount | None = None
        self._cached: int | None = None
        self._prompt: tuple[PositionLogprobs | None, ...] | None = None

    @property
    def complete(self) -> bool:
        """Every token has come."""
        return self._last is not None

    def read(self, said: Any) -> list[Step]:
        """The steps that may go on; none for the last one and for what follows it.

        Raises WorkerFault.
        """
        payload = read_object(said, "a chunk")
        self._note(payload)
        out = []
        for entry in read_list(payload.get("choices"), "choices", 1):
            choice = read_object(entry, "a choice")
            step = self._step(self._tokens(choice.get("token_ids")), choice)
            if step.finish is not None:
                self._last = step
            elif step.token_ids:
                out.append(step)
        return out

    def read_whole(self, said: Any) -> None:
        """An answer that is not streamed: only such a one tells about the prompt."""
        self.read(said)
        self._prompt = wire.read_prompt_logprobs(
            self._request.prompt,
            said.get("prompt_logprobs"),
            self._request.sampling.prompt_logprobs,
        )

    def last(self) -> Step:
        """Raises EngineDead for a stream that ended before its answer did."""
        if self._last is None:
            raise EngineDead("The worker ended its stream before the answer.")
        return replace(
            self._last,
            decode=self._decode(self._last),
            cached_tokens=self._cached,
            prompt_logprobs=self._prompt,
        )

    def _note(self, payload: Mapping[str, Any]) -> None:
        metrics = read_optional_object(payload.get("metrics"), "metrics")
        if metrics.get("speculative_decoding"):
            most = sum(self._sizes) + self._left
            self._told = SpeculationAccount.read(metrics["speculative_decoding"], most)
        usage = read_optional_object(payload.get("usage"), "usage")
        details = read_optional_object(usage.get("prompt_tokens_details"), "prompt_tokens_details")
        if details.get("cached_tokens") is not None:
            most = len(self._request.prompt)
            self._cached = read_integer(details["cached_tokens"], "cached_tokens", 0, most)

    def _tokens(self, said: Any) -> tuple[int, ...]:
        """Of one chunk, within the model's vocabulary and what was asked for."""
        if self._last is not None:
            raise WorkerProtocolError("a token came behind the last one")
        token_ids = read_integers(said, "token_ids", 0, self._vocab_size, self._left)
        self._left -= len(token_ids)
        if token_ids:
            self._sizes.append(len(token_ids))
        return token_ids

    def _step(self, token_ids: tuple[int, ...], choice: Mapping[str, Any]) -> Step:
        finish = _finish(choice.get("finish_reason"))
        stopped = finish is FinishReason.STOP and token_ids
        top = self._request.sampling.logprobs
        return Step(
            token_ids,
            decode=() if self._speculation.active else self._plain(len(token_ids)),
            logprobs=wire.read_output_logprobs(choice.get("logprobs"), top, len(token_ids)),
            finish=finish,
            stop_token=token_ids[-1] if stopped else None,
        )

    def _plain(self, tokens: int) -> tuple[DecodeStep, ...]:
        """Of a worker without speculation: one step a token, but for the prefill's."""
        steps = tokens - (len(self._sizes) == 1)
        return (intern_step(0, 0, 1, 0, UndraftedReason.OFF),) * max(0, steps)

    def _decode(self, last: Step) -> tuple[DecodeStep, ...]:
        """The account of all decode steps; none when the worker did not give one."""
        if not self._speculation.active or self._told is None:
            return last.decode
        off = self._speculation.per_request and self._request.depth == 0
        reason = UndraftedReason.OFF if off else UndraftedReason.REFUSED
        return lay_decode_steps(self._sizes, self._told, reason)


def _finish(reason: Any) -> FinishReason | None:
    """Raises WorkerFault, and EngineFailed for an answer that ended in an error."""
    if reason is None or reason == "":
        return None
    if reason == "error":
        raise EngineFailed("The worker failed on this request.")
    if not isinstance(reason, str) or reason not in FINISH:
        raise WorkerProtocolError(f"a finish_reason is unknown: {quote(str(reason))}")
    return FINISH[reason]
