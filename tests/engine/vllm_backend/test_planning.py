"""The depth planner in the scheduler: a pretended model says how many drafts it accepts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest
from vllm.v1.core.sched.output import SchedulerOutput

from eaglegate.engine.speculation.planner.planner import DepthPlan
from eaglegate.engine.speculation.planner.step_cost import ObservedStep
from eaglegate.engine.types import DepthReason, UndraftedReason
from eaglegate.engine.vllm_backend.planning import MIN_HOLES, RandomPlanner, name_slice
from eaglegate.engine.vllm_backend.runners import SecondRunner
from eaglegate.engine.vllm_backend.scheduler import planning_scheduler
from eaglegate.engine.vllm_fields import TRACED, UNTAUGHT, pack_rates
from tests.engine.vllm_backend import test_scheduler
from tests.engine.vllm_backend.test_scheduler import MOST, Pretence


def finish(pretence: Pretence, *names: str) -> None:
    for _ in range(400):
        if set(names) <= pretence.finished:
            return
        pretence.step()
    raise AssertionError(f"not finished: {set(names) - pretence.finished}")


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("mode", ["auto", "random"])
def test_every_token_is_accounted_for(mode: str, asynchronous: bool) -> None:
    pretence = Pretence(asynchronous)
    assert pretence.scheduler.set_planning(mode) == mode
    pretence.accepts = {"bad": 0}
    for name in ("bad", "good", "own"):
        pretence.add(name, depth=2 if name == "own" else None)
    finish(pretence, "bad", "good", "own")
    for name, steps in pretence.steps.items():
        assert 1 + sum(step.delivered for step in steps) == 50, name
        assert all(step.drafted <= MOST for step in steps)
    assert all(step.drafted <= 2 for step in pretence.steps["own"])


def test_requests_teach_the_slice_and_tenant_they_bring() -> None:
    pretence = Pretence()
    pretence.scheduler.set_planning("auto")
    pretence.add("a", traffic="agent", tenant="team-a")
    pretence.add("b", traffic="chat")
    finish(pretence, "a", "b")
    found = pretence.scheduler.planning.copy_slices()()
    assert {(one["tenant"], one["traffic"]) for one in found} == {
        ("team-a", "agent/answer/1k"),
        ("", "chat/answer/1k"),
    }


def test_off_and_on_again_keeps_what_was_learnt() -> None:
    pretence = Pretence()
    pretence.scheduler.set_planning("auto")
    pretence.add("a")
    finish(pretence, "a")
    before = pretence.scheduler.planning.describe()
    assert pretence.scheduler.set_planning("off") == "off"
    pretence.add("b")
    finish(pretence, "b")
    assert pretence.scheduler.planning.describe() == {"mode": "off"}
    pretence.scheduler.set_planning("auto")
    assert pretence.scheduler.planning.describe()["steps_by_depth"] == before["steps_by_depth"]


def test_a_worker_can_plan_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_scheduler, "scheduler", planning_scheduler)
    pretence = Pretence()
    pretence.add("a", traffic="agent", tenant="team-a")
    for _ in range(3):
        pretence.step()
    assert pretence.scheduler.planning.describe()["mode"] == "auto"
    assert [one["tenant"] for one in pretence.scheduler.planning.copy_slices()()] == ["team-a"]


def test_modes_can_change_under_running_requests() -> None:
    pretence = Pretence()
    pretence.add("a")
    pretence.add("b")
    for mode in ("auto", "off", "random", "auto", "off"):
        pretence.scheduler.set_planning(mode)
        for _ in range(3):
            pretence.step()
    finish(pretence, "a", "b")
    assert all(1 + sum(s.delivered for s in steps) == 50 for steps in pretence.steps.values())


def test_answers_with_many_holes_have_a_slice_of_their_own() -> None:
    pretence = Pretence()
    pretence.scheduler.set_planning("auto")
    pretence.scheduler.planning.freeze(0)
    pretence.add("a", traffic="chat")
    for _ in range(MIN_HOLES // 2):
        pretence.step()
    assert name_slices(pretence) == {"chat/answer/1k"}
    for _ in range(MIN_HOLES):
        pretence.step()
    pretence.scheduler.planning.freeze(None)
    finish(pretence, "a")
    assert name_slices(pretence) == {"chat/answer/1k", "chat/answer/1k/holes"}


def name_slices(pretence: Pretence) -> set[str]:
    return {str(one["traffic"]) for one in pretence.scheduler.planning.copy_slices()()}


def test_a_slice_is_named_by_workload_phase_context_temperature_and_holes() -> None:
    assert name_slice("agent", False, False, 1023) == "agent/answer/1k"
    assert name_slice("agent", True, False, 1024) == "agent/reasoning/2k"
    assert name_slice("chat", False, True, 5000) == "chat/answer/8k/holes"
    assert name_slice("chat", False, False, 1, 0.0) == "chat/answer/1k/greedy"
    assert name_slice("chat", False, True, 1, 1.2) == "chat/answer/1k/hot/holes"
    assert name_slice("chat", False, True, 1, has_images=True) == "chat/answer/1k/images/holes"


def test_step_costs_go_to_another_engine_and_acceptance_does_not() -> None:
    first, second = Pretence(), Pretence()
    ticks = count()
    first.scheduler.planning.clock = lambda: 0.01 * next(ticks)  # time of each step, in seconds
    assert first.scheduler.planning.export_costs() == {}
    first.scheduler.set_planning("auto")
    assert first.scheduler.planning.export_costs() == {}
    first.add("a", tenant="team-a")
    finish(first, "a")
    costs = first.scheduler.planning.export_costs()
    assert not second.scheduler.planning.restore_costs(costs)
    second.scheduler.set_planning("auto")
    assert second.scheduler.planning.restore_costs(costs)
    assert second.scheduler.planning.export_costs() == costs
    before, after = (one.scheduler.planning.describe() for one in (first, second))
    assert after["cost"]["steps"] == before["cost"]["steps"]
    step_ms = np.array(before["cost"]["table"]["step_ms"])
    assert np.array(after["cost"]["table"]["step_ms"]) == pytest.approx(step_ms, rel=0.05)
    assert not any(map(int, after["steps_by_depth"]))
    assert (after["traffic"], after["recent"], after["committed_tokens"]) == ([], [], 0)


def test_another_draft_keeps_the_step_costs_and_no_acceptance() -> None:
    pretence = Pretence()
    pretence.scheduler.set_planning("auto")
    pretence.add("a", tenant="team-a")
    finish(pretence, "a")
    costs = pretence.scheduler.planning.export_costs()
    assert name_slices(pretence)
    pretence.scheduler.forget_draft()
    assert pretence.scheduler.planning.export_costs() == costs
    assert not name_slices(pretence)


class Watching(RandomPlanner):
    """Remembers the steps that it was shown, and can be told the widths to plan."""

    def __init__(self, widths: dict[str, int] | None = None) -> None:
        super().__init__(MOST)
        self.seen: list[tuple[int, ...]] = []
        self.plans: list[DepthPlan] = []
        self.verified: list[DepthPlan | None] = []
        """The plans of the steps that it was shown."""
        self._given = widths

    def plan(
        self, requests: Sequence[str], bounds: list[int], floors: list[int] | None = None
    ) -> DepthPlan:
        if self._given is None:
            return super().plan(requests, bounds, floors)
        widths = [self._given[name] for name in requests]
        rates = (float(len(self.plans)), 0.5)
        plan = DepthPlan(max(widths), widths, DepthReason.COST, 1.0, 1.0, rates, 0.125)
        self.plans.append(plan)
        return plan

    def observe_step(self, step: ObservedStep, plan: DepthPlan | None = None) -> None:
        self.verified.append(plan)
        self.seen.append((step.batch, step.verified, step.depth, step.prompt))


def watch(pretence: Pretence, widths: dict[str, int] | None = None) -> Watching:
    pretence.scheduler.set_planning("random")
    watching = Watching(widths)
    planning: Any = pretence.scheduler.planning
    planning._planner = watching
    return watching


@pytest.mark.parametrize("second_runner", [False, True])
def test_the_time_of_a_step_goes_with_the_drafts_that_were_made_in_it(second_runner: bool) -> None:
    """The second runner hands out a step's tokens before it drafts."""
    pretence = Pretence()
    if second_runner:
        pretence.scheduler.runner = SecondRunner(pretence.scheduler.vllm_config)
    watching = watch(pretence)
    pretence.add("a")
    made = [pretence.step().num_spec_tokens_to_schedule for _ in range(12)]
    assert len(set(made)) > 2
    seen = [depth for _, _, depth, _ in watching.seen]
    assert seen == (made[1:-1] if second_runner else made[1:])


def test_a_step_with_a_piece_of_a_prompt_is_shown_as_such() -> None:
    pretence = Pretence()
    watching = watch(pretence, {"a": 2, "b": 2})
    pretence.add("a")
    pretence.step()
    pretence.step()
    pretence.add("b", prompt=list(range(30)))
    pretence.step()
    assert watching.seen == [(1, 2, 2, 0), (1, 2, 2, 30)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_step_is_shown_with_the_plan_that_it_verified(asynchronous: bool) -> None:
    """Its account has the plan's rates if the request is traced and has no depth of its own."""
    pretence = Pretence(asynchronous)
    watching = watch(pretence, {"a": 2, "b": 0, "c": 1, "d": 1})
    pretence.add("a", **{TRACED: 1})
    pretence.add("b", **{TRACED: 1})
    pretence.add("c", 1, **{TRACED: 1})
    pretence.add("d")
    for _ in range(6):
        pretence.step()
    verified = [plan for plan in watching.verified if plan is not None]
    assert len(verified) >= 4
    assert verified == watching.plans[: len(verified)]
    packed = [pack_rates(plan.rates, plan.token_price) for plan in verified]
    assert pretence.rates["a"] == pretence.rates["b"] == packed
    assert not any(pretence.rates["c"] + pretence.rates["d"])
    assert {step.undrafted for step in pretence.steps["b"]} == {UndraftedReason.PLANNED}
    assert {step.planned for step in pretence.steps["b"]} == {DepthReason.COST}


def test_the_widths_of_a_step_that_is_under_way_stay() -> None:
    """Pipeline parallelism plans another step before this one's drafts are verified."""
    pretence = Pretence()
    watch(pretence, {"a": 1, "b": 3})
    planning = pretence.scheduler.planning
    a, b = pretence.add("a"), pretence.add("b")
    planning.plan([(a, MOST)])
    planning.plan([(b, MOST)])
    assert (planning.get_width(a, MOST), planning.get_width(b, MOST)) == (1, 3)
    planning.forget(a)
    assert planning.get_width(a, MOST) == MOST


@pytest.mark.parametrize("held", [0, 2])
def test_a_held_depth_stays_held_when_the_draft_is_exchanged(held: int) -> None:
    pretence = Pretence()
    pretence.scheduler.set_planning("auto")
    assert pretence.scheduler.planning.freeze(held)
    pretence.scheduler.forget_draft()
    assert pretence.scheduler.planning.describe()["frozen"] == held
    pretence.add("a")
    finish(pretence, "a")
    steps = pretence.scheduler.planning.describe()["steps_by_reason"]
    assert steps["frozen"] == sum(steps.values()) > 0
    pretence.scheduler.planning.freeze(None)
    pretence.scheduler.forget_draft()
    assert pretence.scheduler.planning.describe()["frozen"] is None


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_request_that_teaches_nothing_keeps_its_depth_and_leaves_no_trace(
    asynchronous: bool,
) -> None:
    pretence = Pretence(asynchronous)
    pretence.scheduler.set_planning("auto")
    pretence.add("trial", depth=MOST, traffic="chat", tenant="doctor", **{UNTAUGHT: 1})
    finish(pretence, "trial")
    assert name_slices(pretence) == set()
    pretence.scheduler.planning.freeze(1)
    pretence.add("other", traffic="chat", max_tokens=100)
    pretence.add("trial 2", depth=MOST, traffic="agent", **{UNTAUGHT: 1})
    finish(pretence, "other", "trial 2")
    assert name_slices(pretence) == {"chat/answer/1k"}
    for name in ("trial", "trial 2"):
        assert max(step.drafted for step in pretence.steps[name]) == MOST
    assert max(step.drafted for step in pretence.steps["other"]) == 1


def test_the_time_of_a_step_that_encodes_images_is_not_learnt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its acceptance is."""
    pretence = Pretence()
    watching = watch(pretence)
    pretence.add("a")
    pretence.step()
    pretence.step()
    seen = len(watching.seen)
    observe = pretence.scheduler.planning.observe

    def encode(output: SchedulerOutput, *accounts: Any) -> None:
        output.scheduled_encoder_inputs = {"a": [0]}
        observe(output, *accounts)

    monkeypatch.setattr(pretence.scheduler.planning, "observe", encode)
    pretence.step()
    assert len(watching.seen) == seen
    monkeypatch.undo()
    pretence.step()
    assert len(watching.seen) == seen + 1
