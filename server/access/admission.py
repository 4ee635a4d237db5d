"""Who may enter, how many, and when to come back: bounds, fair shares, an honest Retry-After.

A request *enters* before any work is done for it, is *admitted* to the engine when its turn comes,
and *leaves* when its response is over, however it ends. What cannot be served in time is refused
at once, because a place in the queue that leads nowhere takes one from somebody else.

Classes go before one another; within a class keys share by weight (``fair_order``), both the
places in the engine and those in the queue:

- a full queue makes room for a request of a higher class, or of a key that has fewer waiting for
  its weight, and refuses (or displaces) the newest of the key that has the most;
- some places stay free for higher classes, where there are any, and for active keys of the same
  class that have less than their share, so that their next request need not wait for another's end;
- a request too large for all that holds up the others once it is overdue, and then runs.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from server.access.caller import Visitor
from server.access.fair_order import FairOrder, Flow, Priority, ServiceRate
from server.errors import GatewayError, TooManyRequests

Clock = Callable[[], float]

SLACK = 1.25
"""Typical service times a request should have left when its turn comes: answers that arrive just
after their deadline are the most expensive kind of refusal."""
KEPT_FREE = 16
"""One place in so many stays free for higher classes, and one for keys below their share."""
OVERDUE_S = 30.0
OVERDUE_TIMES = 16.0
"""A request that waited longer than this, and than so many typical service times, gets its turn
even if other keys have to wait for it; once in that time for each key."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may be under way. Swapped whole when settings are loaded again."""

    running: int = 256
    """Sequences (choices) in the engine at a time."""
    queued: int = 1024
    """Requests waiting for their turn."""
    queued_tokens: int = 1 << 20
    """Prompt tokens of the requests that wait."""

    @property
    def kept_free(self) -> int:
        """Places of ``running`` that one kind of others finds free."""
        return max(1, self.running // KEPT_FREE) if self.running > 1 else 0


ANYBODY = Visitor()


def _later(seconds: float, what: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_later(seconds, what)


@dataclass(eq=False, slots=True)
class Place:
    """One request's place, from entering to leaving."""

    admission: Admission
    visitor: Visitor
    flow: Flow
    entered: float
    sequences: int = 0
    tokens: int = 0
    admitted: float | None = None
    turn: asyncio.Future[None] | None = None
    charged: float = 0.0
    displaced: GatewayError | None = None

    async def admit(self, sequences: int, tokens: int) -> None:
        """Wait for the turn. Raises TooManyRequests."""
        self.sequences, self.tokens = sequences, tokens
        await self.admission._admit(self)
        self.pay(tokens)

    def pay(self, tokens: int) -> None:
        """Charge tokens read or written to the key."""
        if self.visitor.quota is not None:
            self.visitor.quota.pay(tokens)

    def served(self) -> None:
        """The request came to its own end: it counts in the rate."""
        if self.admitted is not None:
            held = self.admission.clock() - self.admitted
            self.admission.rate.note(held, self.sequences)


@dataclass(eq=False)
class Admission:
    """The queue in front of the engine; one event loop."""

    bounds: Bounds = field(default_factory=Bounds)
    clock: Clock = time.monotonic
    classes: frozenset[Priority] = frozenset()
    """Those that keys have: places stay free for the higher ones."""
    later: Callable[[float, Callable[[], None]], object] = _later

    def __post_init__(self) -> None:
        self.rate = ServiceRate(self.clock)
        self.running = 0
        """Sequences in the engine."""
        self.queued = 0
        """Requests that entered and were not admitted yet."""
        self.queued_tokens = 0
        self._order = FairOrder(self.clock)
        self._inside: Counter[str] = Counter()
        self._alarm: object = None
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def num_inside(self) -> int:
        """Requests that entered and have not left."""
        return self._inside.total()

    def check(self, visitor: Visitor = ANYBODY) -> None:
        """Raises TooManyRequests when this visitor may not enter now; changes nothing."""
        self._displaceable(self._flow(visitor))

    @contextmanager
    def enter(self, visitor: Visitor) -> Iterator[Place]:
        """Raises TooManyRequests, before anything was done for the request."""
        flow = self._flow(visitor)
        self._displaceable(flow)
        self._check_concurrency(visitor)
        self._check_deadline(visitor, self._order.ahead_of(flow))
        if visitor.quota is not None:
            visitor.quota.take()
        if (newest := self._displaceable(flow)) is not None:
            self._displace(newest)
        place = Place(self, visitor, flow, entered=self.clock())
        flow.queued[place] = None
        self.queued += 1
        self._inside[visitor.flow] += 1
        self._empty.clear()
        try:
            yield place
        finally:
            self._leave(place)

    async def until_empty(self) -> None:
        """Return when everybody has left."""
        await self._empty.wait()

    def turn_away(self, error: GatewayError) -> None:
        """End the waiting of all who wait."""
        for flow in self._order:
            while flow.waiting:
                self._end_waiting(flow.waiting[-1], error)

    def by_key(self) -> dict[str, dict[str, int]]:
        """What each key has in the engine and in the queue."""
        keys = [flow for flow in self._order if flow.name.startswith("key ")]
        return {
            flow.name.removeprefix("key "): {"running": flow.running, "queued": len(flow.queued)}
            for flow in keys
            if flow.running or flow.queued
        }

    def _flow(self, visitor: Visitor) -> Flow:
        flow = self._order.flow(visitor.priority, visitor.flow, visitor.weight)
        flow.seen = self.clock()
        return flow

    # -- the engine's places

    async def _admit(self, place: Place) -> None:
        if place.displaced is not None:
            raise place.displaced
        self._order.queue(place.flow, place)
        self.queued_tokens += place.tokens
        self._next()
        if place.admitted is None:
            await self._wait(place)
        self._check_deadline(place.visitor, 0)

    async def _wait(self, place: Place) -> None:
        try:
            self._make_room_for_tokens(place)
            place.turn = asyncio.get_running_loop().create_future()
            await place.turn
        finally:
            if place.admitted is None and place in place.flow.waiting:
                self._stop_waiting(place)
                self._next()

    def _next(self) -> None:
        """Admit as many as fit, in their order."""
        while (place := self._whose_turn()) is not None:
            self._stop_waiting(place)
            self._let_in(place)
            if place.turn is not None and not place.turn.done():
                place.turn.set_result(None)
        if not self.running and self._alarm is None and any(f.waiting for f in self._order):
            self._alarm = self.later(1.0, self._look_again)

    def _whose_turn(self) -> Place | None:
        """The first that fits. One that does not holds up those behind it, except keys of its
        class that have less than their share."""
        turns = self._order.by_turn()
        if not turns:
            return None
        shares = self._order.shares(self.bounds.running)
        held_up: Priority | None = None
        for flow in turns:
            place = flow.waiting[0]
            if held_up is None or (
                flow.priority == held_up and flow.running + place.sequences <= shares[flow]
            ):
                overdue = self._is_overdue(place)
                if self._fits(place, overdue, shares):
                    flow.overdue = self.clock() if overdue else flow.overdue
                    return place
                if overdue:
                    return None
            held_up = flow.priority if held_up is None else held_up
        return None

    def _fits(self, place: Place, overdue: bool, shares: dict[Flow, float]) -> bool:
        """One that is larger than the bound runs alone."""
        kept = 0 if overdue else self._kept_free(place, shares)
        left = self.bounds.running - self.running - place.sequences
        return left >= kept or not (self.running or kept)

    def _kept_free(self, place: Place, shares: dict[Flow, float]) -> int:
        """How many places ``place`` must leave to others: never all of them."""
        flow, kept = place.flow, self.bounds.kept_free
        active = {other.priority for other in shares}
        above = [level for level in self.classes | active if level < flow.priority]
        free = sum(kept + (level in active) for level in above)
        if flow.running + place.sequences > shares[flow]:
            free += kept * any(
                other is not flow
                and other.priority == flow.priority
                and other.running + 1 <= shares[other]
                for other in shares
            )
        return min(free, self.bounds.running - 1)

    def _is_overdue(self, place: Place) -> bool:
        if place.sequences == 1:
            return False
        waited = self.clock() - max(place.entered, place.flow.overdue)
        return waited > max(OVERDUE_S, OVERDUE_TIMES * self.rate.typical_s)

    def _look_again(self) -> None:
        """Nobody's leaving is going to call for the next turn."""
        self._alarm = None
        self._next()

    def _let_in(self, place: Place) -> None:
        place.admitted = self.clock()
        flow = place.flow
        del flow.queued[place]
        self.queued -= 1
        self.running += place.sequences
        flow.running += place.sequences
        place.charged = self._order.charge(flow, place.sequences, self.rate.typical_s)

    def _stop_waiting(self, place: Place) -> None:
        place.flow.waiting.remove(place)
        place.flow.tokens -= place.tokens
        self.queued_tokens -= place.tokens

    def _end_waiting(self, place: Place, error: GatewayError) -> None:
        self._stop_waiting(place)
        if place.turn is not None and not place.turn.done():
            place.turn.set_exception(error)

    def _leave(self, place: Place) -> None:
        self._inside[place.visitor.flow] -= 1
        if not self._inside[place.visitor.flow]:
            del self._inside[place.visitor.flow]
        flow = place.flow
        flow.seen = self.clock()
        if place.admitted is not None:
            self.running -= place.sequences
            flow.running -= place.sequences
            held = self.clock() - place.admitted
            self._order.settle(flow, place.charged, place.sequences, held)
            self._next()
        elif place.displaced is None:
            del flow.queued[place]
            self.queued -= 1
        if not self._inside:
            self._empty.set()

    # -- the places in the queue

    def _displaceable(self, flow: Flow) -> Place | None:
        """Whom a request of ``flow`` displaces, if anybody. Raises TooManyRequests."""
        if self.queued < self.bounds.queued:
            return None
        own = (len(flow.queued) + 1) / flow.weight
        rival = self._order.rival(flow, lambda other: other.backlog, own)
        if rival is None:
            waiting = f"{self.queued} requests are waiting, the most there may be"
            raise self._full(waiting, flow)
        return next(reversed(rival.queued))

    def _make_room_for_tokens(self, place: Place) -> None:
        """The same for the prompt tokens of those that are ready. Raises TooManyRequests."""
        excess = self.queued_tokens - self.bounds.queued_tokens
        flow, chosen = place.flow, []
        left = {other: list(other.waiting) for other in self._order if other.waiting}
        size = {other: float(other.tokens) for other in left}
        while excess > 0:
            own = size[flow] / flow.weight
            rival = self._order.rival(flow, lambda f: size.get(f, 0.0) / f.weight, own)
            if rival is None:
                raise self._too_many_tokens(place)
            chosen.append(newest := left[rival].pop())
            size[rival] -= newest.tokens
            excess -= newest.tokens
        for other in chosen:
            self._displace(other)

    def _displace(self, place: Place) -> None:
        error = self._full("this one made room for a key with fewer waiting", place.flow)
        place.displaced = error
        del place.flow.queued[place]
        self.queued -= 1
        if place in place.flow.waiting:
            self._end_waiting(place, error)

    # -- refusals
    def _check_concurrency(self, visitor: Visitor) -> None:
        inside, most = self._inside.get(visitor.flow, 0), visitor.concurrency
        if most is not None and inside >= most:
            raise TooManyRequests(
                f"The API key '{visitor.name}' has {inside} requests under way, the most it may "
                "have; wait for one to end.",
                code="key_concurrency_exceeded",
                retry_after_s=max(1.0, self.rate.typical_s / most),
            )

    def _check_deadline(self, visitor: Visitor, ahead: float) -> None:
        """Refuse, where others wait, what could only use up time that they have and it has not."""
        if visitor.deadline is None or not any(flow.waiting for flow in self._order):
            return
        wait = self.rate.wait_s(ahead, self.bounds.running) or 0.0
        needed = wait + SLACK * self.rate.typical_s
        left = visitor.deadline - self.clock()
        if needed > left:
            raise TooManyRequests(
                f"This request could not be answered in time: about {needed:.1f} s are needed, "
                f"{max(0.0, left):.1f} s are left.",
                code="deadline_unreachable",
                retry_after_s=self._retry_after_s(self._flow(visitor)),
            )

    def _too_many_tokens(self, place: Place) -> TooManyRequests:
        others = self.queued_tokens - place.tokens
        return self._full(
            f"{others} prompt tokens are waiting, this request has {place.tokens} and at most "
            f"{self.bounds.queued_tokens} may wait",
            place.flow,
        )

    def _full(self, why: str, flow: Flow) -> TooManyRequests:
        return TooManyRequests(
            f"Too many requests: {why}. Come back after the time in Retry-After.",
            code="queue_full",
            retry_after_s=self._retry_after_s(flow),
        )

    def _retry_after_s(self, flow: Flow) -> float:
        """From where in the fair order the flow's next request would be."""
        return self.rate.retry_after_s(self._order.ahead_of(flow) + 1, self.bounds.running)
