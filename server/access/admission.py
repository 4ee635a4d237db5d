"""Admission of requests to the engine: bounds, fair shares and an accurate Retry-After.

A request *enters* before any work is done for it, is *admitted* to the engine when its turn comes,
and *leaves* when its response ends, for whatever reason. A request that cannot be served in time is
refused immediately, so that it does not take a place in the queue from another request.

Higher classes go first. Within a class, keys share the places in the engine and in the queue by
weight (``fair_order``):

- A full queue makes room for a request of a higher class, or of a key with a smaller backlog for
  its weight, by displacing the newest request of the key with the largest backlog.
- While anything runs, some places stay free for higher classes, if any are configured, and for
  active keys of the same class that are below their share. Their next request need not wait for
  another one to end. An idle engine starts whoever is next.
- A request with too many sequences for the free places blocks the others once it is overdue, and
  runs next.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from eaglegate.server.access.caller import Requester
from eaglegate.server.access.fair_order import FairQueue, Flow, Priority, ServiceRate
from eaglegate.server.errors import GatewayError, InvalidRequest, TooManyRequests

Clock = Callable[[], float]

SLACK = 1.25
"""A request needs this many typical service times left before its deadline when its turn comes. An
answer that arrives just after its deadline is the most expensive kind of refusal.
"""
KEPT_FREE = 16
"""One place in ``KEPT_FREE`` stays free for higher classes, and one for keys below their share."""
OVERDUE_S = 30.0
OVERDUE_TIMES = 16.0
"""A request that waited longer than ``OVERDUE_S`` and this many typical service times is overdue:
other keys wait until it runs. Each key gets one such turn per period.
"""


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Limits on running and waiting requests. A reload replaces all of them at once."""

    running: int = 256
    """Maximum number of sequences (choices) in the engine."""
    queued: int = 1024
    """Maximum number of requests waiting for their turn."""
    queued_tokens: int = 1 << 20
    """Maximum number of prompt tokens in waiting requests."""

    @property
    def reserved(self) -> int:
        """Places kept free for each kind of preferred request (see ``KEPT_FREE``)."""
        return max(1, self.running // KEPT_FREE) if self.running > 1 else 0


ANYBODY = Requester()


@dataclass(eq=False, slots=True)
class AdmissionTicket:
    """A request's place from entering to leaving. As a context manager, it leaves on exit."""

    admission: Admission
    requester: Requester
    flow: Flow[AdmissionTicket]
    entered: float
    places: int = 1
    """Places that the request takes of its key's concurrency."""
    sequences: int = 0
    tokens: int = 0
    admitted: float | None = None
    turn: asyncio.Future[None] | None = None
    charged: float = 0.0
    displaced: GatewayError | None = None

    def __enter__(self) -> AdmissionTicket:
        return self

    def __exit__(self, *_: object) -> None:
        self.admission._leave(self)

    async def admit(self, sequences: int, tokens: int) -> None:
        """Wait for admission. Raises TooManyRequests, and InvalidRequest for too many sequences."""
        self.admission._take_places(self, sequences)
        self.sequences, self.tokens = sequences, tokens
        await self.admission._admit(self)

    def record_served(self) -> None:
        """Count the completed request in the service rate."""
        if self.admitted is not None:
            duration = self.admission.clock() - self.admitted
            self.admission.rate.note(duration, self.sequences)


@dataclass(eq=False)
class Admission:
    """The queue in front of the engine. All calls come from one event loop."""

    bounds: AdmissionLimits = field(default_factory=AdmissionLimits)
    clock: Clock = time.monotonic
    classes: frozenset[Priority] = frozenset()
    """Priority classes of the configured keys. Places stay free for the higher ones."""

    def __post_init__(self) -> None:
        self.rate = ServiceRate(self.clock)
        self.running = 0
        """Sequences in the engine."""
        self.queued = 0
        """Requests that have entered and are not yet admitted."""
        self.queued_tokens = 0
        self._order = FairQueue[AdmissionTicket](self.clock)
        self._in_flight: Counter[str] = Counter()
        self._places: Counter[str] = Counter()
        """Concurrency in use by each key: sequences queued or running, and requests still being
        read.
        """
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def num_in_flight(self) -> int:
        """Number of requests that have entered and not left."""
        return self._in_flight.total()

    def check(self, requester: Requester = ANYBODY) -> None:
        """Raise TooManyRequests if the requester could not enter now. Changes nothing."""
        self._find_displaceable(self._flow(requester))

    def enter(self, requester: Requester) -> AdmissionTicket:
        """Return a ticket to be used as a context manager immediately.

        Raises TooManyRequests before any work is done for the request.
        """
        flow = self._flow(requester)
        self._find_displaceable(flow)
        self._check_concurrency(requester, 1)
        if requester.deadline is not None:
            self._check_deadline(requester, self._order.count_ahead(flow))
        if requester.quota is not None:
            requester.quota.take(requester.prepaid)
        if (newest := self._find_displaceable(flow)) is not None:
            self._displace(newest)
        ticket = AdmissionTicket(self, requester, flow, entered=self.clock())
        flow.queued[ticket] = None
        self.queued += 1
        self._in_flight[flow.name] += 1
        self._places[flow.name] += 1
        self._empty.clear()
        return ticket

    async def wait_until_empty(self) -> None:
        """Wait until every request has left."""
        await self._empty.wait()

    def reject_waiting(self, error: GatewayError) -> None:
        """Reject all waiting requests with ``error``."""
        for flow in self._order:
            while flow.waiting:
                self._end_waiting(flow.waiting[-1], error)

    def count_places(self, requester: Requester) -> int:
        """Return the number of concurrency places that the requester's key has in use."""
        return self._places.get(requester.flow, 0)

    def count_by_key(self) -> dict[str, dict[str, int]]:
        """Return each key's running sequences and queued requests."""
        keys = [flow for flow in self._order if flow.name.startswith("key ")]
        return {
            flow.name.removeprefix("key "): {"running": flow.running, "queued": len(flow.queued)}
            for flow in keys
            if flow.running or flow.queued
        }

    def _flow(self, requester: Requester) -> Flow[AdmissionTicket]:
        flow = self._order.flow(requester.priority, requester.flow, requester.weight)
        flow.seen = self.clock()
        return flow

    # -- the engine's places

    async def _admit(self, ticket: AdmissionTicket) -> None:
        if ticket.displaced is not None:
            raise ticket.displaced
        free_places = self.bounds.running - self.running - ticket.sequences
        if not self._order.num_waiting and free_places >= len(Priority) * (
            self.bounds.reserved + 1
        ):
            self._order.catch_up(ticket.flow)  # the queue is empty and all reserves stay free
            self._start(ticket)
            return
        self._order.queue(ticket.flow, ticket)
        self.queued_tokens += ticket.tokens
        self._admit_waiting()
        if ticket.admitted is None:
            await self._wait(ticket)
        self._check_deadline(ticket.requester, 0)

    async def _wait(self, ticket: AdmissionTicket) -> None:
        try:
            self._make_room_for_tokens(ticket)
            ticket.turn = asyncio.get_running_loop().create_future()
            await ticket.turn
        finally:
            if ticket.admitted is None and ticket in ticket.flow.waiting:
                self._stop_waiting(ticket)
                self._admit_waiting()

    def _admit_waiting(self) -> None:
        """Admit waiting requests in order, as many as fit."""
        while self._order.num_waiting and (ticket := self._next_ticket()) is not None:
            self._stop_waiting(ticket)
            self._start(ticket)
            if ticket.turn is not None and not ticket.turn.done():
                ticket.turn.set_result(None)

    def _next_ticket(self) -> AdmissionTicket | None:
        """Return the next ticket that fits.

        A ticket that does not fit blocks later ones, except those of keys in its class that are
        below their share.
        """
        shares = self._order.compute_shares(self.bounds.running)
        blocked_class: Priority | None = None  # of the first ticket that did not fit
        for flow in self._order.list_by_turn():
            ticket = flow.waiting[0]
            # If later tickets could pass freely, small ones would take every place that becomes
            # free, and a ticket with many sequences would starve. A key below its share may pass,
            # because places are reserved for it (``_count_reserved``), not for the ticket before.
            if blocked_class is None or (
                flow.priority == blocked_class and flow.running + ticket.sequences <= shares[flow]
            ):
                overdue = self._is_overdue(ticket)
                if self._fits(ticket, overdue, shares):
                    # The period begins anew, so that one key's large tickets do not stop the
                    # others again and again.
                    flow.overdue_turn_at = self.clock() if overdue else flow.overdue_turn_at
                    return ticket
                if overdue:
                    # Nobody passes an overdue ticket: places drain until it fits.
                    return None
            if blocked_class is None:
                blocked_class = flow.priority
        return None

    def _fits(
        self, ticket: AdmissionTicket, overdue: bool, shares: dict[Flow[AdmissionTicket], float]
    ) -> bool:
        """Return True if there is room for the ticket: in an idle engine, for one of any size."""
        # Waiting requests are looked at again when one leaves. In an idle engine none does.
        if not self.running:
            return True
        reserve = 0 if overdue else self._count_reserved(ticket, shares)
        return self.bounds.running - self.running - ticket.sequences >= reserve

    def _count_reserved(
        self, ticket: AdmissionTicket, shares: dict[Flow[AdmissionTicket], float]
    ) -> int:
        """Return the number of places that ``ticket`` must leave free beside those that run."""
        flow, reserve = ticket.flow, self.bounds.reserved
        active = {peer.priority for peer in shares}
        higher_levels = [level for level in self.classes | active if level < flow.priority]
        # A class that sends requests finds its reserve in use by its own: one place more keeps the
        # cost of a lower class's flood below a twentieth (tests/server/access/test_fairness.py).
        num_free = sum(reserve + (level in active) for level in higher_levels)
        if flow.running + ticket.sequences > shares[flow]:
            num_free += reserve * any(
                peer is not flow
                and peer.priority == flow.priority
                and peer.running + 1 <= shares[peer]
                for peer in shares
            )
        return num_free

    def _is_overdue(self, ticket: AdmissionTicket) -> bool:
        if ticket.sequences == 1:
            return False
        wait = self.clock() - max(ticket.entered, ticket.flow.overdue_turn_at)
        return wait > max(OVERDUE_S, OVERDUE_TIMES * self.rate.typical_s)

    def _start(self, ticket: AdmissionTicket) -> None:
        ticket.admitted = self.clock()
        flow = ticket.flow
        del flow.queued[ticket]
        self.queued -= 1
        self.running += ticket.sequences
        flow.running += ticket.sequences
        ticket.charged = self._order.charge(flow, ticket.sequences, self.rate.typical_s)

    def _stop_waiting(self, ticket: AdmissionTicket) -> None:
        self._order.unqueue(ticket.flow, ticket)
        self.queued_tokens -= ticket.tokens

    def _end_waiting(self, ticket: AdmissionTicket, error: GatewayError) -> None:
        self._stop_waiting(ticket)
        if ticket.turn is not None and not ticket.turn.done():
            ticket.turn.set_exception(error)

    def _leave(self, ticket: AdmissionTicket) -> None:
        flow = ticket.flow
        self._in_flight[flow.name] -= 1
        self._places[flow.name] -= ticket.places
        if not self._in_flight[flow.name]:
            del self._in_flight[flow.name], self._places[flow.name]
        now = flow.seen = self.clock()
        if ticket.admitted is not None:
            self.running -= ticket.sequences
            flow.running -= ticket.sequences
            duration = now - ticket.admitted
            self._order.settle(flow, ticket.charged, ticket.sequences, duration)
            self._admit_waiting()
        elif ticket.displaced is None:
            del flow.queued[ticket]
            self.queued -= 1
        if not self._in_flight:
            self._empty.set()

    # -- the places in the queue

    def _find_displaceable(self, flow: Flow[AdmissionTicket]) -> AdmissionTicket | None:
        """Return the ticket that a request of ``flow`` would displace; None if there is room.

        Raises TooManyRequests if the request may displace none.
        """
        if self.queued < self.bounds.queued:
            return None
        backlog = (len(flow.queued) + 1) / flow.weight
        rival = self._order.find_rival(flow, lambda candidate: candidate.backlog, backlog)
        if rival is None:
            sentence = f"{self.queued} requests are waiting, which is the limit"
            raise self._queue_full_error(sentence, flow)
        return next(reversed(rival.queued))

    def _make_room_for_tokens(self, ticket: AdmissionTicket) -> None:
        """Displace waiting requests until the queue's prompt tokens fit. Raises TooManyRequests."""
        excess = self.queued_tokens - self.bounds.queued_tokens
        flow, displaceable = ticket.flow, []
        candidates = {other: list(other.waiting) for other in self._order if other.waiting}
        size = {other: float(other.tokens) for other in candidates}
        while excess > 0:
            share = size[flow] / flow.weight
            rival = self._order.find_rival(flow, lambda f: size.get(f, 0.0) / f.weight, share)
            if rival is None:
                error = self._queued_tokens_error(ticket)
                self._unqueue(ticket, error)
                raise error
            displaceable.append(newest := candidates[rival].pop())
            size[rival] -= newest.tokens
            excess -= newest.tokens
        for victim in displaceable:
            self._displace(victim)

    def _displace(self, ticket: AdmissionTicket) -> None:
        error = self._queue_full_error(
            "this one made room for a key with fewer waiting", ticket.flow
        )
        self._unqueue(ticket, error)
        if ticket in ticket.flow.waiting:
            self._end_waiting(ticket, error)

    def _unqueue(self, ticket: AdmissionTicket, error: GatewayError) -> None:
        """Remove a refused request from the queue before it leaves."""
        ticket.displaced = error
        del ticket.flow.queued[ticket]
        self.queued -= 1

    # -- refusals
    def _take_places(self, ticket: AdmissionTicket, sequences: int) -> None:
        """Count one concurrency place per sequence. Raises TooManyRequests and InvalidRequest."""
        self._check_concurrency(ticket.requester, sequences, ticket.places)
        self._places[ticket.flow.name] += sequences - ticket.places
        ticket.places = sequences

    def _check_concurrency(self, requester: Requester, num_answers: int, num_held: int = 0) -> None:
        """Check the key's concurrency limit; ``num_held`` of the places are already held by this
        request.
        """
        limit = requester.concurrency
        if limit is None:
            return
        if num_answers > limit:
            raise InvalidRequest(
                f"This request needs {num_answers} answers at a time; the API key "
                f"'{requester.name}' may have {limit}. Lower 'n', or the number of prompts.",
                param="n",
                code="key_concurrency_exceeded",
            )
        in_progress = self.count_places(requester) - num_held
        if in_progress + num_answers > limit:
            raise TooManyRequests(
                f"The API key '{requester.name}' has {in_progress} answers in progress, this "
                f"request needs {num_answers}, and the limit is {limit} at a time; wait for one to "
                "finish.",
                code="key_concurrency_exceeded",
                retry_after_s=max(1.0, self.rate.typical_s / limit),
            )

    def _check_deadline(self, requester: Requester, num_ahead: float) -> None:
        """Refuse a request that would miss its deadline while others wait for the engine."""
        if requester.deadline is None or not any(flow.waiting for flow in self._order):
            return
        wait = self.rate.wait_s(num_ahead, self.bounds.running) or 0.0
        required_s = wait + SLACK * self.rate.typical_s
        remaining_s = requester.deadline - self.clock()
        if required_s > remaining_s:
            raise TooManyRequests(
                f"This request could not be answered in time: about {required_s:.1f} s are needed, "
                f"{max(0.0, remaining_s):.1f} s are left.",
                code="deadline_unreachable",
                retry_after_s=self._retry_after_s(self._flow(requester)),
            )

    def _queued_tokens_error(self, ticket: AdmissionTicket) -> TooManyRequests:
        other_tokens = self.queued_tokens - ticket.tokens
        return self._queue_full_error(
            f"{other_tokens} prompt tokens are waiting, this request has {ticket.tokens} and at "
            f"most {self.bounds.queued_tokens} may wait",
            ticket.flow,
        )

    def _queue_full_error(self, reason: str, flow: Flow[AdmissionTicket]) -> TooManyRequests:
        return TooManyRequests(
            f"Too many requests: {reason}. Retry after the time in Retry-After.",
            code="queue_full",
            retry_after_s=self._retry_after_s(flow),
        )

    def _retry_after_s(self, flow: Flow[AdmissionTicket]) -> float:
        """Return the seconds until the flow's next request would run, from its place in the fair
        order.
        """
        return self.rate.retry_after_s(self._order.count_ahead(flow) + 1, self.bounds.running)
