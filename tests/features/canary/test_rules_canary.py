"""A canary of rules, from the request to the verdict: policy, scripted engine, telemetry, test."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eaglegate.engine.base import Engine
from eaglegate.engine.errors import EngineFailed
from eaglegate.engine.speculation.policy.policy import FlagMode, SpeculationFlag, SpeculationRules
from eaglegate.engine.supervision.policy import EngineLoss, LossCause, create_loss
from eaglegate.engine.types import Arm, DecodeStep, EngineRequest, Step, UndraftedReason
from eaglegate.features.canary import draft_command as command
from eaglegate.features.canary.canary import Canary, CanaryPlan
from eaglegate.features.canary.changes import CanaryChanges
from eaglegate.features.canary.outcomes import CanaryVerdict
from eaglegate.features.canary.promoted import PromotedRules
from eaglegate.features.canary.runner import CanaryRunner
from eaglegate.features.canary.sequential import CanaryFindings, CanaryRules
from eaglegate.observability.engine import InstrumentedEngine
from eaglegate.observability.facts import RequestEnded
from eaglegate.server.apis.shared.gateway import Controls
from eaglegate.text.events import FinishReason
from tests.observability.scene import make_telemetry
from tests.server.conftest import EOS, Lab, on_a_port

pytestmark = pytest.mark.thorough

RULES = CanaryRules.for_tpot(min_blocks=4, max_blocks=12)
MORE_BLOCKS = replace(RULES, max_blocks=60)
"""Rules for arms that serve at the same time: their blocks count for fewer."""
TEXT = "a b c d e f g h i j k l m n o p q r s t u v w x y z"
STEP_S, DRAFT_S = 0.01, 0.004
"""Time of a step, and of each draft token in it: at depth 1 answers are the fastest."""


@dataclass
class Machine:
    """A simulated engine that accepts half of all drafts; steps take time on a clock of its own."""

    lab: Lab
    now: float = 0.0
    slept_s: float = 0.0
    requests: int = 0
    fails: Callable[[EngineRequest], bool] = lambda _: False
    slow_at: int = -1
    """Depth at which a step takes nine times as long."""
    losses: list[EngineLoss] = field(default_factory=list)
    interrupt: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.random = random.Random(3)
        names = {"models": ("demo",), "lanes": ("speculative", "plain")}
        self.telemetry = make_telemetry(clock=lambda: self.now, **names)
        engine = InstrumentedEngine(self.open_engine(), self.telemetry)
        self.lab.gateway.observer = self.telemetry
        self.lab.gateway.open(replace(self.lab.path(), engine=engine))
        self.policy = self.lab.gateway.require().policy
        self.memory = PromotedRules(None, self.policy.rules)
        self.changes = CanaryChanges(self.telemetry, self.policy, self.memory, lambda: self.losses)

    def open_engine(self) -> Engine:
        self.lab.engine.script = self.play
        return self.lab.engine

    def play(self, request: EngineRequest, accepts: float = 0.5) -> Iterator[Any]:
        ids = self.lab.renderer.encode(TEXT + EOS, False)
        depth = 3 if request.depth is None else request.depth
        yield Step(tuple(ids[:1]))
        at = 1
        while at < len(ids):
            if self.fails(request):
                yield EngineFailed("out of luck")
            slower = 9 if request.depth == self.slow_at else 1
            self.now += (STEP_S + DRAFT_S * depth) * slower
            accepted = 0
            most = min(depth, len(ids) - at - 1)
            while accepted < most and self.random.random() < accepts:
                accepted += 1
            part = tuple(ids[at : at + accepted + 1])
            at += len(part)
            undrafted = None if depth else UndraftedReason.OFF
            account = DecodeStep(depth, accepted, len(part), undrafted=undrafted)
            yield Step(part, (account,), finish=FinishReason.STOP if at >= len(ids) else None)

    async def sleep(self, seconds: float) -> None:
        """Five sessions of a request or two each second."""
        self.slept_s += seconds
        self.interrupt()
        for _ in range(5):
            self.requests += 1
            for _ in range(self.random.choice((1, 1, 2))):
                await self.ask(f"session-{self.requests}")

    async def ask(self, session: str, **fields: Any) -> EngineRequest:
        body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], **fields}
        headers = {"x-session-id": session}
        await self.lab.post("/v1/chat/completions", body, headers=headers)
        return self.lab.engine.requests[-1]

    def make_canary(
        self, rules: SpeculationRules, share: float | None = None, **plan: Any
    ) -> Canary:
        rules_of_test = RULES if share is None else MORE_BLOCKS
        made = CanaryPlan(**{"slot_s": 2.0, "rules": rules_of_test, **plan})
        change = self.changes.try_rules(rules, share)
        return Canary(made, change, self.telemetry, self.sleep, random.Random(1))

    async def run(
        self, rules: SpeculationRules, share: float | None = None, **plan: Any
    ) -> CanaryFindings:
        self.canary = self.make_canary(rules, share, **plan)
        await self.canary.start()
        return await self.canary.run()


@pytest.fixture
def machine(lab: Lab) -> Machine:
    return Machine(lab)


HOW = pytest.mark.parametrize("share", [None, 0.5], ids=["slots", "sessions"])


@HOW
async def test_better_rules_are_promoted(machine: Machine, share: float | None) -> None:
    found = await machine.run(SpeculationRules(depth=1), share)
    assert found.verdict is CanaryVerdict.PROMOTE, found.reason
    assert found.reason.startswith("tpot is better")
    assert machine.policy.rules == SpeculationRules(depth=1)
    assert machine.policy.trial is None
    assert (await machine.ask("later")).depth == 1
    shown = machine.canary.describe()
    assert (shown["kind"], shown["candidate"]) == ("speculation", '{"depth": 1}')
    assert shown["cost"]["extra_s"] < 0, "better rules save time"


@HOW
async def test_worse_rules_are_rolled_back(machine: Machine, share: float | None) -> None:
    machine.policy.rules = before = SpeculationRules(depth=1)
    found = await machine.run(SpeculationRules(depth=3), share)
    assert found.verdict is CanaryVerdict.ROLL_BACK, found.reason
    assert "tpot" in found.reason
    assert (machine.policy.rules, machine.policy.trial) == (before, None)
    assert machine.canary.describe()["cost"]["extra_s"] > 0


async def test_rules_that_lose_one_workload_are_not_promoted(machine: Machine) -> None:
    """Chat gains; the other workload, which a header names, loses more than its margin."""
    machine.policy.rules = SpeculationRules(workload_depths={"tools": 1})

    async def sleep(seconds: float) -> None:
        machine.slept_s += seconds
        for at in range(6):
            machine.requests += 1
            body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
            headers = {"x-eaglegate-workload": "tools"} if at % 2 else {}
            await machine.lab.post("/v1/chat/completions", body, headers=headers)

    machine.sleep = sleep  # type: ignore[method-assign]
    found = await machine.run(SpeculationRules(depth=1, workload_depths={"tools": 3}), 0.5)
    assert found.verdict is not CanaryVerdict.PROMOTE
    assert {"tpot:chat", "tpot:tools"} <= {one.metric for one in found.evidence}


@HOW
async def test_rules_under_which_requests_fail_go_in_seconds(
    machine: Machine, share: float | None
) -> None:
    machine.fails = lambda request: request.depth == 1
    found = await machine.run(SpeculationRules(depth=1), share, slot_s=20.0)
    assert (found.verdict, found.ended) == (CanaryVerdict.ROLL_BACK, True)
    assert "requests fail" in found.reason
    assert machine.canary.measure_cost()["served_s"] <= 15
    assert machine.policy.trial is None


async def test_an_engine_that_is_lost_ends_the_candidate_at_once(machine: Machine) -> None:
    def interrupt() -> None:
        if machine.requests == 30:
            machine.losses.append(create_loss(LossCause.DIED, "it died", 1.0, None))

    machine.interrupt = interrupt
    found = await machine.run(SpeculationRules(depth=1), 0.5)
    assert (found.verdict, found.blocks) == (CanaryVerdict.ROLL_BACK, 1)
    assert found.reason == "an engine was lost while the candidate served"


async def test_rules_that_an_operator_changes_end_it(machine: Machine) -> None:
    def interrupt() -> None:
        if machine.requests == 30:
            machine.policy.rules = SpeculationRules(depth=2)

    machine.interrupt = interrupt
    found = await machine.run(SpeculationRules(depth=1), 0.5)
    assert (found.verdict, found.ended) == (CanaryVerdict.UNDECIDED, True)
    assert machine.policy.rules.depth == 2


@HOW
async def test_the_depth_of_a_client_takes_precedence_over_the_candidate(
    machine: Machine, share: float | None
) -> None:
    """The client's wish wins even if the candidate switches speculation off; its request is in
    neither arm."""
    seen: list[Any] = []
    off = SpeculationRules(flag=SpeculationFlag(FlagMode.OFF))
    canary = machine.make_canary(off, share)
    await canary.start()
    if share is None:
        await canary.change.enter(Arm.CANDIDATE)
    machine.telemetry.facts.subscribe(RequestEnded, lambda fact: seen.append(fact.record))
    depths = {(await machine.ask(f"s-{at}", num_speculative_tokens=2)).depth for at in range(20)}
    assert depths == {2}
    assert {record.facts.arm for record in seen} == {None}
    depths = {(await machine.ask(f"s-{at}")).depth for at in range(20)}
    assert depths == ({0} if share is None else {None, 0})
    await canary.change.leave()


async def test_a_request_counts_for_the_slot_that_served_all_of_it(machine: Machine) -> None:
    seen: list[Any] = []
    canary = machine.make_canary(SpeculationRules(depth=1))
    await canary.start()
    await canary.change.enter(Arm.CANDIDATE)
    machine.telemetry.facts.subscribe(RequestEnded, lambda fact: seen.append(fact.record))
    await machine.ask("s")
    (record,) = seen
    assert canary.change.find_arm(record) is Arm.CANDIDATE
    await canary.change.enter(Arm.CONTROL)
    assert canary.change.find_arm(record) is None, "it began in the slot before"
    waited = SimpleNamespace(facts=replace(record.facts, admitted=time.perf_counter()))
    assert canary.change.find_arm(waited) is None, "it got its rules in the slot before"  # type: ignore[arg-type]
    await canary.change.leave()


async def test_failures_count_after_the_block_in_which_their_session_began(
    machine: Machine,
) -> None:
    """A request that times out fails minutes later; each session's failure counts once."""
    again: list[str] = []

    async def sleep(seconds: float) -> None:
        machine.slept_s += seconds
        for _ in range(4):
            machine.requests += 1
            machine.fails = lambda _: False
            await machine.ask(f"s-{machine.requests}")
            again.append(f"s-{machine.requests}")
            machine.fails = lambda request: request.depth == 1
            if machine.requests > 20 and machine.requests % 4 == 0:
                late = again.pop(0)
                await machine.ask(late)
                await machine.ask(late)

    machine.sleep = sleep  # type: ignore[method-assign]
    longer = replace(RULES, max_blocks=30)
    canary = machine.make_canary(SpeculationRules(depth=1), 0.5)
    canary._test.rules = longer
    await canary.start()
    found = await canary.run()
    assert found.verdict is CanaryVerdict.ROLL_BACK
    assert found.reason == "failed is worse than its margin"


async def test_a_session_counts_in_the_block_in_which_it_began(machine: Machine) -> None:
    """The blocks would not be independent of each other otherwise."""

    async def sleep(seconds: float) -> None:
        machine.slept_s += seconds
        for at in range(8):
            await machine.ask(f"for-ever-{at}")

    machine.sleep = sleep  # type: ignore[method-assign]
    found = await machine.run(SpeculationRules(depth=1), 0.5)
    assert found.verdict is CanaryVerdict.UNDECIDED
    assert {one.interval.blocks for one in found.evidence} <= {0, 1}


def give_controls(machine: Machine) -> CanaryRunner:
    async def reload() -> dict[str, Any]:
        return {}

    runner = CanaryRunner(machine.changes)
    machine.lab.gateway.controls = Controls(reload, None)  # type: ignore[arg-type]
    machine.lab.gateway.features["canary"] = SimpleNamespace(runner=runner)
    machine.changes.policy.listeners.append(machine.changes.memory.forget)
    return runner


async def test_rules_are_tried_over_http(machine: Machine) -> None:
    give_controls(machine)
    lab = machine.lab
    body = {"speculation": {"depth": 1}, "share": 0.5, "slot_s": 60}
    started = (await lab.call("POST", "/admin/canary", body)).json["canary"]
    assert (started["kind"], started["by"], started["running"]) == (
        "speculation", "sessions", True,
    )  # fmt: skip
    assert started["speculation"] == {"depth": 1}
    again = await lab.call("POST", "/admin/canary", body)
    assert (again.status, again.json["error"]["code"]) == (409, "canary_running")
    stopped = (await lab.call("DELETE", "/admin/canary")).json["canary"]
    assert stopped["running"] is False
    assert machine.policy.trial is None
    assert command._format_canary(stopped).startswith(
        'stopped: {"depth": 1} against the default rules'
    )


async def test_a_canary_tries_a_bound_of_lookups(machine: Machine) -> None:
    give_controls(machine)
    lab = machine.lab
    pipeline = lab.gateway.require()
    speculation = replace(pipeline.info.speculation, lookup=8)
    lab.gateway.pipeline = replace(pipeline, info=replace(pipeline.info, speculation=speculation))
    body = {"speculation": {"lookup": 0}, "share": 0.5, "slot_s": 60}
    started = (await lab.call("POST", "/admin/canary", body)).json["canary"]
    assert started["speculation"] == {"lookup": 0}
    requests = [await machine.ask(f"s-{index}") for index in range(30)]
    bounds = {Arm.CANDIDATE: 0, Arm.CONTROL: None}
    assert [request.lookup for request in requests] == [bounds[request.arm] for request in requests]
    assert {request.arm for request in requests} == set(bounds)
    await lab.call("DELETE", "/admin/canary")
    assert (await machine.ask("later")).lookup is None


async def test_rules_that_an_operator_sets_end_the_memory_of_promoted_ones(
    machine: Machine, tmp_path: Path
) -> None:
    machine.changes.memory = memory = PromotedRules(str(tmp_path), SpeculationRules())
    await machine.run(SpeculationRules(depth=1))
    assert memory.choose().depth == 1
    give_controls(machine)
    await machine.lab.call("PUT", "/admin/speculation", {"depth": 2})
    assert memory.choose().depth is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        ({"path": "x", "speculation": {"depth": 1}}, None),
        ({"path": "x", "share": 0.5}, "share"),
        ({"speculation": {"depth": 1}, "share": 1}, "share"),
        ({"speculation": {"depth": 9}}, "speculation.depth"),
        ({"speculation": {"workload_depths": {"poetry": 1}}}, "speculation.workload_depths"),
        ({"speculation": {"key_depths": {"k": 1}}}, "speculation.key_depths"),
        ({"speculation": {"bound": 1}}, "speculation.bound"),
        ({"speculation": {"lookup": 4}}, "speculation.lookup"),
        ({"speculation": {}}, None),
    ],
)
async def test_invalid_canaries_are_refused_with_their_parameter(
    machine: Machine, body: dict[str, Any], param: str | None
) -> None:
    give_controls(machine)
    answer = await machine.lab.call("POST", "/admin/canary", body)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
    assert machine.policy.trial is None


def test_the_command_starts_it(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    give_controls(machine)
    machine.lab.gateway.admin_port = None
    with on_a_port(machine.lab.app) as url:
        machine.lab.gateway.admin_port = int(url.rpartition(":")[2])
        at = ["--url", url]
        assert command.main(["canary", "--speculation", '{"depth": 1}', "--share", "0.5", *at]) == 0
        assert 'running: {"depth": 1} against the default rules' in capsys.readouterr().out
        assert command.main(["canary", "--stop", *at]) == 0
        assert command.main(["canary", "--speculation", "{", *at]) == 1
        assert "JSON" in capsys.readouterr().err
        assert command.main(["canary", "path", "--speculation", "{}", *at]) == 1
