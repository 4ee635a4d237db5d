"""A canary of one worker of a fleet: routing by arm, verdicts, and what becomes of the worker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from eaglegate.engine.base import Engine
from eaglegate.engine.fleet.fleet import Fleet
from eaglegate.engine.fleet.types import WorkerState
from eaglegate.engine.scripted import ScriptedEngine
from eaglegate.engine.types import EngineRequest
from eaglegate.features.canary import draft_command as command
from eaglegate.features.canary.canary import Canary, CanaryPlan
from eaglegate.features.canary.outcomes import CanaryVerdict
from eaglegate.features.canary.sequential import CanaryFindings, CanaryRules
from tests.engine.fleet.town import PATIENCE, RULES, Streets, until_serving
from tests.engine.supervision.mortal import Notes
from tests.features.canary.test_rules_canary import Machine, give_controls
from tests.server.conftest import Lab

pytestmark = pytest.mark.thorough

JUDGED = CanaryRules(min_blocks=4, max_blocks=60)
"""Rules with enough blocks for arms that serve at the same time, whose blocks count for fewer."""


@dataclass
class FleetMachine(Machine):
    """A fleet of scripted workers behind the gateway."""

    accepts: dict[str, float] = field(default_factory=dict)
    """Probability that a worker's draft token is accepted; 0.5 for others."""

    def open_engine(self) -> Engine:
        self.streets = Streets("abc")
        self.engines: dict[str, ScriptedEngine] = {}
        self.fleet = Fleet(self.make, [self.streets], PATIENCE, RULES, Notes())
        return self.fleet

    def make(self, name: str) -> ScriptedEngine:
        def play(request: EngineRequest) -> Any:
            return self.play(request, self.accepts.get(name, 0.5))

        known = self.engines.get(name)
        self.engines[name] = made = ScriptedEngine(play)
        if known is not None:
            made.requests = known.requests
            made.dead = known.dead
        return made

    def count(self) -> dict[str, int]:
        return {name: len(one.requests) for name, one in sorted(self.engines.items())}

    async def find_worker(self, session: str) -> str:
        before = self.count()
        await self.ask_session(session)
        return next(name for name, count in self.count().items() if count > before[name])

    async def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        self.interrupt()
        for _ in range(8):
            self.requests += 1
            await self.ask_session(f"session-{self.requests}" if self.requests % 4 else None)
        await asyncio.sleep(0.001)

    async def ask_session(self, session: str | None) -> None:
        body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
        headers = {} if session is None else {"x-session-id": session}
        answer = await self.lab.post("/v1/chat/completions", body, headers=headers)
        assert answer.status == 200

    async def try_worker(self, name: str, **plan: Any) -> CanaryFindings:
        change = self.changes.try_worker(name)
        made = CanaryPlan(**{"slot_s": 2.0, "rules": JUDGED, **plan})
        self.canary = Canary(made, change, self.telemetry, self.sleep, random.Random(1))
        await self.canary.start()
        return await self.canary.run()

    def find_state(self, name: str) -> WorkerState:
        return next(one.state for one in self.fleet.list_status() if one.name == name)


@pytest.fixture
async def machine(lab: Lab) -> AsyncIterator[FleetMachine]:
    made = FleetMachine(lab)
    made.changes.fleet = made.fleet
    await made.fleet.start()
    await until_serving(made, 3)  # type: ignore[arg-type]
    yield made
    await made.fleet.aclose()


async def test_a_better_worker_is_promoted(machine: FleetMachine) -> None:
    machine.accepts["b"] = 0.8
    found = await machine.try_worker("b")
    assert found.verdict is CanaryVerdict.PROMOTE, found.reason
    assert machine.find_state("b") is WorkerState.SERVING
    assert machine.fleet.reservations.candidate is None
    assert machine.policy.trial is None
    shown = machine.canary.describe()
    assert (shown["kind"], shown["by"], shown["worker"]) == ("worker", "sessions", "b")
    assert (shown["candidate"], shown["control"]) == ("b", "2 other workers")
    assert 0.15 < shown["cost"]["requests"] / machine.requests < 0.5, "one worker of three"


async def test_a_worse_worker_is_held(machine: FleetMachine) -> None:
    machine.accepts["b"] = 0.2
    found = await machine.try_worker("b")
    assert found.verdict is CanaryVerdict.ROLL_BACK, found.reason
    assert machine.find_state("b") is WorkerState.HELD
    before = machine.count()["b"]
    for at in range(30):
        await machine.ask_session(f"later-{at}")
    assert machine.count()["b"] == before
    machine.changes.release("b")
    for at in range(30):
        await machine.ask_session(f"later-{at}")
    assert machine.count()["b"] > before


async def test_sessions_stay_where_they_are(machine: FleetMachine) -> None:
    """No session moves when a canary starts, runs or ends; none is spilled meanwhile."""
    sessions = [f"s-{at}" for at in range(40)]
    before = [await machine.find_worker(session) for session in sessions]
    change = machine.changes.try_worker("b")
    await change.start()
    during = [[await machine.find_worker(session) for session in sessions] for _ in range(2)]
    arms = [change._draw(session).value for session in sessions]
    await change.leave()
    after = [await machine.find_worker(session) for session in sessions]
    assert during == [before, before]
    assert after == before
    assert [name == "b" for name in before] == [arm == "candidate" for arm in arms]
    assert set(before) == set("abc")


async def test_a_worker_that_dies_is_rolled_back_at_once(machine: FleetMachine) -> None:
    def interrupt() -> None:
        if machine.requests >= 40:
            machine.engines["b"].dead = "connection reset"

    machine.interrupt = interrupt
    found = await machine.try_worker("b", slot_s=1000.0)
    assert (found.verdict, found.ended) == (CanaryVerdict.ROLL_BACK, True)
    assert "failed while it was tried" in found.reason
    assert "b" in machine.fleet.reservations.held_names
    assert machine.slept_s < 60


async def test_a_worker_that_leaves_ends_it(machine: FleetMachine) -> None:
    def interrupt() -> None:
        if machine.requests >= 40:
            machine.streets.names.discard("b")

    machine.interrupt = interrupt
    found = await machine.try_worker("b", slot_s=1000.0)
    assert (found.verdict, found.ended) == (CanaryVerdict.UNDECIDED, True)
    assert found.reason == "the worker was removed from the fleet"
    assert not machine.fleet.reservations.held_names


async def test_a_held_worker_serves_rather_than_none(machine: FleetMachine) -> None:
    machine.fleet.reservations.held_names.add("b")
    machine.streets.names = {"b"}
    await machine.fleet._read(0, machine.streets)
    before = machine.count()["b"]
    await machine.ask_session("s")
    assert machine.count()["b"] == before + 1
    machine.streets.names = {"a"}
    await machine.fleet._read(0, machine.streets)
    assert not machine.fleet.reservations.held_names, "one that left comes back as a new one"


async def test_a_worker_is_tried_over_http(machine: FleetMachine) -> None:
    give_controls(machine)
    lab = machine.lab
    started = (await lab.call("POST", "/admin/canary", {"worker": "b"})).json["canary"]
    assert (started["worker"], started["running"]) == ("b", True)
    assert command._format_canary(started).startswith("running: b against 2 other workers")
    again = await lab.call("POST", "/admin/canary", {"worker": "c"})
    assert (again.status, again.json["error"]["code"]) == (409, "canary_running")
    await lab.call("DELETE", "/admin/canary")
    assert machine.fleet.reservations.candidate is None
    machine.fleet.reservations.held_names.add("b")
    lab.gateway.workers = machine.fleet.list_status
    status = (await lab.get("/admin/status")).json
    assert [one["state"] for one in status["workers"]] == ["serving", "held", "serving"]
    assert (await lab.call("POST", "/admin/canary/release", {"worker": "b"})).status == 200
    assert not machine.fleet.reservations.held_names


@pytest.mark.parametrize(
    ("url", "body", "says"),
    [
        ("canary", {"worker": "z"}, "Workers: a, b, c."),
        ("canary", {"worker": "b", "share": 0.5}, "'share' needs"),
        ("canary", {"worker": "b", "path": "x"}, "one thing"),
        ("canary", {"speculation": {"depth": 1}, "primary": "acceptance"}, "'tpot'"),
        ("canary/release", {"worker": "b"}, "is not held"),
        ("canary/release", {}, "worker"),
    ],
)
async def test_invalid_worker_canaries_are_refused(
    machine: FleetMachine, url: str, body: dict[str, Any], says: str
) -> None:
    give_controls(machine)
    answer = await machine.lab.call("POST", f"/admin/{url}", body)
    assert answer.status == 400
    assert says in answer.json["error"]["message"]
    assert machine.fleet.reservations.candidate is None


async def test_the_only_worker_cannot_be_tried(machine: FleetMachine) -> None:
    give_controls(machine)
    machine.fleet.reservations.held_names |= {"a", "c"}
    answer = await machine.lab.call("POST", "/admin/canary", {"worker": "b"})
    assert (answer.status, answer.json["error"]["code"]) == (400, "change_refused")
