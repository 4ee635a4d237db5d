"""Keys against the real admission on a clock of the test's own: deterministic, and quick."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from random import Random

from eaglegate.server.access.admission import Admission, AdmissionLimits, AdmissionTicket
from eaglegate.server.access.caller import Requester
from eaglegate.server.errors import TooManyRequests


@dataclass
class Load:
    """Requests of one key: they come at random, ``per_s`` of them, each for ``seconds(random)``."""

    requester: Requester
    per_s: float
    seconds: Callable[[Random], float]
    sequences: int = 1
    tokens: int = 10
    seed: int = 0

    def arrivals(self, until_s: float) -> Iterator[tuple[float, float]]:
        """Arrival time and duration of each request; other loads do not affect them."""
        random, at = Random(self.seed), 0.0
        while (at := at + random.expovariate(self.per_s)) < until_s:
            yield at, self.seconds(random)


@dataclass
class Outcome:
    """The results of one load's requests."""

    latencies: list[float] = field(default_factory=list)
    refused: int = 0
    served: int = 0
    """Requests that ended while more were coming."""

    @property
    def median(self) -> float:
        return sorted(self.latencies)[len(self.latencies) // 2]


class World:
    """The admission, its clock, and what is going to happen."""

    def __init__(self, bounds: AdmissionLimits, **options: object) -> None:
        self.now = 0.0
        self.admission = Admission(bounds, clock=lambda: self.now, **options)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self.most_running = 0

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._number), what))

    async def run(self) -> None:
        while self._events:
            self.now, _, what = heapq.heappop(self._events)
            what()
            await settle()
            self.most_running = max(self.most_running, self.admission.running)

    def offer(self, load: Load, until_s: float) -> Outcome:
        outcome = Outcome()
        for when, seconds in load.arrivals(until_s):
            self.at(when, lambda seconds=seconds: self.ask(load, seconds, outcome, until_s))
        return outcome

    def ask(self, load: Load, seconds: float, outcome: Outcome, until_s: float) -> None:
        stack, came = ExitStack(), self.now
        try:
            place = stack.enter_context(self.admission.enter(load.requester))
        except TooManyRequests:
            outcome.refused += 1
            return

        def end() -> None:
            place.record_served()
            stack.close()
            outcome.latencies.append(self.now - came)
            outcome.served += self.now <= until_s

        async def run(place: AdmissionTicket) -> None:
            try:
                await place.admit(load.sequences, load.tokens)
            except TooManyRequests:
                outcome.refused += 1
                stack.close()
                return
            self.at(self.now + seconds, end)

        self.task = asyncio.ensure_future(run(place))


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def play(
    bounds: AdmissionLimits, loads: list[Load], until_s: float, **options: object
) -> list[Outcome]:
    world = World(bounds, **options)
    outcomes = [world.offer(load, until_s) for load in loads]
    await world.run()
    assert world.most_running <= bounds.running or any(
        load.sequences > bounds.running for load in loads
    )
    admission = world.admission
    left = (admission.num_in_flight, admission.running, admission.queued, admission.queued_tokens)
    assert left == (0, 0, 0, 0)
    return outcomes
