"""Streams with a fixed pace and block size, which hide the sizes and times of their frames.

A step whose drafts were accepted delivers more tokens in the same time. The sizes and gaps of a
stream's frames therefore reveal the accepted drafts to anyone who sees the encrypted traffic
(arXiv 2411.01076). With ``--stream-cadence`` a stream sends ``BLOCK`` bytes at every tick,
regardless of the number of tokens since the last tick:

    first tick      the status line and the opening frames, in 1, 2, 4, ... blocks
    further ticks   one block each: new events, joined into one frame, and a comment as filling
    last frames     finish, usage and waiting frames, in larger blocks if too few ticks are left
    to the end      filled blocks, for as long as the answer would have taken without drafts and
                    until the number of ticks is one of ``round_ticks``

Comments are part of server-sent events, and clients skip them. Frames that do not fit into a block
wait for the next tick. ``[DONE]`` is held back to the last block, because clients disconnect when
they read it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from eaglegate.engine.events import (
    Event,
    Finish,
    LogprobsDelta,
    PromptEcho,
    StepsDelta,
    TokensDelta,
    Usage,
    UsageDelta,
)
from eaglegate.server.http.padding import make_filling
from eaglegate.text.events import ContentDelta, ReasoningDelta, ToolCallDelta

if TYPE_CHECKING:
    from eaglegate.server.http.response import EventStream

BLOCK = 1024
MOST_BYTES = 64 << 10
"""Bytes of waiting frames above which the engine is held back."""
MOST_STEPS = 256
"""Steps waiting to become frames above which the engine is held back."""
DONE = b"data: [DONE]\n\n"
LISTS: dict[type[Any], str] = {
    StepsDelta: "steps", TokensDelta: "token_ids", LogprobsDelta: "positions",
}  # fmt: skip
"""Events that list what a step brought, in the order of a step's events, and their fields."""


@dataclass(frozen=True, slots=True)
class Cadence:
    """A fixed pace (``eaglegate.server.http.response.Pacing``): one block every ``ms``
    milliseconds.
    """

    ms: float

    def open_output(
        self,
        stream: EventStream,
        encode: Callable[[int, list[Event]], bytes],
        hurry: asyncio.Event,
    ) -> PacedSink:
        return PacedSink(stream, encode, self.ms / 1000, hurry)

    def open_stream(self, stream: EventStream, hurry: asyncio.Event) -> PacedStream:
        return PacedStream(stream, self.ms / 1000, hurry=hurry)


class PacedStream:
    """Sends frames in filled blocks, one per tick.

    ``make_frames`` is called at each tick and returns the frames of new events.
    """

    def __init__(
        self,
        stream: EventStream,
        interval_s: float,
        make_frames: Callable[[], bytes] = bytes,
        hurry: asyncio.Event | None = None,
    ) -> None:
        """Create the stream. Once ``hurry`` is set, a complete stream ends at its next tick."""
        self._stream, self._interval_s, self._make_frames = stream, interval_s, make_frames
        self._hurry = hurry or asyncio.Event()
        self._waiting = bytearray()
        self._held = b""
        """The end of the stream, which is held for the last block."""
        self._is_complete = False
        """True once all frames were given."""
        self._num_ticks = self._least_ticks = 0
        self._last_tick: int | None = None
        """The tick at which the stream ends; None until the last frame was given."""
        self._ticked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start sending, unless it has started."""
        if self._task is None:
            self._task = asyncio.create_task(self._send_blocks())
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    def push(self, frames: bytes) -> None:
        self._waiting += frames
        self.start()

    async def put(self, frames: bytes) -> None:
        """Push frames, and wait while too many bytes wait. Raises ReaderTooSlow."""
        self.push(frames)
        while not self.is_open():
            await self.wait_for_tick()

    def is_open(self) -> bool:
        has_ended = self._task is not None and self._task.done()
        return len(self._waiting) < MOST_BYTES and not has_ended

    async def wait_for_tick(self) -> None:
        """Wait until the next block was sent. Raises the error that ended the stream early."""
        self._raise_failure()
        tick = self._ticked
        await tick.wait()
        self._raise_failure()

    def stretch(self, factor: float) -> None:
        """Make the stream take at least ``factor`` times as long as it has taken so far."""
        self._least_ticks = max(self._least_ticks, math.ceil(factor * self._num_ticks))

    async def close(self, end: bytes) -> None:
        """Send the last frames, fill the stream up to its last tick, and end it."""
        self._held = DONE if end.endswith(DONE) else b""
        self._waiting += end.removesuffix(self._held)
        self._is_complete = True
        self.start()
        assert self._task is not None
        await self._task
        await self._stream.close(b"")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _raise_failure(self) -> None:
        if self._task is not None and self._task.done() and not self._task.cancelled():
            error = self._task.exception()
            if error is not None:
                raise error

    async def _send_blocks(self) -> None:
        clock = asyncio.get_running_loop().time
        try:
            await self._stream.open()
            deadline = clock()
            while True:
                await self._stream.write(self._next_block())
                self._wake()
                if self._num_ticks == self._last_tick:
                    return
                late_s = max(
                    0.0, clock() - deadline
                )  # timers may fire early; missed ticks are left out
                deadline += self._interval_s * (1 + late_s // self._interval_s)
                await asyncio.sleep(deadline - clock())
        finally:
            asyncio.get_running_loop().call_soon(self._wake)  # once the task is done

    def _next_block(self) -> bytes:
        self._waiting += self._make_frames()
        self._num_ticks += 1
        if self._is_complete:
            if self._last_tick is None:
                self._last_tick = round_ticks(max(self._num_ticks, self._least_ticks))
            if self._hurry.is_set():
                self._last_tick = self._num_ticks
            if self._num_ticks == self._last_tick:
                self._waiting += self._held
        size, num_blocks = BLOCK, math.inf
        if self._num_ticks == 1:
            num_blocks = 1
        elif self._last_tick is not None:
            num_blocks = self._last_tick - self._num_ticks + 1
        while size * num_blocks < len(self._waiting):
            size *= 2
        payload = bytes(self._waiting[:size])
        del self._waiting[:size]
        return fill(payload, size)

    def _wake(self) -> None:
        self._ticked.set()
        self._ticked = asyncio.Event()


class JoinedEvents:
    """The events of each choice since the last tick, joined as if they came from one step."""

    def __init__(self, encode: Callable[[int, list[Event]], bytes]) -> None:
        self._encode = encode
        self._events: dict[int, list[Event]] = {}
        self._num_steps = 0

    def add(self, choice: int, events: list[Event]) -> None:
        self._num_steps += 1
        self._events.setdefault(choice, []).extend(events)

    def is_full(self) -> bool:
        return self._num_steps >= MOST_STEPS

    def take(self) -> bytes:
        """Return the frames of the events so far, and forget the events."""
        events, self._events, self._num_steps = self._events, {}, 0
        return b"".join([self._encode(choice, join(rows)) for choice, rows in events.items()])


class PacedSink:
    """An ``EventSink`` that joins events and writes their frames at a fixed pace."""

    def __init__(
        self,
        stream: EventStream,
        encode: Callable[[int, list[Event]], bytes],
        interval_s: float,
        hurry: asyncio.Event | None = None,
    ) -> None:
        self._joined = JoinedEvents(encode)
        self._paced = PacedStream(stream, interval_s, self._joined.take, hurry)
        self.close, self.stop = self._paced.close, self._paced.stop

    def push(self, choice: int, events: list[Event]) -> None:
        self._joined.add(choice, events)
        self._paced.start()
        if isinstance(finish := events[-1], Finish):
            self._paced.stretch(compare_steps(finish.usage))

    def is_open(self) -> bool:
        return self._paced.is_open() and not self._joined.is_full()

    async def drain(self) -> None:
        while not self.is_open():
            await self._paced.wait_for_tick()

    def flush(self) -> None:
        """Encode the waiting events, before the encoder is closed."""
        self._paced.push(self._joined.take())


def compare_steps(usage: Usage) -> float:
    """Return the steps of the answer without drafts, divided by the steps that it took."""
    return usage.completion / max(1, usage.completion - (usage.accepted or 0))


def join(events: Sequence[Event]) -> list[Event]:
    """Join the events of several steps into those of one step: the leading events first, each kind
    once.
    """
    usage = [event for event in events if isinstance(event, UsageDelta)][-1:]
    echo = [event for event in events if isinstance(event, PromptEcho)]
    lists: list[Event] = []
    for kind, name in LISTS.items():
        parts = [getattr(event, name) for event in events if isinstance(event, kind)]
        if parts:
            lists.append(kind(tuple(chain.from_iterable(parts))))
    texts = [event for event in events if not isinstance(event, (UsageDelta, PromptEcho, *LISTS))]
    return [*usage, *echo, *lists, *_join_texts(texts)]


def _join_texts(events: Sequence[Event]) -> list[Event]:
    """Join neighbouring deltas of one text, and leave other events unchanged."""
    runs: list[list[Event]] = []
    for event in events:
        if runs and _continues(runs[-1][-1], event):
            runs[-1].append(event)
        else:
            runs.append([event])
    return [run[0] if len(run) == 1 else _concatenate(run) for run in runs]


def _continues(predecessor: Event, event: Event) -> bool:
    if isinstance(event, ToolCallDelta):
        return isinstance(predecessor, ToolCallDelta) and predecessor.index == event.index
    return isinstance(event, ContentDelta | ReasoningDelta) and type(predecessor) is type(event)


def _concatenate(run: Sequence[Event]) -> Event:
    first = run[0]
    if isinstance(first, ToolCallDelta):
        parts = [event.arguments for event in run if isinstance(event, ToolCallDelta)]
        return ToolCallDelta(first.index, "".join(parts))
    text = "".join([e.text for e in run if isinstance(e, ContentDelta | ReasoningDelta)])
    return ContentDelta(text) if isinstance(first, ContentDelta) else ReasoningDelta(text)


def fill(frames: bytes, size: int) -> bytes:
    """Append a comment of random letters, so that ``frames`` has ``size`` bytes."""
    num_missing = size - len(frames)
    if num_missing < 3:  # too short for a comment; an empty line ends no event
        return frames + b"\n" * num_missing
    return frames + b":%b\n\n" % make_filling(num_missing - 3)


def round_ticks(num: int) -> int:
    """Return the smallest number of ticks, from ``num``, at which a stream may end: 8, 16, 32, 64,
    ...
    """
    return max(8, 1 << (num - 1).bit_length())
