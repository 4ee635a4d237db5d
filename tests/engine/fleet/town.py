"""Workers that live where a test says, and a fleet in front of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from eaglegate.engine.base import SupportsCounters
from eaglegate.engine.errors import EngineDead, EngineError, EngineStartError, EngineUnreachable
from eaglegate.engine.fleet.discovery import DiscoveryError
from eaglegate.engine.fleet.fleet import Fleet
from eaglegate.engine.fleet.types import BreakerSettings, FleetSettings, RoutingSettings
from eaglegate.engine.scripted import DEFAULT_INFO, ScriptedEngine, steps
from eaglegate.engine.supervision.policy import SupervisionTimeouts
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import EngineInfo, EngineRequest, Health
from eaglegate.text.events import FinishReason
from tests.engine.supervision.mortal import Notes, ask, collect, following, tokens_of

RULES = FleetSettings(
    poll_s=0.01,
    ask_s=0.05,
    missed=3,
    admit_s=1.0,
    pause_s=0.002,
    balance=RoutingSettings(block=2, slack=0.0),
    breaker=BreakerSettings(backoff_s=0.01, max_backoff_s=0.02),
)
PATIENCE = SupervisionTimeouts(wait_s=5, continuations=50, losses=1000, stall_s=60)


@dataclass
class House:
    """A worker's machine: whether it is up, and how what runs there ends."""

    name: str
    up: bool = True
    doom: Callable[[EngineRequest, int], bool] = lambda request, step: False
    """Whether the worker dies when ``request`` is about to make step ``step`` (from 0)."""
    error: Callable[[EngineRequest, int], EngineError | None] = lambda request, step: None
    """The error, if any, with which one request alone fails."""
    info: EngineInfo = DEFAULT_INFO
    cuts: tuple[int, ...] = (1, 3, 2, 4, 1, 3, 3, 2)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Steps after the first wait for it."""
    engines: list[Remote] = field(default_factory=list)
    counted: Totals | None = None
    silent: bool = False
    """Whether it leaves questions for its health unanswered."""

    def __post_init__(self) -> None:
        self.gate.set()

    @property
    def requests(self) -> list[EngineRequest]:
        return [r for e in self.engines for r in e.requests if r.id != "eaglegate-probe"]

    @property
    def running(self) -> set[str]:
        return {name for engine in self.engines for name in engine.running}

    def die(self) -> None:
        self.up = False
        for engine in self.engines:
            engine.dead = "connection reset"


class Remote(ScriptedEngine, SupportsCounters):
    """An engine object that drives the worker of a house."""

    def __init__(self, house: House) -> None:
        super().__init__(script=self.play)
        self.house = house
        house.engines.append(self)

    def play(self, request: EngineRequest):
        probing = request.id == "eaglegate-probe"
        made = steps(following(request), self.house.cuts, FinishReason.LENGTH)
        for at, step in enumerate(made):
            if not probing and self.house.doom(request, at):
                self.house.die()
            if self.dead:
                yield EngineDead(self.dead)
            if not probing and (error := self.house.error(request, at)) is not None:
                yield error
            yield step

    async def start(self) -> EngineInfo:
        if not self.house.up:
            raise EngineStartError("connection refused")
        return self.house.info

    async def generate(self, request, sink):
        if not self.house.up:
            raise EngineUnreachable("connection refused")
        await super().generate(request, sink)

    async def _play(self, request):
        first = True
        async with aclosing(super()._play(request)) as made:
            async for step in made:
                if not first:
                    await self._open_gate()
                first = False
                yield step

    async def _open_gate(self) -> None:
        waits = [asyncio.ensure_future(e.wait()) for e in (self.house.gate, self.closed)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if self.dead:
            raise EngineDead(self.dead)

    async def read_counters(self) -> Totals | None:
        return self.house.counted

    async def health(self) -> Health:
        if self.house.silent:
            await self.closed.wait()
        return Health(live=self.house.up, reason="" if self.house.up else "connection refused")


class Streets:
    """A source of addresses that a test changes."""

    interval_s = 0.005

    def __init__(self, names: Iterable[str]) -> None:
        self.names = set(names)
        self.broken = False

    async def read(self) -> frozenset[str]:
        if self.broken:
            raise DiscoveryError("no such file")
        return frozenset(self.names)


@dataclass
class Town:
    """Houses and the fleet that uses them."""

    houses: dict[str, House]
    streets: Streets
    fleet: Fleet
    notes: Notes

    def __getitem__(self, name: str) -> House:
        return self.houses[name]

    def build(self, name: str, **fields) -> House:
        self.houses[name] = House(name, **fields)
        self.streets.names.add(name)
        return self.houses[name]

    def set_all(self, **fields: Any) -> None:
        """Set fields of every house."""
        for house in self.houses.values():
            for name, value in fields.items():
                setattr(house, name, value)

    def close_gates(self) -> None:
        for house in self.houses.values():
            house.gate.clear()

    async def check_answers(self, count: int) -> None:
        """Answers to so many requests are whole."""
        for number in range(count):
            request = ask(f"r{number}", prompt=(number, 2, 3))
            assert tokens_of(await collect(self.fleet, request)) == following(request)

    def house_of(self, request: str) -> House:
        """The house where a request runs now."""
        return next(house for house in self.houses.values() if request in house.running)

    def served(self, request: str) -> list[str]:
        """Names of the houses to which a request has been submitted."""
        return [h.name for h in self.houses.values() for r in h.requests if r.id == request]


async def build_town(
    names: str = "abc", timeouts: SupervisionTimeouts = PATIENCE, start: bool = True, **rules
) -> Town:
    houses = {name: House(name) for name in names}
    streets, notes = Streets(names), Notes()
    fleet = Fleet(
        lambda name: Remote(houses[name]), [streets], timeouts, replace(RULES, **rules), notes
    )
    made = Town(houses, streets, fleet, notes)
    if start:
        await fleet.start()
        await until_serving(made, len(names))
    return made


async def until_serving(town: Town, number: int) -> None:
    async with asyncio.timeout(5):
        while sum(w.is_serving for w in town.fleet.workers.values()) != number:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
