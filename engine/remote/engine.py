"""One worker as an Engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import httpx

from engine.base import Engine
from engine.errors import EngineDead, EngineFailed
from engine.remote import probe, wire
from engine.remote.access import Access, Speaks, Upstream
from engine.remote.account import Told, decode_steps
from engine.remote.connection import Connection
from engine.remote.counters import totals_of
from engine.remote.driver import Driver, quiet
from engine.remote.model import LocalModel
from engine.remote.text import TextEngine
from engine.speculation.accounting import Totals, shared_step
from engine.types import (
    DecodeStep,
    EngineInfo,
    EngineRequest,
    FinishReason,
    PositionLogprobs,
    Step,
    Undrafted,
)


class RemoteEngine(Driver):
    """See ``engine.base.Engine``: token ids over HTTP to and from one vLLM server.

    The account of an answer's decode steps comes with its last step, because the worker tells it
    then. Answers that are broken off have none.
    """

    _speculation = probe.Speculation(active=False, told=False)

    async def _meet(self, connection: Connection, name: str, longest: int) -> EngineInfo:
        await probe.check_vocabulary(connection, self._model, name)
        self._progress(f"warming up {self._upstream}")
        self._speculation = await probe.speculation(connection, self._model)
        found = probe.Found(name, longest, self._speculation)
        return probe.info_of(found, self._model, connection)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Step, None]:
        connection = self._running()
        stream = request.sampling.prompt_logprobs is None
        body = wire.body(request, stream=stream, depth=self._speculation.per_request)
        answer = Answer(request, self._speculation)
        if stream:
            payloads = connection.stream(wire.GENERATE, body, request.trace_headers)
            async with aclosing(_steps(payloads, answer)) as steps:
                async for step in steps:
                    yield step
        else:
            answer.read_whole(await connection.whole(wire.GENERATE, body, request.trace_headers))
        yield answer.last()

    async def counted(self) -> Totals | None:
        answer = await self._running().ask("/metrics")
        return totals_of(answer.text) if answer.status_code == httpx.codes.OK else None


async def _steps(payloads: AsyncGenerator[Any, None], answer: Answer) -> AsyncGenerator[Step, None]:
    """All but the last. A stream that breaks behind its last token has lost its account alone."""
    async with aclosing(payloads):
        try:
            async for payload in payloads:
                for step in answer.read(payload):
                    yield step
        except EngineDead:
            if not answer.complete:
                raise


class Answer:
    """One answer as it comes. Its last step waits for the account, which comes right behind it."""

    def __init__(self, request: EngineRequest, speculation: probe.Speculation) -> None:
        self._request = request
        self._speculation = speculation
        self._sizes: list[int] = []
        self._last: Step | None = None
        self._told: Told | None = None
        self._cached: int | None = None
        self._prompt: tuple[PositionLogprobs | None, ...] | None = None

    @property
    def complete(self) -> bool:
        """Every token has come."""
        return self._last is not None

    def read(self, payload: dict[str, Any]) -> list[Step]:
        """The steps that may go on; none for the last one and for what follows it."""
        self._note(payload)
        out = []
        for choice in payload["choices"]:
            token_ids = tuple(choice["token_ids"] or ())
            if token_ids:
                self._sizes.append(len(token_ids))
            step = self._step(token_ids, choice)
            if step.finish is not None:
                self._last = step
            elif token_ids:
                out.append(step)
        return out

    def read_whole(self, payload: dict[str, Any]) -> None:
        """An answer that is not streamed: only such a one tells about the prompt."""
        self.read(payload)
        self._prompt = wire.prompt_logprobs(
            self._request.prompt,
            payload.get("prompt_logprobs"),
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

    def _note(self, payload: dict[str, Any]) -> None:
        metrics = payload.get("metrics")
        if metrics and metrics.get("speculative_decoding"):
            self._told = Told.read(metrics["speculative_decoding"])
        details = (payload.get("usage") or {}).get("prompt_tokens_details")
        if details:
            self._cached = details.get("cached_tokens")

    def _step(self, token_ids: tuple[int, ...], choice: dict[str, Any]) -> Step:
        reason = choice["finish_reason"]
        if reason == "error":
            raise EngineFailed("The worker failed on this request.")
        finish = wire.FINISH.get(reason or "")
        stopped = finish is FinishReason.STOP and token_ids
        return Step(
            token_ids,
            decode=() if self._speculation.active else self._plain(len(token_ids)),
            logprobs=wire.output_logprobs(choice.get("logprobs"), self._request.sampling.logprobs),
            finish=finish,
            stop_token=token_ids[-1] if stopped else None,
        )

    def _plain(self, tokens: int) -> tuple[DecodeStep, ...]:
        """Of a worker without speculation: one step a token, but for the prefill's."""
        steps = tokens - (len(self._sizes) == 1)
        return (shared_step(0, 0, 1, 0, Undrafted.OFF),) * max(0, steps)

    def _decode(self, last: Step) -> tuple[DecodeStep, ...]:
        """The account of all decode steps; none when the worker did not give one."""
        if not self._speculation.active or self._told is None:
            return last.decode
        off = self._speculation.per_request and self._request.depth == 0
        reason = Undrafted.OFF if off else Undrafted.REFUSED
        return decode_steps(self._sizes, self._told, reason)


def remote_engine(
    upstream: Upstream,
    model: LocalModel,
    access: Access,
    progress: Callable[[str], None] = quiet,
) -> Engine:
    """The engine that speaks the worker's language; made cheaply, connects when started."""
    kind = TextEngine if upstream.speaks is Speaks.TEXT else RemoteEngine
    return kind(upstream, model, access, progress)
