"""The queue of one request's steps inside vLLM's AsyncLLM, on their way into its sink."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

from vllm.outputs import RequestOutput

from eaglegate.engine.errors import EngineDead, EngineError
from eaglegate.engine.types import Step, StepSink
from eaglegate.engine.vllm_backend.translate import ABORTED, convert_error


class SinkFlusher:
    """Has queues push what they hold: at once, or together with what comes within ``interval_s``.

    With None a queue's steps are joined only while the event loop lags: it pushes when the loop has
    read every message of the engine that had come.
    """

    def __init__(self, interval_s: float | None = None) -> None:
        self._interval_s = interval_s
        self._queues: list[StepQueue] = []

    def add(self, queue: StepQueue) -> None:
        """``queue`` holds its first step. Steps that cannot be pushed do not wait."""
        if self._interval_s == 0.0 or (self._interval_s and queue.is_blocked()):
            queue.flush()
            return
        if not self._queues:
            loop = asyncio.get_running_loop()
            if self._interval_s is None:
                loop.call_soon(self._flush)
            else:
                loop.call_later(self._interval_s, self._flush)
        self._queues.append(queue)

    def _flush(self) -> None:
        queues, self._queues = self._queues, []
        for queue in queues:
            queue.flush()


class StepQueue:
    """The steps that have come for one request, on their way into its sink.

    While the sink is open, steps are pushed as they come, and ``deliver`` sleeps on: only the end,
    errors and a client that does not keep up wake it. With an ``interval`` above 1 steps are pushed
    for that many tokens at a time, after the first step and before the last (vLLM's
    ``--stream-interval``).
    """

    __slots__ = (
        "_error",
        "_flusher",
        "_held",
        "_interval",
        "_left",
        "_sink",
        "_steps",
        "_waiting",
        "ended",
        "request_id",
        "traced",
    )

    def __init__(self, request_id: str, interval: int, flusher: SinkFlusher) -> None:
        self.request_id = request_id
        self.ended = False
        """The engine has done with the request, whether or not its client knows."""
        self._sink: StepSink | None = None
        self.traced = False
        self._flusher = flusher
        self._interval = interval
        self._left = 1
        self._held: list[Step] = []
        """Steps held back until the flusher asks for them."""
        self._steps: list[Step] = []
        """Steps that ``deliver`` has to push."""
        self._error: EngineError | None = None
        self._waiting: asyncio.Future[None] | None = None

    async def deliver(self, sink: StepSink) -> None:
        """Push steps into ``sink`` to the last. Raises the error that was put."""
        self._sink = sink
        while True:
            if not sink.is_open():
                await sink.drain()
            if steps := self._steps:
                self._steps = []
                sink.push(steps[0] if len(steps) == 1 else join_steps(steps))
                continue
            if self._error is not None:
                raise self._error
            if self.ended:
                return
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None

    def push(self, step: Step) -> None:
        """Called with each step of the engine."""
        self._held.append(step)
        self.ended = step.finish is not None
        self._left -= len(step.token_ids)
        if self.ended or (self._interval > 1 and self._left <= 0):
            self._left = self._interval
            self.flush()
        elif self._interval == 1 and len(self._held) == 1:
            self._flusher.add(self)

    def flush(self) -> None:
        """Push what is held, as one step; what the sink raises ends ``deliver``."""
        if not self._held:
            return
        sink, waiting = self._sink, self._waiting
        if sink is None or waiting is None or waiting.done() or self.is_blocked():
            self._return_held()
            self._wake()
            return
        held, self._held = self._held, []
        try:
            sink.push(held[0] if len(held) == 1 else join_steps(held))
        except Exception as error:
            waiting.set_exception(error)
            return
        if self.ended or not sink.is_open():
            self._wake()

    def fail(self, error: EngineError) -> None:
        """``deliver`` raises this after the steps that are there."""
        self._return_held()
        self._error = error
        self.ended = True
        self._wake()

    def put(self, output: RequestOutput | Exception) -> None:
        """Called by vLLM with the end of an aborted request, or with an error."""
        if isinstance(output, Exception):
            error = convert_error(output)
            error.__cause__ = output
            self.fail(error)
        else:
            self.fail(EngineDead(ABORTED))

    def take(self) -> list[Step]:
        """Undelivered steps; the queue is empty afterwards."""
        self._return_held()
        steps, self._steps = self._steps, []
        return steps

    def is_blocked(self) -> bool:
        """The sink takes nothing now, or has steps to come before."""
        return self._sink is None or bool(self._steps) or not self._sink.is_open()

    def _return_held(self) -> None:
        self._steps.extend(self._held)
        self._held.clear()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def join_steps(steps: Sequence[Step]) -> Step:
    """Steps in a row, as one."""
    first, last = steps[0], steps[-1]
    return Step(
        tuple(chain.from_iterable(step.token_ids for step in steps)),
        decode=tuple(chain.from_iterable(step.decode for step in steps)),
        logprobs=tuple(chain.from_iterable(step.logprobs for step in steps)),
        prompt_logprobs=first.prompt_logprobs,
        cached_tokens=first.cached_tokens,
        recomputed_tokens=first.recomputed_tokens,
        finish=last.finish,
        stop_token=last.stop_token,
        queued_s=first.queued_s,
        preemptions=last.preemptions,
        traces=tuple(chain.from_iterable(step.traces for step in steps)),
    )
