"""Fair queueing over API keys, and the service rate behind Retry-After.

A key's requests form a *flow*. Within a class, the flow that has used the least of the engine for
its weight goes first (start-time fair queueing). Usage is the time for which places are held. A
flow that was idle starts level with the others: idle time earns no credit.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, Protocol, TypeVar

Clock = Callable[[], float]

ACTIVE_S = 60.0
"""A flow without requests still counts as active for this many seconds when places are shared."""
LEARNING = 0.2
"""Weight of the latest request in a flow's moving average."""
UNKNOWN_S = 1.0
"""Seconds for which a place is assumed to be held before any measurement."""


class QueuedRequest(Protocol):
    """Attributes of a queued request that decide its order."""

    entered: float
    tokens: int


Ticket = TypeVar("Ticket", bound=QueuedRequest)


class Priority(IntEnum):
    """The class of a key. Requests of higher classes go first."""

    OPERATOR = -1
    """Admin keys, unless another class is configured for them."""
    HIGH = 0
    NORMAL = 1
    LOW = 2


@dataclass(eq=False, slots=True)
class Flow(Generic[Ticket]):
    """The requests of one key or, if no keys are configured, of one client address."""

    name: str
    priority: Priority
    weight: float = 1.0
    running: int = 0
    """Sequences in the engine."""
    queued: dict[Ticket, None] = field(default_factory=dict)
    """Requests that have entered and are neither admitted nor displaced, newest last."""
    waiting: deque[Ticket] = field(default_factory=deque)
    """Queued requests that are ready to run, in order."""
    tokens: int = 0
    """Prompt tokens of the waiting requests."""
    charged: float = 0.0
    """Place-seconds over weight: the flow's virtual time."""
    held_s: float | None = None
    """Average seconds for which one of its sequences holds a place."""
    seen: float = 0.0
    """Time of the last request that entered or left."""
    overdue_turn_at: float = 0.0
    """Time of the flow's last turn that made others wait."""

    @property
    def backlog(self) -> float:
        """Queued requests over weight, by which the queue is shared."""
        return len(self.queued) / self.weight

    def active(self, now: float) -> bool:
        return bool(self.running or self.queued) or now - self.seen < ACTIVE_S

    def learn(self, seconds: float) -> None:
        estimate = seconds if self.held_s is None else self.held_s
        self.held_s = estimate + LEARNING * (seconds - estimate)


class FairQueue(Generic[Ticket]):
    """All flows, and the virtual time of each class."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._flows: dict[tuple[Priority, str], Flow[Ticket]] = {}
        self._time: dict[Priority, float] = dict.fromkeys(Priority, 0.0)
        self.num_waiting = 0
        """Number of requests that are ready to run."""

    def __iter__(self) -> Iterator[Flow[Ticket]]:
        return iter(self._flows.values())

    def flow(self, priority: Priority, name: str, weight: float) -> Flow[Ticket]:
        """Return the flow of a requester, creating it if needed."""
        flow = self._flows.get((priority, name))
        if flow is None:
            self._forget_idle()
            flow = self._flows[priority, name] = Flow(name, priority)
        flow.weight = weight
        return flow

    def list_by_turn(self) -> list[Flow[Ticket]]:
        """Return the flows with waiting requests, in order of their turns."""
        flows = [flow for flow in self if flow.waiting]
        return sorted(
            flows, key=lambda flow: (flow.priority, flow.charged, flow.waiting[0].entered)
        )

    def catch_up(self, flow: Flow[Ticket]) -> None:
        """Advance a flow that had nothing waiting to the virtual time of its class."""
        flow.charged = max(flow.charged, self._time[flow.priority])

    def queue(self, flow: Flow[Ticket], ticket: Ticket) -> None:
        """Add a request that is ready to run."""
        if not flow.waiting:
            self.catch_up(flow)
        flow.waiting.append(ticket)
        flow.tokens += ticket.tokens
        self.num_waiting += 1

    def unqueue(self, flow: Flow[Ticket], ticket: Ticket) -> None:
        """Remove a request that now runs or gave up."""
        flow.waiting.remove(ticket)
        flow.tokens -= ticket.tokens
        self.num_waiting -= 1

    def charge(self, flow: Flow[Ticket], sequences: int, typical_s: float) -> float:
        """Charge an admitted request's expected cost to ``flow``, and return it."""
        self._time[flow.priority] = max(self._time[flow.priority], flow.charged)
        cost = sequences * (flow.held_s or typical_s or UNKNOWN_S)
        flow.charged += cost / flow.weight
        return cost

    def settle(self, flow: Flow[Ticket], charge: float, sequences: int, seconds: float) -> None:
        """Replace a leaving request's expected cost with its actual cost."""
        flow.charged += (sequences * seconds - charge) / flow.weight
        flow.learn(seconds)

    def compute_shares(self, places: int) -> dict[Flow[Ticket], float]:
        """Return the places that each active flow may hold when all flows want more; at least
        one.
        """
        now = self._clock()
        active = [flow for flow in self if flow.active(now)]
        total = dict.fromkeys(Priority, 0.0)
        for flow in active:
            total[flow.priority] += flow.weight
        return {flow: max(1.0, places * flow.weight / total[flow.priority]) for flow in active}

    def count_ahead(self, flow: Flow[Ticket]) -> float:
        """Return the number of requests ahead of a new one of ``flow``.

        These are all requests of higher classes and, of each other key, as many as its weight
        entitles it to in the meantime.
        """
        share = (len(flow.queued) + 1) / flow.weight
        peers = (peer for peer in self if peer is not flow)
        return len(flow.queued) + sum(_count_before(peer, flow, share) for peer in peers)

    def find_rival(
        self, flow: Flow[Ticket], size: Callable[[Flow[Ticket]], float], own_size: float
    ) -> Flow[Ticket] | None:
        """Return the flow whose newest request gives way to one of ``flow``; None if there is none.

        It is the flow with the largest ``size`` in the lowest class that has any, or in the same
        class if its size exceeds ``own_size``.
        """
        for priority in reversed(Priority):
            if priority < flow.priority:
                break
            flows = (
                candidate
                for candidate in self
                if candidate.priority == priority and size(candidate) > 0
            )
            rival = max(flows, key=size, default=None)
            if rival is None:
                continue
            if priority > flow.priority or (rival is not flow and size(rival) > own_size):
                return rival
        return None

    def _forget_idle(self) -> None:
        now = self._clock()
        self._flows = {key: flow for key, flow in self._flows.items() if flow.active(now)}


def _count_before(peer: Flow[Ticket], flow: Flow[Ticket], share: float) -> float:
    if peer.priority == flow.priority:
        return min(len(peer.queued), share * peer.weight)
    return len(peer.queued) if peer.priority < flow.priority else 0


class ServiceRate:
    """Service rate, computed from the time for which requests held their places.

    A gateway with P places, each held for H seconds, serves P / H requests per second while others
    wait (Little's law). Idle time does not change the estimate.
    """

    SAMPLES = 128
    RECENT_S = 60.0
    MIN_S, MAX_S = 1.0, 120.0
    DEFAULT_S = 5.0
    """Retry-After before any request has ended."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ended: deque[tuple[float, float]] = deque(maxlen=self.SAMPLES)
        self._held: deque[float] = deque(maxlen=self.SAMPLES)
        self._sorted: list[float] = []
        """The durations in ``_ended``, sorted."""
        self._mean_held_s = 0.0

    def note(self, seconds: float, sequences: int = 1) -> None:
        """Record a request that ended ``seconds`` after its admission and held ``sequences``
        places.
        """
        if len(self._ended) == self.SAMPLES:
            self._sorted.remove(self._ended[0][1])
        self._ended.append((self._clock(), seconds))
        insort(self._sorted, seconds)
        self._held.append(seconds * sequences)
        self._mean_held_s = sum(self._held) / len(self._held)

    @property
    def per_s(self) -> float | None:
        """Requests per second over the last minute; None with fewer than two requests."""
        now = self._clock()
        ends = [end for end, _ in self._ended if end >= now - self.RECENT_S]
        if len(ends) < 2 or ends[0] == now:
            return None
        return (len(ends) - 1) / (now - ends[0])

    @property
    def typical_s(self) -> float:
        """Median time from admission to end; 0 while unknown."""
        return self._sorted[len(self._sorted) // 2] if self._sorted else 0.0

    def wait_s(self, requests: float, places: int) -> float | None:
        """Return the seconds until ``requests`` have been served in ``places``; None while
        unknown.
        """
        if not self._ended:
            return None
        return requests * self._mean_held_s / max(1, places)

    def retry_after_s(self, requests: float, places: int) -> float:
        """Return the Retry-After of a request that has ``requests`` others ahead of it."""
        wait = self.wait_s(requests, places)
        return self.DEFAULT_S if wait is None else min(self.MAX_S, max(self.MIN_S, wait))
