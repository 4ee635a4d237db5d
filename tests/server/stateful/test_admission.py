"""Random histories of quotas and admission against a simple model."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from eaglegate.server.access.admission import Admission, AdmissionLimits
from eaglegate.server.access.caller import Requester
from eaglegate.server.access.fair_order import Priority
from eaglegate.server.access.quota import KeyQuota
from eaglegate.server.errors import TooManyRequests

OWNERS = st.sampled_from(["ann", "bob"])
OTHER = {"ann": "bob", "bob": "ann"}
FEW = settings(
    max_examples=15, stateful_step_count=25,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


class Machine(RuleBasedStateMachine):
    """A rule-based state machine with an event loop of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()

    def wait(self, awaitable):
        async def bounded():
            async with asyncio.timeout(20):
                return await awaitable

        return self.runner.run(bounded())

    def settle(self, rounds: int = 6) -> None:
        async def turns():
            for _ in range(rounds):
                await asyncio.sleep(0)

        self.wait(turns())

    def teardown(self) -> None:
        self.runner.close()


class Quotas(RuleBasedStateMachine):
    """A bucket holds so much, fills so fast, and is one key's own."""

    REQUESTS, TOKENS = 6, 60

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.quotas = {
            name: KeyQuota(name, self.REQUESTS, self.TOKENS, lambda: self.now) for name in OTHER
        }
        self.levels = {name: [float(self.REQUESTS), float(self.TOKENS)] for name in OTHER}

    @rule(seconds=st.sampled_from([0.0, 0.5, 9.0, 10.0, 61.0, 1e5]))
    def pass_time(self, seconds):
        self.now += seconds
        for levels in self.levels.values():
            levels[0] = min(self.REQUESTS, levels[0] + seconds * self.REQUESTS / 60)
            levels[1] = min(self.TOKENS, levels[1] + seconds * self.TOKENS / 60)

    @rule(name=OWNERS)
    def take(self, name):
        levels = self.levels[name]
        if min(levels) > 1 - 1e-6 and min(levels) < 1 + 1e-6:
            return  # too close for floating point
        try:
            self.quotas[name].take()
        except TooManyRequests as error:
            assert min(levels) < 1
            short = 1 if levels[1] < 1 else 0
            rate = (self.REQUESTS, self.TOKENS)[short] / 60
            assert error.retry_after_s == pytest.approx((1 - levels[short]) / rate)
        else:
            assert min(levels) >= 1
            levels[0] -= 1

    @rule(name=OWNERS, tokens=st.integers(0, 200))
    def pay(self, name, tokens):
        """A debt is at most one minute's tokens."""
        left = max(-self.TOKENS, self.levels[name][1] - tokens)
        assert self.quotas[name].pay(tokens) == pytest.approx(self.levels[name][1] - left)
        self.levels[name][1] = left


class Asking:
    """One request on its way through the admission."""

    def __init__(self, admission, visitor):
        self.stack = ExitStack()
        self.place = self.stack.enter_context(admission.enter(visitor))
        self.task = None

    @property
    def state(self):
        if self.task is None:
            return "rendering"
        if not self.task.done():
            return "waiting"
        if self.task.cancelled():
            return "gone"
        return "refused" if self.task.exception() else "running"


class Admissions(Machine):
    """Bounds hold, nobody is lost, and who may run does."""

    asking = Bundle("asking")
    BOUNDS = AdmissionLimits(running=4, queued=5, queued_tokens=100)

    @initialize(classes=st.lists(st.sampled_from(list(Priority)), min_size=2, max_size=2))
    def open(self, classes):
        self.now = 0.0
        self.admission = Admission(self.BOUNDS, lambda: self.now)
        self.visitors = {
            name: Requester(name, priority, weight=weight)
            for name, priority, weight in zip(OTHER, classes, (1, 2), strict=True)
        }
        self.all: list[Asking] = []

    @rule(target=asking, name=OWNERS)
    def enter(self, name):
        visitor, queued = self.visitors[name], self.admission.queued
        try:
            self.admission.check(visitor)
            asking = Asking(self.admission, visitor)
        except TooManyRequests as error:
            assert queued == self.BOUNDS.queued
            assert error.retry_after_s >= 1
            rivals = [a for a in self.all if a.place.flow.name != visitor.flow and queues(a)]
            mine = len([a for a in self.all if a.place.flow.name == visitor.flow and queues(a)])
            other = self.visitors[OTHER[name]]
            if rivals and other.priority == visitor.priority:
                assert (mine + 1) / visitor.weight >= len(rivals) / other.weight
            assert not (rivals and other.priority > visitor.priority)
            return multiple()
        self.all.append(asking)
        self.settle()
        return asking

    @rule(asking=asking, sequences=st.integers(1, 6), tokens=st.integers(0, 60))
    def admit(self, asking, sequences, tokens):
        if asking in self.all and asking.task is None:

            async def begin():
                asking.task = asyncio.ensure_future(asking.place.admit(sequences, tokens))

            self.wait(begin())
            self.settle()

    @rule(asking=consumes(asking), served=st.booleans())
    def leave(self, asking, served):
        if asking in self.all:
            self._leave(asking, served)

    def _leave(self, asking, served=True):
        async def end():
            if asking.task is not None and not asking.task.done():
                asking.task.cancel()
                await asyncio.gather(asking.task, return_exceptions=True)
            if served and asking.state == "running":
                asking.place.record_served()
            asking.stack.close()

        self.all.remove(asking)
        self.wait(end())
        self.settle()

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 40.0, 100.0]))
    def pass_time(self, seconds):
        self.now += seconds

    @invariant()
    def counts_are_right(self):
        if not hasattr(self, "admission"):
            return
        running = [a.place for a in self.all if a.state == "running"]
        waiting = [a.place for a in self.all if a.state == "waiting"]
        admission = self.admission
        assert admission.running == sum(place.sequences for place in running)
        assert admission.running <= self.BOUNDS.running or len(running) == 1
        assert admission.queued == len([a for a in self.all if queues(a)]) <= self.BOUNDS.queued
        assert admission.queued_tokens == sum(place.tokens for place in waiting)
        assert admission.queued_tokens <= self.BOUNDS.queued_tokens
        assert admission.num_in_flight == len(self.all)

    @invariant()
    def an_idle_engine_starts_whoever_is_next(self):
        if hasattr(self, "admission") and not self.admission.running:
            assert not [asking for asking in self.all if asking.state == "waiting"]

    @precondition(lambda self: len(getattr(self, "all", ())) > 3)
    @rule()
    def everybody_leaves_and_the_rest_runs(self):
        while leaving := [asking for asking in self.all if asking.state != "waiting"]:
            for asking in leaving:
                self._leave(asking)
        assert not self.all
        assert self.admission.running == self.admission.queued == 0


def queues(asking):
    place = asking.place
    return place.admitted is None and place.displaced is None and asking.state != "refused"


def test_quotas_follow_their_model():
    run_state_machine_as_test(Quotas, settings=settings(FEW, max_examples=100))


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_admission_follows_its_model():
    run_state_machine_as_test(Admissions, settings=settings(FEW, max_examples=2000))
