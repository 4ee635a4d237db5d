"""Background responses, which run without a client connection and log their events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from eaglegate.engine.errors import EngineError
from eaglegate.engine.events import Event, EventSink
from eaglegate.server.apis.responses.response import ResponseStream
from eaglegate.server.apis.responses.response_items import ReasoningStyle, ResponseEvent
from eaglegate.server.apis.shared.response import EncodingContext
from eaglegate.server.errors import GatewayError, InvalidRequest, StoreFailed
from eaglegate.server.generation.job import Job
from eaglegate.server.http.response import named_frame, to_gateway_error
from eaglegate.server.store.sql import SqlResponseStore

logger = logging.getLogger(__name__)

KEPT_RUNS = 256
KEPT_BYTES = 64 << 20
"""Limits for finished runs whose events can still be streamed: their number, and the bytes of all
their events. The responses themselves are in the store.
"""
HOLD_S = 60.0
"""Seconds after its last renewal for which a response counts as running."""


class AcceptedWork(Protocol):
    """Generates a response, and awaits ``accept`` once it has a place and has paid for it."""

    def __call__(
        self, output: EventSink, *, accept: Callable[[], Awaitable[None]]
    ) -> Coroutine[Any, Any, None]: ...


Save = Callable[[], Awaitable[None]]
"""Writes the response's current state to the store."""

VARYING = frozenset(
    ("status", "output", "usage", "completed_at", "error", "incomplete_details", "store", "metrics")
)
"""Members of a response that change while it runs."""
OPENING = frozenset(("response.created", "response.queued", "response.in_progress"))


MOST_BYTES = 16 << 20
"""Maximum bytes of one response's log. Beyond it, the older half of the frames is dropped."""


@dataclass(frozen=True, slots=True)
class ResponseSnapshot:
    """A frame that contains the whole response. It is rendered when read, from the only copy."""

    number: int
    type: str
    changed: dict[str, Any] | None = None
    """Members that had other values at that time; None for the current response."""


class FrameLog:
    """Log of a response's frames by sequence number, for followers that join late."""

    def __init__(self) -> None:
        self._frames: list[bytes | ResponseSnapshot] = []
        self.end = 0
        """Number of the next frame."""
        self.num_bytes = 0

    @property
    def begin(self) -> int:
        """Number of the oldest frame in the log."""
        return self.end - len(self._frames)

    def append(self, frame: bytes | ResponseSnapshot) -> None:
        self._frames.append(frame)
        self.end += 1
        self.num_bytes += _count_bytes(frame)
        if self.num_bytes > MOST_BYTES:
            num_dropped = (len(self._frames) + 1) // 2  # a frame at a time would move all others
            self.num_bytes -= sum(map(_count_bytes, self._frames[:num_dropped]))
            del self._frames[:num_dropped]

    def read(self, number: int) -> bytes | ResponseSnapshot:
        """Return a frame. Raises IndexError if it does not exist or was dropped."""
        if not self.begin <= number < self.end:
            raise IndexError(number)
        return self._frames[number - self.begin]


def _count_bytes(frame: bytes | ResponseSnapshot) -> int:
    return 0 if isinstance(frame, ResponseSnapshot) else len(frame)


class LoggedStream(ResponseStream):
    """Writes frames to a log. Frames with the whole response are rendered when read."""

    def __init__(self, job: Job, context: EncodingContext, thinking: ReasoningStyle) -> None:
        super().__init__(job, context, thinking)
        self.log = FrameLog()

    def _frame(self, event: ResponseEvent) -> bytes:
        if "response" not in event:
            self.log.append(super()._frame(event))
            return b""
        values = {key: value for key, value in event["response"].items() if key in VARYING}
        snapshot = values if event["type"] in OPENING else None
        self.log.append(ResponseSnapshot(self._number, event["type"], snapshot))
        self._number += 1
        return b""


class _LogSink:
    """An ``EventSink`` that logs events and shows them to followers."""

    def __init__(self, stream: LoggedStream, show: Callable[[], Awaitable[None]]) -> None:
        self._stream, self._show = stream, show
        self._is_shown = True

    def is_open(self) -> bool:
        return self._is_shown

    def push(self, choice: int, events: list[Event]) -> None:
        self._stream.frames(choice, events)
        self._is_shown = False

    async def drain(self) -> None:
        self._is_shown = True
        await self._show()


class BackgroundRun:
    """A background response and its run. Followers of its log wait on ``_grown``."""

    def __init__(self, id: str, owner: str, stream: LoggedStream, save: Save) -> None:
        self.id = id
        self.owner = owner
        self.log = stream.log
        self.task: asyncio.Task[None] | None = None
        self._work: asyncio.Task[None] | None = None
        self._stream: LoggedStream | None = stream
        self._save: Save | None = save
        self._unstored: bytes | None = None
        """The response, if it could not be stored."""
        self._grown = asyncio.Condition()
        self._visible = 0
        self._num_followers = 0
        self._is_cancelled = False

    @property
    def ended(self) -> bool:
        return self.task is not None and self.task.done()

    @property
    def response(self) -> dict[str, Any] | None:
        """Current state of the response; None once it is stored."""
        if self._stream is not None:
            return self._stream.builder.response()
        return None if self._unstored is None else orjson.loads(self._unstored)

    async def start(self, work: AcceptedWork, begin: Save) -> None:
        """Start the work, and store the response with ``begin`` once the work is accepted.

        Raises GatewayError if it is not, or if the response cannot be stored.
        """
        assert self._stream is not None
        self._stream.open()
        self._visible = self.log.end
        acceptance = asyncio.get_running_loop().create_future()

        async def accept() -> None:
            await begin()
            acceptance.set_result(None)

        generation = work(_LogSink(self._stream, self._show), accept=accept)
        self._work = asyncio.ensure_future(generation)
        try:
            await asyncio.wait({self._work, acceptance}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._work.cancel()
            raise
        if not acceptance.done():
            self._work.result()
        self.task = asyncio.create_task(self._run(self._work, self._stream))

    async def cancel(self) -> None:
        """Cancel the run unless it has ended, and wait until its final state is stored."""
        if self.task is None:
            return
        # Cancel only once: a second cancellation would interrupt the cleanup of the first.
        if self._work is not None and not self._is_cancelled:
            self._is_cancelled = True
            self._work.cancel()
        await asyncio.wait({self.task})

    def check(self, number: int) -> None:
        """Raise InvalidRequest if events after ``number`` are no longer in the log."""
        if number + 1 < self.log.begin:
            raise InvalidRequest(
                f"The events of '{self.id}' before number {self.log.begin} are no longer "
                "available; this response has too many events.",
                param="starting_after",
            )

    async def follow(
        self, number: int, load_stored: Callable[[], Awaitable[dict[str, Any] | None]]
    ) -> AsyncGenerator[bytes, None]:
        """Yield frames with sequence numbers above ``number``, as they arrive.

        ``load_stored`` reads the response from the store.
        """
        self._num_followers += 1
        try:
            position = number + 1
            while await self._wait_for_frame(position):
                frame = self.log.read(position)
                if isinstance(frame, ResponseSnapshot):
                    response = self.response or await load_stored()
                    if response is None:
                        return
                    frame = _render_snapshot(frame, response)
                yield frame
                position += 1
        finally:
            self._num_followers -= 1
            self._release()

    async def _wait_for_frame(self, number: int) -> bool:
        """Wait for frame ``number``. Return False if it will never exist."""
        async with self._grown:
            await self._grown.wait_for(lambda: self._visible > number or self._save is None)
        return self._visible > number

    async def _run(self, work: asyncio.Task[None], stream: LoggedStream) -> None:
        """Wait until the work ends in any way, and store the result."""
        await asyncio.wait({work})
        if (error := _find_error(work)) is not None:
            stream.fail_frames(error)
        elif work.cancelled():
            stream.builder.cancel()
        assert self._save is not None
        try:
            await self._save()
        except Exception:
            logger.exception("cannot store the background response")
            stream.builder.stored = False
        if error is None:
            stream.close()
        if not stream.builder.stored:
            self._unstored = orjson.dumps(stream.builder.response())
        self._save = self._work = None
        await self._show()
        self._release()

    async def _show(self) -> None:
        async with self._grown:
            self._visible = self.log.end
            self._grown.notify_all()

    def _release(self) -> None:
        """Free the request and its answer once they are stored and have no followers."""
        if self._save is None and not self._num_followers:
            self._stream = None


def _find_error(work: asyncio.Task[None]) -> GatewayError | None:
    error = None if work.cancelled() else work.exception()
    if error is None:
        return None
    if isinstance(error, (GatewayError, EngineError)):
        return to_gateway_error(error)
    logger.error("background response failed", exc_info=error)
    return GatewayError("The gateway failed; the answer is incomplete.")


def _render_snapshot(frame: ResponseSnapshot, response: dict[str, Any]) -> bytes:
    if (values := frame.changed) is not None:
        response = {
            key: values[key] if key in VARYING else value
            for key, value in response.items()
            if key not in VARYING or key in values
        }
    event = {"type": frame.type, "response": response, "sequence_number": frame.number}
    return named_frame(frame.type, event)


class BackgroundRuns:
    """The background responses of this process, by id."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, BackgroundRun] = OrderedDict()

    def add(self, run: BackgroundRun) -> None:
        self._runs[run.id] = run
        finished_runs = [run for run in self._runs.values() if run.ended]
        size = sum(run.log.num_bytes for run in finished_runs)
        for finished_run in finished_runs:
            if len(self._runs) <= KEPT_RUNS and size <= KEPT_BYTES:
                break
            size -= finished_run.log.num_bytes
            del self._runs[finished_run.id]

    def get(self, id: str, owner: str) -> BackgroundRun | None:
        run = self._runs.get(id)
        return run if run is not None and run.owner == owner else None

    def forget(self, id: str) -> None:
        self._runs.pop(id, None)

    async def hold(self, store: SqlResponseStore) -> None:
        """Renew the running responses, and cancel those that another gateway settled or deleted."""
        runs = {run.id: run for run in self._runs.values() if not run.ended}
        if not runs:
            return
        try:
            held_ids = await store.hold(list(runs), time.time() + HOLD_S)
        except StoreFailed:
            return
        for id in runs.keys() - held_ids:
            await runs[id].cancel()

    async def finish(self, timeout_s: float) -> None:
        """Wait until all runs have ended and are stored, for at most ``timeout_s``."""
        tasks = {run.task for run in self._runs.values() if run.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
