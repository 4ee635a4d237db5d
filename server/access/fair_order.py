"""Fair queueing over API keys, and the service rate that Retry-After follows from.

A key's requests are a *flow*. Within a class the flow that has had the least of the engine, for
its weight, goes first (start-time fair queueing); what is shared out is the time that places are
held. A flow that had nothing to do starts level with the others: idle time earns nothing.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, Protocol, TypeVar

ACTIVE_S = 60.0
"""A flow without requests counts this long among those that share the places."""
LEARNING = 0.2
"""Weight of the last request in a flow's mean."""
UNKNOWN_S = 1.0
"""Seconds that a place is taken to be held before any was."""


class QueuedRequest(Protocol):
    """Attributes of a queued request that decide its place in the order."""

    entered: float
    tokens: int


Ticket = TypeVar("Ticket", bound=QueuedRequest)


class Priority(IntEnum):
    """The class of a key: a higher one's requests go first."""

    OPERATOR = -1
    """Keys of admins, unless they are given another class."""
    HIGH = 0
    NORMAL = 1
    LOW = 2


@dataclass(eq=False, slots=True)
class Flow(Generic[Ticket]):
    """The requests of one key or, without keys, of one client address."""

    name: str
    priority: Priority
    weight: float = 1.0
    running: int = 0
    """Sequences in the engine."""
    queued: dict[Ticket, None] = field(default_factory=dict)
    """Requests that entered and are neither admitted nor displaced, the newest last."""
    waiting: deque[Ticket] = field(default_factory=deque)
    """Queued requests that are ready to run, in order."""
    tokens: int = 0
    """Prompt tokens of those that wait."""
    charged: float = 0.0
    """Place-seconds over weight: the flow's virtual time."""
    held_s: float | None = None
    """Seconds its sequences hold a place on average."""
    seen: float = 0.0
    overdue: float = 0.0
    """Time at which a request of this flow last held up others to get its turn."""

    @property
    def backlog(self) -> float:
        """Requests over weight: what the queue is shared by."""
        return len(self.queued) / self.weight

    def active(self, now: float) -> bool:
        return bool(self.running or self.queued) or now - self.seen < ACTIVE_S

    def learn(self, seconds: float) -> None:
        before = seconds if self.held_s is None else self.held_s
        self.held_s = before + LEARNING * (seconds - before)


class FairQueue(Generic[Ticket]):
    """The flows there are, and the virtual time of each class."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._flows: dict[tuple[Priority, str], Flow[Ticket]] = {}
        self._time: dict[Priority, float] = dict.fromkeys(Priority, 0.0)
        self.num_waiting = 0
        """Requests that are ready to run."""

    def __iter__(self) -> Iterator[Flow[Ticket]]:
        return iter(self._flows.values())

    def flow(self, priority: Priority, name: str, weight: float) -> Flow[Ticket]:
        """Return the flow of a requester, and make it where there is none."""
        found = self._flows.get((priority, name))
        if found is None:
            self._forget_idle()
            found = self._flows[priority, name] = Flow(name, priority)
        found.weight = weight
        return found

    def list_by_turn(self) -> list[Flow[Ticket]]:
        """The flows that wait, in the order of their turns."""
        waiting = [flow for flow in self if flow.waiting]
        return sorted(
            waiting, key=lambda flow: (flow.priority, flow.charged, flow.waiting[0].entered)
        )

    def catch_up(self, flow: Flow[Ticket]) -> None:
        """Start a flow that had nothing waiting level with the others of its class."""
        flow.charged = max(flow.charged, self._time[flow.priority])

    def queue(self, flow: Flow[Ticket], place: Ticket) -> None:
        """``place`` is ready to run."""
        if not flow.waiting:
            self.catch_up(flow)
        flow.waiting.append(place)
        flow.tokens += place.tokens
        self.num_waiting += 1

    def unqueue(self, flow: Flow[Ticket], place: Ticket) -> None:
        """``place`` runs, or gives up."""
        flow.waiting.remove(place)
        flow.tokens -= place.tokens
        self.num_waiting -= 1

    def charge(self, flow: Flow[Ticket], sequences: int, typical_s: float) -> float:
        """A request of ``flow`` is admitted: charge what it may cost, and return that."""
        self._time[flow.priority] = max(self._time[flow.priority], flow.charged)
        cost = sequences * (flow.held_s or typical_s or UNKNOWN_S)
        flow.charged += cost / flow.weight
        return cost

    def settle(self, flow: Flow[Ticket], charged: float, sequences: int, seconds: float) -> None:
        """Replace a leaving request's expected charge with its actual cost."""
        flow.charged += (sequences * seconds - charged) / flow.weight
        flow.learn(seconds)

    def compute_shares(self, places: int) -> dict[Flow[Ticket], float]:
        """Compute the places that each active flow may hold when all want more; at least one."""
        now = self._clock()
        active = [flow for flow in self if flow.active(now)]
        total = dict.fromkeys(Priority, 0.0)
        for flow in active:
            total[flow.priority] += flow.weight
        return {flow: max(1.0, places * flow.weight / total[flow.priority]) for flow in active}

    def count_ahead(self, flow: Flow[Ticket]) -> float:
        """Requests that go before a new one of ``flow``: all of higher classes, and of each other
        key as many as it is due for its weight meanwhile."""
        due = (len(flow.queued) + 1) / flow.weight
        others = (other for other in self if other is not flow)
        return len(flow.queued) + sum(_count_before(other, flow, due) for other in others)

    def find_rival(
        self, flow: Flow[Ticket], size: Callable[[Flow[Ticket]], float], own: float
    ) -> Flow[Ticket] | None:
        """Whose newest request gives way to one of ``flow``: the flow with the largest ``size`` in
        the lowest class there is, or in the own class if that is larger than ``own``."""
        for priority in reversed(Priority):
            if priority < flow.priority:
                break
            others = (other for other in self if other.priority == priority and size(other) > 0)
            found = max(others, key=size, default=None)
            if found is None:
                continue
            if priority > flow.priority or (found is not flow and size(found) > own):
                return found
        return None

    def _forget_idle(self) -> None:
        now = self._clock()
        self._flows = {key: flow for key, flow in self._flows.items() if flow.active(now)}


def _count_before(other: Flow[Ticket], flow: Flow[Ticket], due: float) -> float:
    if other.priority == flow.priority:
        return min(len(other.queued), due * other.weight)
    return len(other.queued) if other.priority < flow.priority else 0


Clock = Callable[[], float]


class ServiceRate:
    """Rate of service, from the time that requests held their places. Idle hours do not change it.

    A gateway with P places, held for H seconds by a request, serves P / H requests per second while
    others wait (Little's law), however few came before.
    """

    SAMPLES = 128
    RECENT_S = 60.0
    MIN_S, MAX_S, UNKNOWN_S = 1.0, 120.0, 5.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ended: deque[tuple[float, float]] = deque(maxlen=self.SAMPLES)
        self._held: deque[float] = deque(maxlen=self.SAMPLES)
        self._sorted: list[float] = []
        """The seconds in ``_ended``, in order."""
        self._mean_held_s = 0.0

    def note(self, seconds: float, sequences: int = 1) -> None:
        """A request was served, ``seconds`` after its admission, in ``sequences`` places."""
        if len(self._ended) == self.SAMPLES:
            self._sorted.remove(self._ended[0][1])
        self._ended.append((self._clock(), seconds))
        insort(self._sorted, seconds)
        self._held.append(seconds * sequences)
        self._mean_held_s = sum(self._held) / len(self._held)

    @property
    def per_s(self) -> float | None:
        """Requests per second of the last minute; None without two of them."""
        now = self._clock()
        recent = [at for at, _ in self._ended if at >= now - self.RECENT_S]
        if len(recent) < 2 or recent[0] == now:
            return None
        return (len(recent) - 1) / (now - recent[0])

    @property
    def typical_s(self) -> float:
        """The median time from admission to end; 0 while unknown."""
        return self._sorted[len(self._sorted) // 2] if self._sorted else 0.0

    def wait_s(self, requests: float, places: int) -> float | None:
        """Seconds until ``requests`` have been served in ``places``; None while unknown."""
        if not self._ended:
            return None
        return requests * self._mean_held_s / max(1, places)

    def retry_after_s(self, requests: float, places: int) -> float:
        """The Retry-After of a request that would be behind ``requests`` others."""
        wait = self.wait_s(requests, places)
        return self.UNKNOWN_S if wait is None else min(self.MAX_S, max(self.MIN_S, wait))
