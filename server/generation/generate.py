"""The pipeline of a request: job, prompt, engine steps, events. Read this first.

Every request takes this path: a response that is not streamed folds the same events. When the
client disconnects, its task is cancelled, which aborts the engine request.

A step passes through one chain of calls, which the engine starts:

    recovery      engine/supervision/recovery.py   the part of the step that is new
    telemetry     observability/engine.py          records the step
    the choice    ``_Choice`` below                tokens to events, reported to the observer
    the response  server/http/response.py          events to frames, to the socket

Each link is a sink around the next one. If the client cannot keep up, the engine holds steps back
until ``drain`` returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from msgspec.structs import replace

from eaglegate.engine.errors import EngineError, EngineFailed, RequestRejected
from eaglegate.engine.events import (
    Ending,
    Event,
    EventCallback,
    EventSink,
    Finish,
    LogprobsDelta,
    Observer,
    Pace,
    PromptEcho,
    RequestFacts,
    RequestTimes,
    TokensDelta,
    Usage,
    UsageDelta,
)
from eaglegate.engine.speculation.accounts.accounting import Account
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import EngineRequest, Step
from eaglegate.server.access.budget import RequestCharge
from eaglegate.server.access.caller import Requester
from eaglegate.server.access.prompt_turns import PromptTurn
from eaglegate.server.errors import DeadlineExceeded, GatewayError, ReaderTooSlow, context_overflow
from eaglegate.server.generation.deadline import Deadline
from eaglegate.server.generation.job import (
    Conversation,
    Display,
    Job,
    Prompt,
    PromptSource,
    Question,
)
from eaglegate.server.generation.pipeline import Pipeline
from eaglegate.server.generation.prompt import (
    encode,
    prompt_limits,
    render,
    render_newest,
    room_for_messages,
    shorten,
)
from eaglegate.server.generation.quotes import add_quotes
from eaglegate.server.generation.refusals import explain
from eaglegate.server.generation.steps import StepTracer
from eaglegate.text.events import FinishReason, ParserEvent
from eaglegate.text.parsing.parser import Parser
from eaglegate.text.rendering.encoding import PromptTooLong, RenderLimits

PIXELS_PER_TOKEN = 28 * 28
"""Pixels that an engine decodes for the price of a token that it reads."""
ENDINGS: dict[type[Exception], Ending] = {
    RequestRejected: Ending.REJECTED,
    EngineError: Ending.ENGINE,
    DeadlineExceeded: Ending.TIMEOUT,
    ReaderTooSlow: Ending.SLOW_READER,
}
"""How a request ended, by exception class. The first matching class counts."""


async def generate(
    job: Job,
    pipeline: Pipeline,
    observer: Observer,
    arrival: float,
    output: EventSink,
    accept: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Run a job and push the events of all its choices. Raises GatewayError or EngineError.

    ``arrival`` is the ``time.perf_counter()`` at which the request arrived. ``accept`` is called
    once the request has its place in the queue and has paid for its prompt; its error refuses it.
    """
    deadline = Deadline(job.caller.timeout_s, arrival)
    requester, charge = job.caller.to_requester(deadline.at), job.caller.charge
    refusals, times = _RefusalReport(observer, job), RequestTimes()
    # Refusals end at two places: here, where no ticket must be given back yet, and at admission.
    # Errors after that are endings of an observed request. ``enter`` awaits nothing, so no deadline
    # could end it; it refuses by itself what would wait longer.
    with refusals:
        place = pipeline.admission.enter(requester)
    with place:
        with refusals:
            async with deadline.limit():
                job = _apply_policy(job, pipeline)
                charge.begin_tokenizing()
                prompts, requests = await _prepare(job, pipeline, requester, times)
                num_prompt = sum([prompt.num_tokens for prompt in prompts])
                if job.display.wants_prompt:
                    num_echoed = sum([len(request.prompt) for request in requests])
                    charge.hold_echo(num_echoed, _count_echoed_logprobs(job))
                charge.reserve(num_prompt, job.question.sampling.max_tokens * len(requests) or None)
                # After ``reserve``, which may refuse: an accepted response is stored. Before
                # ``admit``, because its client shall not wait for a place.
                if accept is not None:
                    await accept()
                await place.admit(len(requests), num_prompt)
        observation = observer.begin(_describe_request(job, prompts, requests, arrival, times))
        readers = [
            _make_reader(job, pipeline, prompts[position // job.question.n])
            for position in range(len(requests))
        ]
        sink = _TimedSink(output, times)
        choices = [
            _Choice(index, reader, observation.choice(request.id), sink, times)
            for index, (reader, request) in enumerate(zip(readers, requests, strict=True))
        ]
        try:
            async with deadline.limit():
                await _run_all(
                    [
                        choice.run(pipeline, requester, request, charge)
                        for choice, request in zip(choices, requests, strict=True)
                    ]
                )
            place.record_served()
        except BaseException as error:
            observation.end(_find_ending(type(error)))
            raise
        else:
            observation.end(Ending.COMPLETED)
        finally:
            charge.settle(num_prompt, sum([reader.account.tokens for reader in readers]))


async def _prepare(
    job: Job, pipeline: Pipeline, requester: Requester, times: RequestTimes
) -> tuple[list[Prompt], list[EngineRequest]]:
    """Make the prompts and engine requests, and check that their grammars compile.

    Raises GatewayError.
    """
    start = perf_counter()
    prompts = await make_prompts(job, pipeline)
    requests = await add_quotes(_make_requests(job, pipeline, prompts), job, pipeline)
    times.rendering = perf_counter() - start
    if pipeline.trials is not None:
        constraints = [request.constraint for request in requests]
        start = perf_counter()
        await pipeline.trials.check(constraints, requester, job.question.grammar_param)
        times.compiling = perf_counter() - start
    return prompts, requests


class _RefusalReport:
    """Context manager that reports refused requests to the observer."""

    def __init__(self, observer: Observer, job: Job) -> None:
        self._observer = observer
        self._job = job

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if isinstance(error, GatewayError):
            job = self._job
            self._observer.record_refusal(job.api, error.code or error.type, job.caller.name)


def _find_ending(kind: type[BaseException]) -> Ending:
    if issubclass(kind, asyncio.CancelledError):
        return Ending.CLIENT_GONE
    return next(
        (end for error_type, end in ENDINGS.items() if issubclass(kind, error_type)), Ending.ERROR
    )


def _apply_policy(job: Job, pipeline: Pipeline) -> Job:
    """Return the job with its adapter, the depth, lane and longest lookup of the current policy,
    and a cache salt that separates its prompts from those of other keys.
    """
    wishes = job.placement
    decision = pipeline.policy.decide(
        job.id, job.workload, job.caller.name, wishes.depth, job.session
    )
    placement = replace(
        wishes,
        depth=decision.depth,
        lane=decision.lane,
        arm=decision.arm,
        lookup=decision.lookup,
        adapter=job.model if job.model in pipeline.served_model.adapters else None,
        cache_salt=pipeline.isolation.salt(job.caller.key, wishes.cache_salt),
    )
    return replace(job, placement=placement)


def _describe_request(
    job: Job,
    prompts: Sequence[Prompt],
    requests: Sequence[EngineRequest],
    arrival: float,
    times: RequestTimes,
) -> RequestFacts:
    sources = job.question.prompts
    chat = next((source for source in sources if isinstance(source, Conversation)), None)
    return RequestFacts(
        id=job.id,
        api=job.api,
        model=job.model,
        lane=job.placement.lane,
        workload=job.workload,
        template=job.template,
        stream=job.display.stream,
        prompt_tokens=max(prompt.num_tokens for prompt in prompts),
        sequences=tuple(request.id for request in requests),
        arrived=arrival,
        admitted=perf_counter(),
        key=job.caller.name,
        session=job.session,
        arm=job.placement.arm,
        chose_timeout=job.caller.chose_timeout,
        messages=chat.messages if chat else (),
        tools=chat.tools if chat else (),
        times=times,
        images=max(len(request.images) for request in requests),
    )


async def make_prompts(job: Job, pipeline: Pipeline) -> list[Prompt]:
    """Render the prompts. Raises InvalidRequest if one does not fit the context."""
    question, num_tokens = job.question, 0
    prompts: list[Prompt] = []
    try:
        for source in question.prompts:
            prompts.append(prompt := await _make_prompt(source, job, pipeline))
            num_tokens += len(prompt.token_ids)
            if job.display.wants_prompt:  # before further prompts are tokenized
                job.caller.charge.check_echo(question.n * num_tokens, _count_echoed_logprobs(job))
        return prompts
    except PromptTooLong as error:
        raise context_overflow(
            job.api, error.num_tokens, 0, pipeline.info.max_model_len, error.exact
        ) from None


def _count_echoed_logprobs(job: Job) -> int:
    """Return the number of log probabilities of each prompt token in the answer."""
    logprobs = job.question.sampling.prompt_logprobs
    return 0 if logprobs is None else logprobs + 1


async def _make_prompt(source: PromptSource, job: Job, pipeline: Pipeline) -> Prompt:
    question, charge = job.question, job.caller.charge
    max_model_len, renderer = pipeline.info.max_model_len, pipeline.renderer
    cut = (question.truncate_prompt, question.truncation_side, max_model_len)
    limits = prompt_limits(*cut)
    match source:
        case Conversation() if source.images:
            return await _make_image_prompt(source, job, pipeline)
        case Conversation() if question.drops_oldest:
            room = room_for_messages(question.sampling.max_tokens, max_model_len)
            _, token_ids = await render_newest(source, renderer, charge, room, max_model_len)
        case Conversation():
            token_ids = await render(source, renderer, charge, limits)
        case str():
            token_ids = await encode(source, renderer, question.add_special_tokens, charge, limits)
        case _:
            token_ids = list(source)
    token_ids = shorten(token_ids, *cut)
    if pipeline.images is not None:
        pipeline.images.check_text(token_ids, job.api)
    if not question.parses:
        return Prompt(tuple(token_ids))
    continued_text = source.continued_text if isinstance(source, Conversation) else ""
    return pipeline.parsers.read(token_ids, continued_text)


async def _make_image_prompt(conversation: Conversation, job: Job, pipeline: Pipeline) -> Prompt:
    question, caller, charge = job.question, job.caller, job.caller.charge
    prompt_images, max_model_len = pipeline.images, pipeline.info.max_model_len
    assert prompt_images is not None
    images = await prompt_images.read(conversation.images, caller)
    conversation = await prompt_images.arrange(conversation, pipeline.renderer)
    if question.drops_oldest:
        room = room_for_messages(question.sampling.max_tokens, max_model_len)
        measure = prompt_images.make_measure(images, caller)
        conversation, token_ids = await render_newest(
            conversation, pipeline.renderer, charge, room, max_model_len, measure
        )
        images = images[len(images) - len(conversation.images) :]
    else:
        limits = RenderLimits(max_tokens=max_model_len)
        token_ids = await render(conversation, pipeline.renderer, charge, limits)
    prompt = pipeline.parsers.read(token_ids, conversation.continued_text)
    return await prompt_images.add_images(prompt, images, caller)


def _make_requests(job: Job, pipeline: Pipeline, prompts: Sequence[Prompt]) -> list[EngineRequest]:
    """Return one engine request per choice. Raises InvalidRequest."""
    max_model_len, n = pipeline.info.max_model_len, job.question.n
    requests = []
    for index, prompt in enumerate(prompts):
        constraint = pipeline.parsers.constrain(job.question, prompt)
        requests += [
            job.engine_request(prompt, index * n + choice, max_model_len, constraint)
            for choice in range(n)
        ]
    return requests


def _make_reader(job: Job, pipeline: Pipeline, prompt: Prompt) -> _ChoiceReader:
    parser = pipeline.parsers.make(job.question, prompt.starts_in)
    tracer = StepTracer(pipeline.info.accounts_at_end) if job.display.return_steps else None
    return _ChoiceReader(job.question, job.display, parser, Account(), prompt, tracer)


class _AnswerEnded(Exception):
    """The answer ended before the engine did, at a stop string or after an echo."""


class _TimedSink:
    """Measures the time spent in the response, including waits for slow clients."""

    __slots__ = ("_drains", "_output", "_times", "is_open")

    def __init__(self, output: EventSink, times: RequestTimes) -> None:
        self._output, self._times = output, times
        self._drains = 0
        self.is_open = output.is_open

    def push(self, choice: int, events: list[Event]) -> None:
        start = perf_counter()
        self._output.push(choice, events)
        self._times.writing += perf_counter() - start

    async def drain(self) -> None:
        """Drain the response. If several choices wait at the same time, the time counts once."""
        self._drains += 1
        start = perf_counter() if self._drains == 1 else None
        try:
            await self._output.drain()
        finally:
            self._drains -= 1
            if start is not None:
                self._times.writing += perf_counter() - start


class _Choice:
    """One choice of an answer, and the sink of its engine request's steps."""

    __slots__ = ("_index", "_observe", "_output", "_reader", "_times", "_turn", "drain", "is_open")
    _turn: PromptTurn

    def __init__(
        self,
        index: int,
        reader: _ChoiceReader,
        observe: EventCallback,
        output: EventSink,
        times: RequestTimes,
    ) -> None:
        self._index, self._reader, self._observe, self._output = index, reader, observe, output
        self._times = times
        self.is_open, self.drain = output.is_open, output.drain

    async def run(
        self,
        pipeline: Pipeline,
        requester: Requester,
        request: EngineRequest,
        charge: RequestCharge,
    ) -> None:
        """Have the engine generate the choice. Raises GatewayError or EngineError."""
        try:
            has_logprobs = request.sampling.prompt_logprobs is not None
            turns = pipeline.scored_prompts if has_logprobs else pipeline.prompts
            pixels = [image.width * image.height for image in request.images]
            price = request.num_prompt + sum(pixels) // PIXELS_PER_TOKEN
            self._turn = turns.turn(requester, price)
            async with self._turn:
                if pixels:
                    charge.check_pixels(max(pixels))
                await pipeline.engine.generate(request, self)
        except _AnswerEnded:
            await self.drain()
        except (RequestRejected, EngineFailed) as error:
            raise explain(error, request, self._reader.question.grammar_param) from error
        if not self._reader.ended:
            raise GatewayError(
                "The engine ended the request without a reason.", code="engine_silent"
            )

    def push(self, step: Step) -> None:
        """Turn a step into events, report them to the observer, and pass them on."""
        start = perf_counter()
        if not self._reader.begun:
            self._turn.end()
        batch = self._reader.read(step)
        for event in batch:
            self._observe(event)
        self._times.reading += perf_counter() - start
        if batch:
            self._output.push(self._index, batch)
        if self._reader.ended and step.finish is None:
            raise _AnswerEnded


@dataclass(slots=True)
class _ChoiceReader:
    """State of one choice: turns its steps into events."""

    question: Question
    display: Display
    parser: Parser
    account: Account
    prompt: Prompt
    tracer: StepTracer | None = None
    created: float = field(default_factory=perf_counter)
    first: float = 0.0
    """``perf_counter()`` at the first step."""
    cached: int = 0
    recomputed: int = 0
    begun: bool = False
    ended: bool = False
    is_plain: bool = field(init=False)
    """True if a step in the middle produces only parser events and cannot end the answer."""

    def __post_init__(self) -> None:
        display, question = self.display, self.question
        ids = display.return_token_ids or display.return_steps
        extra = ids or display.continuous_usage or question.sampling.logprobs is not None
        self.is_plain = not (question.stop or display.echo_only or extra)

    def read(self, step: Step) -> list[Event]:
        """Return the events of one step; the last step includes Finish."""
        self.account.add(step)
        self.cached = step.cached_tokens or self.cached
        self.recomputed = step.recomputed_tokens or self.recomputed
        if self.begun and self.is_plain and step.finish is None:
            return [*self.parser.feed(step.token_ids)]
        batch = self._read_more(step)
        if batch and self.display.continuous_usage:
            batch.insert(0, UsageDelta(self._usage(self.account.totals)))
        return batch

    def _read_more(self, step: Step) -> list[Event]:
        """Return the events of the first step, the last step, and steps that carry more than
        text.
        """
        batch: list[Event] = [] if self.begun else self._echo_prompt(step)
        if self.display.echo_only:
            return [*batch, self._end_echo(step)]
        if self.question.stop:
            events, num_kept = self._parse_to_stop(step.token_ids)
        else:
            events, num_kept = self.parser.feed(step.token_ids), len(step.token_ids)
        self.ended = self.parser.stopped is not None or step.finish is not None
        if self.tracer is not None and (
            delta := self.tracer.trace(step, num_kept, ended=self.ended)
        ):
            batch.append(delta)
        if self.display.return_token_ids and num_kept:
            batch.append(TokensDelta(step.token_ids[:num_kept]))
        if step.logprobs and num_kept:
            batch.append(LogprobsDelta(step.logprobs[:num_kept]))
        batch.extend(events)
        if self.ended:
            batch.extend(self.parser.flush(step.finish or FinishReason.STOP))
            batch.append(self._finish(step))
        return batch

    def _end_echo(self, step: Step) -> Finish:
        self.account.trim(0)
        self.ended = True
        return self._finish(replace(step, finish=FinishReason.LENGTH))

    def _echo_prompt(self, step: Step) -> list[Event]:
        self.begun = True
        self.first = perf_counter()
        if not self.display.wants_prompt:
            return []
        prompt = self.prompt
        return [PromptEcho(prompt.token_ids, step.prompt_logprobs, self.cached, prompt.num_tokens)]

    def _parse_to_stop(self, token_ids: Sequence[int]) -> tuple[list[ParserEvent], int]:
        """Parse token by token, because a stop string may end the answer within a step.

        Tokens after the stop string are never delivered and must not be counted. A stop string that
        ends within the first ``min_tokens`` is text, as in vLLM.
        """
        events: list[ParserEvent] = []
        num_before = self.account.tokens - len(token_ids)
        for position, token_id in enumerate(token_ids, 1):
            self.parser.switch_stops(num_before + position > self.question.sampling.min_tokens)
            events.extend(self.parser.feed((token_id,)))
            if self.parser.stopped is not None:
                self.account.trim(self.account.tokens - (len(token_ids) - position))
                return events, position
        return events, len(token_ids)

    def _finish(self, step: Step) -> Finish:
        stop = self.parser.stopped
        return Finish(
            reason=self.parser.finish_reason(
                FinishReason.STOP if stop is not None else step.finish or FinishReason.STOP
            ),
            stop=stop if stop is not None else step.stop_token,
            usage=self._usage(totals := self.account.totals),
            decode=self.account.decode_steps,
            totals=totals,
            pace=Pace(self.first - self.created, perf_counter() - self.first),
        )

    def _usage(self, totals: Totals) -> Usage:
        has_steps = totals.decode_steps > 0
        return Usage(
            prompt=self.prompt.num_tokens,
            completion=totals.tokens,
            cached=self.cached,
            reasoning=self.parser.reasoning_tokens,
            accepted=totals.accepted if has_steps else None,
            rejected=totals.proposed - totals.accepted if has_steps else None,
            recomputed=self.recomputed,
        )


async def _run_all(choices: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run several choices concurrently. The first error ends all of them."""
    if len(choices) == 1:
        await choices[0]
        return
    tasks = [asyncio.create_task(choice) for choice in choices]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
