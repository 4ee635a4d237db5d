"""Remote engines, each driving one worker over HTTP. The engine in this file exchanges token ids
with vLLM.

``protocols.py`` makes the engine for an address. ``connection.py`` speaks HTTP and bounds every
answer; ``reading.py`` checks it. ``text.py`` has the engine for any OpenAI-compatible server. A new
protocol needs a subclass of ``RemoteEngineBase`` (``driver.py``) and a row in ``ENGINES``
(``protocols.py``).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

from msgspec.structs import replace

from eaglegate.engine.advisories import refuse_advisories
from eaglegate.engine.base import (
    CountsImages,
    ReadsPrompts,
    SupportsCounters,
    SupportsInspection,
)
from eaglegate.engine.errors import (
    EngineDead,
    EngineError,
    EngineFailed,
    EngineStartError,
    RequestRejected,
)
from eaglegate.engine.remote import probe, wire
from eaglegate.engine.remote.connection import WorkerConnection
from eaglegate.engine.remote.driver import RemoteEngineBase
from eaglegate.engine.remote.images import ImageCounts, probe_images
from eaglegate.engine.remote.probe import SpeculationAccount, lay_decode_steps, parse_totals
from eaglegate.engine.remote.reading import (
    WorkerProtocolError,
    compute_limits,
    quote,
    read_integer,
    read_integers,
    read_list,
    read_object,
    read_optional_object,
)
from eaglegate.engine.speculation.accounts.accounting import intern_step
from eaglegate.engine.steps import push_steps, put
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import (
    VERSION,
    DecodeStep,
    EngineInfo,
    EngineRequest,
    PositionLogprobs,
    Step,
    StepSink,
    UndraftedReason,
)
from eaglegate.engine.vllm_fields import ABORT, FINISH, check_placeholders
from eaglegate.text.events import FinishReason
from eaglegate.text.media.image import Image

ACCOUNT_S = 5.0
"""Longest wait for the metrics that follow the last token, in seconds."""
ACCOUNT_EVENTS = 16
NO_IMAGES = "The worker behind this gateway reads text only, or was started without images."


class RemoteEngine(
    RemoteEngineBase, SupportsCounters, SupportsInspection, CountsImages, ReadsPrompts
):
    """Engine that exchanges token ids with one vLLM server over HTTP.

    The last step brings the account of all decode steps, because the worker reports it then. An
    answer that was cut off has no account.
    """

    _speculation = probe.WorkerSpeculation(active=False, reported=False)
    _name = ""
    _images: ImageCounts | None = None
    """None if the worker reads no images."""

    async def start(self) -> EngineInfo:
        info = await super().start()
        if not self._speculation.active or VERSION not in info.details:
            return info
        connection = self._require_connection()
        exposition = await probe.read_metrics(connection)
        if (pod := probe.describe_pod(exposition)) is not None:
            info = dataclasses.replace(info, details={**info.details, "plug-in": pod})
        advisories = await probe.find_advisories(
            connection, exposition, info.details[VERSION], self._model.recurrent
        )
        if advisories and self._access.strict_advisories:
            await self.aclose()
            raise EngineStartError(refuse_advisories(advisories))
        return dataclasses.replace(info, advisories=advisories)

    async def _probe(
        self, connection: WorkerConnection, name: str, max_model_len: int
    ) -> EngineInfo:
        await probe.check_vocabulary(connection, self._model, name)
        self._speculation = await probe.probe_speculation(connection, self._model)
        self._name = name
        image_input = await probe_images(connection, self._model.placeholder)
        if image_input is not None:
            self._images = ImageCounts(connection, image_input)
        spec = self._speculation
        return EngineInfo(
            model=name,
            max_model_len=max_model_len,
            vocab_size=self._model.vocab_size,
            speculation=probe.describe_speculation(spec),
            reports_decode_steps=spec.reported,
            accounts_at_end=spec.active and spec.reported,
            default_sampling=self._model.default_sampling,
            details={"worker": str(connection.upstream)},
            image_input=image_input,
        )

    async def count_image(self, image: Image) -> int:
        """See ``eaglegate.engine.base.CountsImages``."""
        self._require_connection()
        if self._images is None:
            raise RequestRejected(NO_IMAGES, "images")
        return await self._images.count(image)

    async def generate(self, request: EngineRequest, sink: StepSink) -> None:
        connection = self._require_connection()
        self._check_images(request)
        if request.sampling.prompt_logprobs is not None:
            await put(await self.read_prompt(request), sink)
            return
        body = wire.build_body(request, stream=True, depth=self._speculation.per_request)
        limits, headers = compute_limits(request), request.trace_headers
        answer = AnswerAssembler(request, self._speculation, limits.tokens, self._model.vocab_size)
        payloads = connection.stream(wire.GENERATE, body, headers, limits)
        del body
        await push_steps(_read_steps(payloads, answer), sink)
        await put(answer.finish(), sink)

    async def read_prompt(self, request: EngineRequest, first: int = 0) -> Step:
        """See ``eaglegate.engine.base.ReadsPrompts``."""
        connection, limits = self._require_connection(), compute_limits(request)
        body = wire.build_body(request, stream=False, depth=self._speculation.per_request)
        answer = AnswerAssembler(request, self._speculation, limits.tokens, self._model.vocab_size)
        reply = await connection.fetch(wire.GENERATE, body, request.trace_headers, limits)
        answer.read_whole(reply, first)
        return answer.finish()

    def _check_images(self, request: EngineRequest) -> None:
        """Refuse images that the worker does not read, and words that stand for none."""
        if request.images and self._images is None:
            raise RequestRejected(NO_IMAGES, "images")
        if request.images and request.sampling.prompt_logprobs is not None:
            raise RequestRejected(
                "Log probabilities of a prompt with images cannot be given.", "prompt_logprobs"
            )
        if self._model.placeholder is not None:
            check_placeholders(request.prompt, request.images, self._model.placeholder)

    async def read_counters(self) -> Totals | None:
        reply = await self._require_connection().ask("/metrics")
        return parse_totals(reply.text) if reply.ok else None

    async def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> list[int] | None:
        body = {"model": self._name, "messages": messages, "tools": tools or None}
        reply = await self._require_connection().ask("/tokenize", body)
        return probe.read_tokens(reply.body) if reply.ok else None

    async def has_cache_hits(self) -> bool:
        reply = await self._require_connection().ask("/metrics")
        return reply.ok and probe.has_cache_hits(reply.text)


async def _read_steps(
    payloads: AsyncGenerator[Any, None], answer: AnswerAssembler
) -> AsyncGenerator[Step, None]:
    """Yield all steps but the last. A stream that breaks after its last token loses only its
    metrics."""
    async with aclosing(payloads):
        async for payload in payloads:
            for step in answer.read(payload):
                yield step
            if answer.is_complete:
                await _read_account(payloads, answer)
                return


async def _read_account(payloads: AsyncGenerator[Any, None], answer: AnswerAssembler) -> None:
    """Read the metrics that follow the last token."""
    with suppress(TimeoutError, EngineError):
        async with asyncio.timeout(ACCOUNT_S):
            for _ in range(ACCOUNT_EVENTS):
                if (payload := await anext(payloads, None)) is None:
                    return
                answer.read(payload)


class AnswerAssembler:
    """Assembler of one answer from chunks. The last step waits for the metrics that follow it."""

    def __init__(
        self,
        request: EngineRequest,
        speculation: probe.WorkerSpeculation,
        max_tokens: int,
        vocab_size: int,
    ) -> None:
        self._request = request
        self._speculation = speculation
        self._budget = max_tokens
        """Tokens that the worker may still send."""
        self._vocab_size = vocab_size
        self._sizes: list[int] = []
        self._last: Step | None = None
        self._account: SpeculationAccount | None = None
        self._cached: int | None = None
        self._prompt: tuple[PositionLogprobs | None, ...] | None = None

    @property
    def is_complete(self) -> bool:
        """True if every token has arrived."""
        return self._last is not None

    def read(self, answer: Any) -> list[Step]:
        """Return the steps to pass on. The last step and the chunks after it give none.

        Raises WorkerProtocolError.
        """
        payload = read_object(answer, "a chunk")
        self._read_metadata(payload)
        result = []
        for entry in read_list(payload.get("choices"), "choices", 1):
            choice = read_object(entry, "a choice")
            step = self._read_step(self._read_tokens(choice.get("token_ids")), choice)
            if step.finish is not None:
                self._last = step
            elif step.token_ids:
                result.append(step)
        return result

    def read_whole(self, answer: Any, first: int = 0) -> None:
        """Read an answer that is not streamed. Only such an answer has the log probabilities of the
        prompt's tokens, which are read from the place ``first`` on."""
        self.read(answer)
        self._prompt = wire.read_prompt_logprobs(
            self._request.prompt,
            answer.get("prompt_logprobs"),
            self._request.sampling.prompt_logprobs,
            first,
        )

    def finish(self) -> Step:
        """Return the last step with the account. Raises EngineDead if the stream ended before the
        answer."""
        if self._last is None:
            raise EngineDead("The worker ended its stream before the answer.")
        return replace(
            self._last,
            decode=self._lay_decode_steps(self._last),
            cached_tokens=self._cached,
            prompt_logprobs=self._prompt,
        )

    def _read_metadata(self, payload: Mapping[str, Any]) -> None:
        metrics = read_optional_object(payload.get("metrics"), "metrics")
        if metrics.get("speculative_decoding"):
            limit = sum(self._sizes) + self._budget
            self._account = SpeculationAccount.read(metrics["speculative_decoding"], limit)
        usage = read_optional_object(payload.get("usage"), "usage")
        details = read_optional_object(usage.get("prompt_tokens_details"), "prompt_tokens_details")
        if details.get("cached_tokens") is not None:
            limit = self._request.num_prompt
            self._cached = read_integer(details["cached_tokens"], "cached_tokens", 0, limit)

    def _read_tokens(self, entry: Any) -> tuple[int, ...]:
        """Return the tokens of one chunk, within the vocabulary and the requested number."""
        if self._last is not None:
            raise WorkerProtocolError("a token came after the last one")
        token_ids = read_integers(entry, "token_ids", 0, self._vocab_size, self._budget)
        self._budget -= len(token_ids)
        if token_ids:
            self._sizes.append(len(token_ids))
        return token_ids

    def _read_step(self, token_ids: tuple[int, ...], choice: Mapping[str, Any]) -> Step:
        finish = _read_finish(choice.get("finish_reason"))
        stops = finish is FinishReason.STOP and token_ids
        top = self._request.sampling.logprobs
        return Step(
            token_ids,
            decode=() if self._speculation.active else self._make_plain_steps(len(token_ids)),
            logprobs=wire.read_output_logprobs(choice.get("logprobs"), top, len(token_ids)),
            finish=finish,
            stop_token=token_ids[-1] if stops else None,
        )

    def _make_plain_steps(self, tokens: int) -> tuple[DecodeStep, ...]:
        """Return the decode steps of a worker without speculation, one per token after the
        prefill."""
        steps = tokens - (len(self._sizes) == 1)
        return (intern_step(0, 0, 1, 0, UndraftedReason.OFF),) * max(0, steps)

    def _lay_decode_steps(self, last_step: Step) -> tuple[DecodeStep, ...]:
        """Return all decode steps; empty if the worker did not report them."""
        if not self._speculation.active or self._account is None:
            return last_step.decode
        is_off = self._speculation.per_request and self._request.depth == 0
        reason = UndraftedReason.OFF if is_off else UndraftedReason.REFUSED
        return lay_decode_steps(self._sizes, self._account, reason)


def _read_finish(reason: Any) -> FinishReason | None:
    """Return the finish reason; None if the answer continues.

    Raises WorkerProtocolError, EngineFailed if the answer ended in an error, and EngineDead if the
    worker gave the request up, which a worker does when it stops.
    """
    if reason is None or reason == "":
        return None
    if reason == "error":
        raise EngineFailed("The worker failed on this request.")
    if reason == ABORT:
        raise EngineDead("The worker ended the request before its answer was complete.")
    if not isinstance(reason, str) or reason not in FINISH:
        raise WorkerProtocolError(f"a finish_reason is unknown: {quote(str(reason))}")
    return FINISH[reason]
