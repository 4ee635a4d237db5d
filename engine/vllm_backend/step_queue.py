"""Queue of one request's steps inside vLLM's AsyncLLM, between the engine and the request's
sink."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

from vllm.outputs import RequestOutput

from eaglegate.engine.errors import EngineDead, EngineError
from eaglegate.engine.types import Step, StepSink
from eaglegate.engine.vllm_backend.translate import ABORTED, convert_error


class SinkFlusher:
    """Flushes queues, at once or together with the steps that arrive within ``interval_s``.

    With None, steps of a queue are joined only while the event loop lags: the queue is flushed once
    the loop has read every message that the engine has sent.
    """

    def __init__(self, interval_s: float | None = None) -> None:
        self._interval_s = interval_s
        self._queues: list[StepQueue] = []

    def add(self, queue: StepQueue) -> None:
        """Schedule a flush of ``queue``, which holds its first step. Steps that cannot be pushed do
        not wait."""
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
    """Steps received for one request, on their way into its sink.

    While the sink is open, steps are pushed as they arrive, and ``deliver`` sleeps. Only the end,
    errors and a client that does not keep up wake it. With an ``interval`` above 1, steps are
    pushed once they have that many tokens, except for the first and the last step (vLLM's
    ``--stream-interval``).
    """

    __slots__ = (
        "_error", "_flusher", "_held_steps", "_interval", "_sink", "_steps", "_tokens_left",
        "_waiter", "ended", "request_id", "traced",
    )  # fmt: skip

    def __init__(self, request_id: str, interval: int, flusher: SinkFlusher) -> None:
        self.request_id = request_id
        self.ended = False
        """True if the engine has finished the request, even if its client does not know yet."""
        self._sink: StepSink | None = None
        self.traced = False
        self._flusher = flusher
        self._interval = interval
        self._tokens_left = 1
        self._held_steps: list[Step] = []
        """Steps held until the flusher flushes the queue."""
        self._steps: list[Step] = []
        """Steps that ``deliver`` has to push."""
        self._error: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def deliver(self, sink: StepSink) -> None:
        """Push every step into ``sink``. Raises the error that was put."""
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
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def push(self, step: Step) -> None:
        """Add a step of the engine."""
        self._held_steps.append(step)
        self.ended = step.finish is not None
        self._tokens_left -= len(step.token_ids)
        if self.ended or (self._interval > 1 and self._tokens_left <= 0):
            self._tokens_left = self._interval
            self.flush()
        elif self._interval == 1 and len(self._held_steps) == 1:
            self._flusher.add(self)

    def flush(self) -> None:
        """Push the held steps as one. An exception of the sink ends ``deliver``."""
        if not self._held_steps:
            return
        sink, waiter = self._sink, self._waiter
        if sink is None or waiter is None or waiter.done() or self.is_blocked():
            self._return_held()
            self._wake()
            return
        steps, self._held_steps = self._held_steps, []
        try:
            sink.push(steps[0] if len(steps) == 1 else join_steps(steps))
        except Exception as error:
            waiter.set_exception(error)
            return
        if self.ended or not sink.is_open():
            self._wake()

    def fail(self, error: EngineError) -> None:
        """Make ``deliver`` raise ``error`` after the steps received so far."""
        self._return_held()
        self._error = error
        self.ended = True
        self._wake()

    def put(self, output: RequestOutput | Exception) -> None:
        """Handle the end of an aborted request, or an error. Called by vLLM."""
        if isinstance(output, Exception):
            error = convert_error(output)
            error.__cause__ = output
            self.fail(error)
        else:
            self.fail(EngineDead(ABORTED))

    def take(self) -> list[Step]:
        """Remove and return the undelivered steps."""
        self._return_held()
        steps, self._steps = self._steps, []
        return steps

    def is_blocked(self) -> bool:
        """Return True if the sink is not open, or earlier steps are still to be pushed."""
        return self._sink is None or bool(self._steps) or not self._sink.is_open()

    def _return_held(self) -> None:
        self._steps.extend(self._held_steps)
        self._held_steps.clear()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def join_steps(steps: Sequence[Step]) -> Step:
    """Join consecutive steps into one."""
    first_step, last_step = steps[0], steps[-1]
    return Step(
        tuple(chain.from_iterable(step.token_ids for step in steps)),
        decode=tuple(chain.from_iterable(step.decode for step in steps)),
        logprobs=tuple(chain.from_iterable(step.logprobs for step in steps)),
        prompt_logprobs=first_step.prompt_logprobs,
        cached_tokens=first_step.cached_tokens,
        recomputed_tokens=first_step.recomputed_tokens,
        finish=last_step.finish,
        stop_token=last_step.stop_token,
        queued_s=first_step.queued_s,
        preemptions=last_step.preemptions,
        traces=tuple(chain.from_iterable(step.traces for step in steps)),
    )
