"""A canary over a draft manager with simulated traffic: verdicts, collapse, whatever goes wrong."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eaglegate.engine.errors import DraftRefused, EngineDead
from eaglegate.engine.events import Ending
from eaglegate.engine.speculation.drafts import swap
from eaglegate.engine.speculation.drafts.files import DraftPlan
from eaglegate.engine.speculation.drafts.swap import DraftManager
from eaglegate.engine.speculation.policy.policy import SpeculationPolicy
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import Arm
from eaglegate.features.canary.arms import (
    ArmsNow,
    ArmSums,
    Collapsed,
    check_collapse,
    measure_request,
)
from eaglegate.features.canary.canary import Canary, CanaryPlan
from eaglegate.features.canary.changes import CanaryChanges
from eaglegate.features.canary.drafts import DraftChange
from eaglegate.features.canary.outcomes import CanaryBusy, CanaryVerdict
from eaglegate.features.canary.promoted import PromotedRules
from eaglegate.features.canary.runner import CanaryRunner
from eaglegate.features.canary.sequential import CanaryRules
from eaglegate.observability.facts import FactBus, RequestEnded
from eaglegate.text.events import Outcome
from tests.engine.speculation.test_drafts import Loader, copy_draft, make_manager

RULES = CanaryRules(min_blocks=6, min_sessions=20, max_blocks=40)


@dataclass
class SimulatedTraffic:
    """Answers requests while a slot sleeps, each by the draft that serves."""

    manager: DraftManager
    gains: dict[str, float] = field(default_factory=dict)
    """Accepted tokens per verify step by fingerprint; 2 for others."""
    fails: Callable[[str], bool] = lambda _: False
    seed: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.facts = FactBus()
        self.totals: dict[str, Totals] = {}
        self.slept_s = 0.0
        self.sessions = 0
        self.interrupt: Callable[[float], None] = lambda _: None
        self.stalls: Callable[[str], bool] = lambda _: False
        """Whether the current request of a draft times out five seconds later."""
        self.stalled: list[tuple[float, SimpleNamespace]] = []
        self.hostile: Callable[[SimpleNamespace], None] | None = None
        """Changes every third request, which is of a key of its own."""

    def total_of(self, draft: str) -> Totals:
        return self.totals.get(draft, Totals())

    async def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        self.interrupt(self.slept_s)
        for _ in range(6):
            self.answer()
        self.time_out()
        await asyncio.sleep(0)

    def answer(self) -> None:
        assert self.manager.serving is not None
        draft = self.manager.serving.fingerprint
        self.sessions += 1
        accepted = max(0, round(40 * self.gains.get(draft, 2.0) * self.random.uniform(0.8, 1.2)))
        totals = Totals(requests=1, tokens=accepted + 40, verify_steps=40, accepted=accepted)
        self.totals[draft] = self.total_of(draft) + totals
        ending = Ending.ENGINE if self.fails(draft) else Ending.COMPLETED
        is_hostile = self.hostile is not None and self.sessions % 3 == 0
        key = None if self.hostile is None else "hostile" if is_hostile else "honest"
        record = make_record(f"s-{self.sessions}", draft, totals, ending, key)
        if self.hostile is not None and is_hostile:
            self.hostile(record)
        if self.stalls(draft):
            record.ending = Ending.TIMEOUT
            self.stalled.append((self.slept_s + 5, record))
        else:
            self.facts.publish(RequestEnded(None, record))  # type: ignore[arg-type]

    def time_out(self) -> None:
        """End the requests that are due, after more than two slots in a row: both drafts served
        them."""
        while self.stalled and self.stalled[0][0] <= self.slept_s:
            _, record = self.stalled.pop(0)
            record.drafts = (*record.drafts, *({*self.totals} - {*record.drafts}))
            self.facts.publish(RequestEnded(None, record))  # type: ignore[arg-type]


def make_record(
    session: str,
    draft: str,
    totals: Totals,
    ending: Ending = Ending.COMPLETED,
    key: str | None = None,
) -> SimpleNamespace:
    choice = SimpleNamespace(tpot=0.04 / totals.tokens, tools=())
    return SimpleNamespace(
        facts=SimpleNamespace(id=session, session=session, key=key, chose_timeout=False),
        slices=SimpleNamespace(labels=SimpleNamespace(workload="chat")),
        ending=ending,
        totals=totals,
        choices=(choice,),
        drafts=(draft,),
    )


@dataclass
class Scene:
    manager: DraftManager
    loader: Loader
    traffic: SimulatedTraffic
    path: str
    control: str

    def make_canary(self, **plan: Any) -> Canary:
        made = CanaryPlan(**{"slot_s": 2.0, "rules": RULES, **plan})
        draws = random.Random(1)
        return Canary(made, self.make_change(), self.traffic, self.traffic.sleep, draws)

    def make_change(self) -> DraftChange:
        return DraftChange(self.path, self.manager, self.traffic)

    def make_runner(self) -> CanaryRunner:
        policy = SpeculationPolicy()
        memory = PromotedRules(None, policy.rules)
        return CanaryRunner(CanaryChanges(self.traffic, policy, memory, drafts=self.manager))


@pytest.fixture(autouse=True)
def inspect_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inspect candidates in this process: another one would take longer than a simulated canary."""

    def check(plan: DraftPlan, draft: str, running: str) -> Mapping[str, str]:
        report = plan.check(draft, running)
        return {"method": report.method, "summary": report.summary}

    monkeypatch.setattr(swap, "check_apart", check)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    manager, loader = make_manager()
    path = str(copy_draft(tmp_path / "candidate", 1))
    assert manager.serving is not None
    return Scene(manager, loader, SimulatedTraffic(manager), path, manager.serving.fingerprint)


async def start(scene: Scene, gain: float, **plan: Any) -> Canary:
    canary = scene.make_canary(**plan)
    await canary.start()
    scene.traffic.gains[canary.change.candidate] = gain
    return canary


async def test_a_better_candidate_is_promoted(scene: Scene) -> None:
    canary = await start(scene, 2.6)
    found = await canary.run()
    assert found.verdict is CanaryVerdict.PROMOTE, found.reason
    assert scene.manager.promoted == scene.manager.serving
    assert scene.manager.promoted is not None
    assert scene.manager.promoted.fingerprint != scene.control
    told = canary.describe()
    assert (told["verdict"], told["ended"]) == ("promote", True)
    assert told["cost"]["extra_steps"] < 0, "a better draft saves steps"
    assert {row["metric"] for row in told["evidence"]} > {"acceptance", "acceptance:chat", "tpot"}


async def test_a_worse_candidate_is_rolled_back(scene: Scene) -> None:
    found = await (await start(scene, 1.6)).run()
    assert found.verdict is CanaryVerdict.ROLL_BACK
    assert served(scene) == scene.control


async def test_a_collapse_is_rolled_back_in_the_first_seconds(scene: Scene) -> None:
    canary = await start(scene, 0.05, slot_s=1000.0)
    scene.traffic.totals[scene.control] = Totals(requests=1, verify_steps=100, accepted=200)
    canary._draws = SimpleNamespace(shuffle=lambda arms: arms.reverse())  # type: ignore[assignment]
    found = await canary.run()
    assert found.verdict is CanaryVerdict.ROLL_BACK
    assert "collapsed" in found.reason
    assert scene.traffic.slept_s <= 2
    assert served(scene) == scene.control
    cost = canary.describe()["cost"]
    assert cost["served_s"] <= 2
    assert cost["tokens"] < 1.1 * cost["verify_steps"]
    assert cost["extra_steps"] == pytest.approx(cost["verify_steps"] - cost["tokens"] / 3, abs=5)


async def test_an_engine_that_restarts_under_the_candidate_rolls_it_back(scene: Scene) -> None:
    canary = await start(scene, 2.0)

    def interrupt(_: float) -> None:
        if scene.manager.in_trial and scene.traffic.sessions > 60:
            scene.manager.choose_path()

    scene.traffic.interrupt = interrupt
    found = await canary.run()
    assert (found.verdict, found.ended) == (CanaryVerdict.ROLL_BACK, True)
    assert "engine restart" in found.reason
    assert served(scene) == scene.control


async def test_an_engine_that_restarts_before_the_first_slot_is_not_given_the_candidate_again(
    scene: Scene,
) -> None:
    canary = await start(scene, 2.0)
    scene.manager.choose_path()
    found = await canary.run()
    assert found.verdict is CanaryVerdict.ROLL_BACK
    assert "engine restart" in found.reason
    assert scene.traffic.slept_s == 0
    assert served(scene) == scene.control


async def test_failing_requests_roll_it_back(scene: Scene) -> None:
    canary = await start(scene, 2.6)
    scene.traffic.fails = lambda draft: draft != scene.control
    found = await canary.run()
    assert found.verdict is CanaryVerdict.ROLL_BACK
    assert found.reason == "failed is worse than its margin"


async def test_requests_that_time_out_after_their_slot_roll_it_back(scene: Scene) -> None:
    """Most of them end while the promoted draft serves."""
    canary = await start(scene, 2.6)
    draws = random.Random(2)
    scene.traffic.stalls = lambda draft: draft != scene.control and draws.random() < 0.2
    found = await canary.run()
    assert found.verdict is CanaryVerdict.ROLL_BACK
    assert found.reason == "failed is worse than its margin"
    cost = canary.describe()["cost"]
    assert cost["failed"] > 0.1 * cost["requests"]


@pytest.mark.thorough
async def test_time_outs_of_both_drafts_decide_nothing(tmp_path: Path) -> None:
    path, verdicts = str(copy_draft(tmp_path / "candidate", 1)), Counter[CanaryVerdict]()
    for seed in range(20):
        manager, loader = make_manager()
        assert manager.serving is not None
        traffic = SimulatedTraffic(manager, seed=seed)
        scene = Scene(manager, loader, traffic, path, manager.serving.fingerprint)
        traffic.stalls = lambda _, traffic=traffic: traffic.sessions % 5 == 0  # type: ignore[misc]
        canary = scene.make_canary(rules=replace(RULES, max_blocks=20))
        canary._draws = random.Random(seed)
        await canary.start()
        verdicts[(await canary.run()).verdict] += 1
    assert verdicts[CanaryVerdict.UNDECIDED] >= 19, verdicts


async def test_a_request_that_no_draft_served_counts_for_the_slot_it_came_in(scene: Scene) -> None:
    now = 0.0
    change = scene.make_change()
    change._clock = lambda: now
    await change.start()
    record = make_record("s", scene.control, Totals(tokens=1), Ending.TIMEOUT)
    record.drafts = ()
    for arm in (Arm.CONTROL, Arm.CANDIDATE, Arm.CONTROL):
        now += 10.0
        await change.enter(arm)
    expected = {9.0: None, 10.0: Arm.CONTROL, 25.0: Arm.CANDIDATE, 31.0: Arm.CONTROL}
    for admitted, arm in expected.items():
        record.facts.admitted = admitted
        assert change.find_start(record) is arm  # type: ignore[arg-type]
        assert change.find_arm(record) is None, "its speed is nobody's"  # type: ignore[arg-type]


def time_out(record: SimpleNamespace) -> None:
    record.ending, record.facts.chose_timeout = Ending.TIMEOUT, True


def fail(record: SimpleNamespace) -> None:
    record.ending = Ending.TIMEOUT


def fail_calls(record: SimpleNamespace) -> None:
    record.choices = (SimpleNamespace(tpot=0.001, tools=(Outcome.MALFORMED,)),)


def break_schema(record: SimpleNamespace) -> None:
    record.choices = (SimpleNamespace(tpot=0.001, tools=(Outcome.SCHEMA_MISMATCH,)),)


def write_noise(record: SimpleNamespace) -> None:
    record.totals = Totals(requests=1, tokens=40, verify_steps=40, accepted=0)


@pytest.mark.parametrize("attack", [time_out, fail, fail_calls, break_schema, write_noise])
@pytest.mark.parametrize("arm", list(Arm))
async def test_no_verdict_rests_on_the_requests_of_one_key(
    scene: Scene, attack: Callable[[SimpleNamespace], None], arm: Arm
) -> None:
    """A client sees the arm of its requests, and sends them to one of two equal drafts."""
    canary = await start(scene, 2.0, rules=replace(RULES, max_blocks=20))

    def act(record: SimpleNamespace) -> None:
        if (record.drafts[0] == scene.control) is (arm is Arm.CONTROL):
            attack(record)

    scene.traffic.hostile = act
    found = await canary.run()
    assert found.verdict is CanaryVerdict.UNDECIDED, found.reason
    assert served(scene) == scene.control


@pytest.mark.parametrize("slower", [1.5, 6.0])
async def test_no_verdict_rests_on_the_load_of_one_key(scene: Scene, slower: float) -> None:
    """A client sends long requests in the candidate's slots alone, which slows all others there."""
    canary = await start(scene, 2.0, rules=replace(RULES, max_blocks=20))

    def is_candidate(record: SimpleNamespace) -> bool:
        return bool(record.drafts[0] != scene.control)

    def load(record: SimpleNamespace) -> None:
        if is_candidate(record):
            record.totals = Totals(requests=1, tokens=2000, verify_steps=40, accepted=80)

    def slow(fact: RequestEnded) -> None:
        record: Any = fact.record
        if is_candidate(record):
            record.choices = (SimpleNamespace(tpot=slower * record.choices[0].tpot, tools=()),)

    scene.traffic.hostile = load
    scene.traffic.facts.subscribe(RequestEnded, slow)
    found = await canary.run()
    assert found.verdict is CanaryVerdict.UNDECIDED, found.reason


@pytest.mark.parametrize(
    ("gain", "verdict"), [(3.0, CanaryVerdict.PROMOTE), (1.0, CanaryVerdict.ROLL_BACK)]
)
async def test_a_verdict_that_every_key_confirms_is_reached(
    scene: Scene, gain: float, verdict: CanaryVerdict
) -> None:
    canary = await start(scene, gain)
    scene.traffic.hostile = lambda _: None
    assert (await canary.run()).verdict is verdict


async def test_deadlines_of_clients_are_no_evidence_even_with_a_single_key(scene: Scene) -> None:
    canary = await start(scene, 2.0, rules=replace(RULES, max_blocks=20))
    scene.traffic.fails = lambda draft: draft != scene.control

    def time_out_failures(fact: RequestEnded) -> None:
        record: Any = fact.record
        if record.ending is not Ending.COMPLETED:
            time_out(record)

    scene.traffic.facts.subscribe(RequestEnded, time_out_failures)
    found = await canary.run()
    assert found.verdict is CanaryVerdict.UNDECIDED, found.reason


async def test_an_equal_candidate_is_not_promoted(scene: Scene) -> None:
    found = await (await start(scene, 2.0)).run()
    assert found.verdict is CanaryVerdict.UNDECIDED
    assert found.blocks == RULES.max_blocks
    assert served(scene) == scene.control


async def test_a_dead_engine_ends_the_canary(scene: Scene) -> None:
    canary = await start(scene, 2.0)
    scene.loader.error = EngineDead("gone")
    found = await canary.run()
    assert (found.verdict, found.ended) == (CanaryVerdict.ROLL_BACK, True)
    assert "engine restart" in found.reason, "it died while the candidate served"


async def test_an_engine_that_dies_under_the_promoted_draft_decides_nothing(scene: Scene) -> None:
    canary = await start(scene, 2.0)

    def interrupt(_: float) -> None:
        if not scene.manager.in_trial:
            scene.loader.error = EngineDead("gone")

    scene.traffic.interrupt = interrupt
    found = await canary.run()
    assert (found.verdict, found.ended) == (CanaryVerdict.UNDECIDED, True)
    assert "could not be exchanged" in found.reason


async def test_an_operator_who_loads_a_third_draft_ends_it(scene: Scene, tmp_path: Path) -> None:
    canary = await start(scene, 2.0)
    third = await scene.manager.swap(str(copy_draft(tmp_path / "third", 3)))
    found = await canary.run()
    assert found.verdict is CanaryVerdict.UNDECIDED
    assert served(scene) == third.after


async def test_the_promoted_draft_cannot_be_its_own_candidate(scene: Scene) -> None:
    await scene.manager.swap(scene.path)
    with pytest.raises(DraftRefused, match="promoted draft itself"):
        await scene.make_canary().start()


async def test_a_runner_runs_one_and_a_stop_serves_the_promoted_draft(scene: Scene) -> None:
    runner = scene.make_runner()
    assert runner.describe() is None and not [*runner.list_headlines()]
    plan = CanaryPlan(slot_s=1000.0)
    await runner.start(scene.make_change(), plan)
    await asyncio.sleep(0)
    candidate = runner.describe()["candidate"]
    assert [*runner.list_headlines()] == [f"canary {candidate}: running, 0 blocks"]
    with pytest.raises(CanaryBusy):
        await runner.start(scene.make_change(), plan)
    await runner.stop()
    assert [*runner.list_headlines()] == [f"canary {candidate}: stopped, 0 blocks"]
    assert served(scene) == scene.control
    assert {verdict: count for verdict, count in runner.verdicts.items() if count} == {"stopped": 1}


async def test_a_stop_in_the_middle_of_a_swap_waits_for_it(scene: Scene) -> None:
    runner = scene.make_runner()
    scene.loader.gate = asyncio.Event()
    scene.loader.gate.set()
    await runner.start(scene.make_change(), CanaryPlan(slot_s=1000.0))
    scene.loader.gate.clear()
    for _ in range(3):
        await asyncio.sleep(0)
    stopping = asyncio.create_task(runner.stop())
    await asyncio.sleep(0.01)
    scene.loader.gate.set()
    await stopping
    assert served(scene) == scene.control
    assert not scene.traffic.facts._subscribers[RequestEnded]


async def test_a_request_that_ran_over_a_swap_counts_for_none(scene: Scene) -> None:
    canary = await start(scene, 2.0)
    control, candidate = canary.change.control, canary.change.candidate
    record = make_record("s", control, Totals(requests=1, tokens=9, verify_steps=3, accepted=5))
    assert canary.change.find_arm(record) is Arm.CONTROL  # type: ignore[arg-type]
    record.drafts = (control, candidate)
    assert canary.change.find_arm(record) is None  # type: ignore[arg-type]
    assert dict(measure_request(record))["acceptance"] == pytest.approx(1 + 5 / 3)  # type: ignore[arg-type]


def served(scene: Scene) -> str:
    assert scene.manager.serving is not None
    assert not scene.manager.in_trial
    return scene.manager.serving.fingerprint


def make_arms(failed: dict[str, int]) -> ArmsNow:
    """Return the sums of keys with 20 requests each in both arms, of which the candidate failed
    as many as given."""
    control, candidate = ArmSums(), ArmSums()
    for count in failed.values():
        control.requests += 20
        candidate.requests, candidate.failed = candidate.requests + 20, candidate.failed + count
    rests = (
        ArmsNow(candidate - ArmSums(20, count), control - ArmSums(20)) for count in failed.values()
    )
    return ArmsNow(candidate, control, tuple(rests) if len(failed) > 1 else ())


@pytest.mark.parametrize(
    ("failed", "collapses"),
    [
        ({"only": 20}, True),
        ({"only": 9}, False),
        ({"a": 20, "b": 20}, True),
        ({"a": 20, "b": 5}, False),
    ],
)
def test_a_collapse_shows_without_any_one_key(failed: dict[str, int], collapses: bool) -> None:
    with pytest.raises(Collapsed) if collapses else nullcontext():
        check_collapse(make_arms(failed))


@pytest.mark.parametrize("control_s", [0.0, 0.01])
def test_a_control_without_times_says_nothing_of_the_candidates(control_s: float) -> None:
    candidate, control = (ArmSums(20, 0, 20, 400, seconds) for seconds in (4.0, control_s))
    with pytest.raises(Collapsed) if control_s else nullcontext():
        check_collapse(ArmsNow(candidate, control))
