"""Queue of one request's steps: between the engine's output handler and the request's reader."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

from vllm.outputs import RequestOutput

from engine.errors import EngineError
from engine.types import FinishReason, Step, StepSink
from engine.vllm_backend import translate


class SinkFlusher:
    """Has queues push what they hold: at once, or together with what comes within ``interval_s``.

    With None a queue's steps are joined only while the event loop lags: it pushes when the loop has
    read every message of the engine that had come.
    """

    def __init__(self, interval_s: float | None = None) -> None:
        self._interval_s = interval_s
        self._queues: list[StepQueue] = []

    def add(self, queue: StepQueue) -> None:
        """``queue`` holds its first step."""
        if self._interval_s == 0.0:
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
    """The steps that have come for one request, until its one reader takes them.

    While the reader waits and its ``sink`` is open, steps go there and the reader sleeps on: only
    the last step and errors wake it. With an ``interval`` above 1 the reader is woken for that many
    tokens at a time, after the first step and before the last (vLLM's ``--stream-interval``).
    """

    __slots__ = (
        "_error",
        "_flusher",
        "_held",
        "_interval",
        "_left",
        "_steps",
        "_waiting",
        "ended",
        "request_id",
        "sink",
    )

    def __init__(self, request_id: str, interval: int, flusher: SinkFlusher) -> None:
        self.request_id = request_id
        self.ended = False
        """The engine has done with the request, whether or not the reader knows."""
        self.sink: StepSink | None = None
        self._flusher = flusher
        self._interval = interval
        self._left = 1
        self._held: list[Step] = []
        """For the sink, until the flusher says so."""
        self._steps: list[Step] = []
        self._error: EngineError | None = None
        self._waiting: asyncio.Future[None] | None = None

    def push(self, step: Step) -> None:
        if step.finish is None and self._is_pushing():
            self._held.append(step)
            if len(self._held) == 1:
                self._flusher.add(self)
            return
        self._return_held()
        self._steps.append(step)
        self.ended = step.finish is not None
        self._left -= len(step.token_ids)
        if self._left <= 0 or self.ended:
            self._left = self._interval
            self._wake()

    def flush(self) -> None:
        """Push what is held, as one step; what the sink raises wakes the reader."""
        if not self._held:
            return
        sink, waiting = self.sink, self._waiting
        if sink is None or waiting is None or not self._is_pushing():
            self._return_held()
            self._wake()
            return
        held, self._held = self._held, []
        try:
            sink.push(held[0] if len(held) == 1 else join_steps(held))
        except Exception as error:
            waiting.set_exception(error)

    def fail(self, error: EngineError) -> None:
        """The reader gets this after the steps that are there."""
        self._return_held()
        self._error = error
        self.ended = True
        self._wake()

    def put(self, output: RequestOutput | Exception) -> None:
        """Called by vLLM with the end of an aborted request, or with an error."""
        if isinstance(output, Exception):
            error = translate.convert_error(output)
            error.__cause__ = output
            self.fail(error)
        else:
            self.push(Step((), finish=FinishReason.ABORT))

    async def get(self) -> Step:
        """What has come since the last call, as one step. Raises what was put."""
        while not self._steps:
            if self._error is not None:
                raise self._error
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        steps, self._steps = self._steps, []
        return steps[0] if len(steps) == 1 else join_steps(steps)

    def take(self) -> list[Step]:
        """Undelivered steps; the queue is empty afterwards."""
        self._return_held()
        steps, self._steps = self._steps, []
        return steps

    def _is_pushing(self) -> bool:
        """The reader waits with nothing to read, and its sink is open."""
        return (
            self.sink is not None
            and self._interval == 1
            and not self._steps
            and self._waiting is not None
            and not self._waiting.done()
            and self.sink.is_open()
        )

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
        finish=last.finish,
        stop_token=last.stop_token,
    )
