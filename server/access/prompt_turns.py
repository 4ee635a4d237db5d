"""Bound on the prompt tokens that an engine has been given and has not read, in admission's order.

An engine reads prompts in the order of their arrival, whatever their class. Admission counts
sequences, so that one request with many long prompts would keep the engine busy for a minute before
it reads the prompt of a higher class. Each sequence therefore waits here until the prompts inside
leave room for its own: classes first, then keys by weight. It makes room with its first step, or
after ``LONGEST_S``: an engine that hangs, one of many workers, holds up nobody else.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from eaglegate.engine.types import STEP_TOKENS
from eaglegate.server.access.caller import Requester
from eaglegate.server.access.fair_order import Clock, FairQueue, Flow, Priority

STEPS = 2
"""Steps whose tokens may be inside: one that is computed, and one that is scheduled meanwhile."""
LONGEST_S = 10.0
"""Seconds after which a prompt no longer counts as unread."""


def _call_later(seconds: float, end: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, end)


class PromptTurns:
    """Turns of prompts. ``step_tokens`` returns the tokens that the engine computes in a step."""

    def __init__(
        self,
        step_tokens: Callable[[], int] = lambda: STEP_TOKENS,
        clock: Clock = time.monotonic,
        later: Callable[[float, Callable[[], None]], asyncio.TimerHandle] = _call_later,
        longest_s: float = LONGEST_S,
    ) -> None:
        self._step_tokens, self._later = step_tokens, later
        self._clock, self._longest_s = clock, longest_s
        self._order = FairQueue[PromptTurn](clock)
        self._unread_tokens: Counter[Priority] = Counter()
        """Unread prompt tokens in the engine, by class."""

    def turn(self, requester: Requester, num_tokens: int) -> PromptTurn:
        """Return the turn of a prompt, an asynchronous context manager that waits for it."""
        flow = self._order.flow(requester.priority, requester.flow, requester.weight)
        return PromptTurn(self, flow, num_tokens, self._clock())

    @property
    def num_unread(self) -> int:
        """Return the number of unread prompt tokens in the engine."""
        return self._unread_tokens.total()

    def _queue(self, turn: PromptTurn) -> None:
        turn.flow.queued[turn] = None
        self._order.queue(turn.flow, turn)
        self._begin_waiting()

    def _unqueue(self, turn: PromptTurn) -> None:
        self._order.unqueue(turn.flow, turn)
        del turn.flow.queued[turn]
        turn.flow.seen = self._clock()

    def _begin_waiting(self) -> None:
        """Begin waiting turns in order, as many as fit."""
        while self._order.num_waiting:
            turn = self._order.list_by_turn()[0].waiting[0]
            if not self._fits(turn):
                return
            self._unqueue(turn)
            self._order.charge(turn.flow, turn.tokens, 1.0)
            self._unread_tokens[turn.flow.priority] += turn.tokens
            turn.begin(self._later(self._longest_s, turn.end))

    def _fits(self, turn: PromptTurn) -> bool:
        """Return True unless prompts of this class and of higher ones fill the bound. The last
        prompt may exceed it: a prompt that is partly read still counts as a whole."""
        level = turn.flow.priority
        tokens_ahead = sum(
            tokens for priority, tokens in self._unread_tokens.items() if priority <= level
        )
        return tokens_ahead < STEPS * self._step_tokens()

    def _end(self, turn: PromptTurn) -> None:
        self._unread_tokens[turn.flow.priority] -= turn.tokens
        self._begin_waiting()


class PromptTurn:
    """The turn of one prompt. Leaving the context ends it, if ``end`` has not."""

    __slots__ = ("_alarm", "_begun", "_ended", "_turns", "entered", "flow", "tokens")
    _alarm: asyncio.TimerHandle

    def __init__(
        self, turns: PromptTurns, flow: Flow[PromptTurn], tokens: int, entered: float
    ) -> None:
        self._turns = turns
        self.flow, self.tokens, self.entered = flow, tokens, entered
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = False

    async def __aenter__(self) -> PromptTurn:
        self._turns._queue(self)
        try:
            await self._begun
        except asyncio.CancelledError:
            self.end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end()

    def begin(self, alarm: asyncio.TimerHandle) -> None:
        """Let the prompt into the engine. ``alarm`` ends the turn, if nothing else does before."""
        self._alarm = alarm
        if not self._begun.done():
            self._begun.set_result(None)

    def end(self) -> None:
        """Make room for other prompts, because the engine has read this one or never will."""
        if self._ended:
            return
        self._ended = True
        if self in self.flow.queued:
            # Nobody begins in its place: what held it up holds up those behind it as well.
            self._turns._unqueue(self)
        else:
            self._alarm.cancel()
            self._turns._end(self)
