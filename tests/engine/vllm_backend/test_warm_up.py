"""Steps that are timed at a start, in simulated time; and step costs between the engines of one
gateway: a pretended engine process is asked for them.
"""

from __future__ import annotations

import asyncio
import logging
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from eaglegate.engine.errors import EngineDead
from eaglegate.engine.scripted import DEFAULT_INFO
from eaglegate.engine.steps import put
from eaglegate.engine.types import EngineInfo, EngineRequest, SpeculationInfo, Step, StepSink
from eaglegate.engine.vllm_backend.warm_up import StepCosts, list_batches, time_steps, warm_up

LEARNT: dict[str, object] = {"steps": 250}


class Core:
    """An engine process that has learnt ``learnt`` and takes costs if they ``fit``."""

    def __init__(
        self,
        learnt: dict[str, object] | None = None,
        fit: bool = True,
        failure: Exception | None = None,
    ) -> None:
        self._learnt, self._fit, self._failure = learnt, fit, failure
        self.given: list[object] = []

    def learn(self, learnt: dict[str, object]) -> None:
        self._learnt = learnt

    async def steer(self, method: str, *arguments: object) -> object:
        if self._failure is not None:
            raise self._failure
        if method == "export_costs":
            return self._learnt
        assert method == "restore_costs"
        self.given += arguments
        return self._fit


async def test_every_later_engine_is_given_them() -> None:
    costs, first, second, third = StepCosts(), Core(LEARNT), Core(), Core()
    assert not await costs.hand_over(first.steer)
    await costs.save(first.steer)
    assert await costs.hand_over(second.steer)
    assert await costs.hand_over(third.steer)
    assert (first.given, second.given, third.given) == ([], [LEARNT], [LEARNT])


async def test_costs_that_do_not_fit_are_logged_and_not_handed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    costs = StepCosts()
    await costs.save(Core(LEARNT).steer)
    with caplog.at_level(logging.WARNING):
        assert not await costs.hand_over(Core(fit=False).steer)
    assert "do not fit" in caplog.text


async def test_a_failure_is_logged_and_timed_anew(caplog: pytest.LogCaptureFixture) -> None:
    costs, broken = StepCosts(), Core(failure=RuntimeError("no such method"))
    with caplog.at_level(logging.WARNING):
        await costs.save(broken.steer)
        assert not await costs.hand_over(broken.steer)
        await costs.save(Core(LEARNT).steer)
        assert not await costs.hand_over(broken.steer)
    assert caplog.text.count("no such method") == 2


@pytest.mark.parametrize("learnt", [None, {}])
async def test_an_engine_that_knows_nothing_leaves_nothing(learnt: dict[str, object]) -> None:
    costs, later = StepCosts(), Core()
    await costs.save(Core(learnt).steer)
    assert not await costs.hand_over(later.steer)
    assert later.given == []


async def test_the_death_of_the_engine_is_no_failure_to_hand_over() -> None:
    """The engine's death fails the start."""
    costs, dead = StepCosts(), Core(failure=EngineDead("gone"))
    with pytest.raises(EngineDead):
        await costs.save(dead.steer)
    await costs.save(Core(LEARNT).steer)
    with pytest.raises(EngineDead):
        await costs.hand_over(dead.steer)


DEPTH = 7
BUDGET_S = 3.0


def make_info() -> EngineInfo:
    return replace(DEFAULT_INFO, speculation=SpeculationInfo("eagle3", DEPTH))


class SimulatedSelector(selectors.SelectSelector):
    """Time passes where a loop would sleep."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.now += max(0.0, timeout or 0.0)
        return super().select(0)


def run_simulated(made: Coroutine[Any, Any, None]) -> float:
    """The seconds that ``made`` would have taken."""
    selector = SimulatedSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(made)
        return selector.now


class SlowCore:
    """An engine that accepts all drafts, and cannot be stopped in a step."""

    def __init__(self, seconds: Callable[[list[int]], float]) -> None:
        """``seconds`` of a step of requests with these depths."""
        self._seconds = seconds
        self._running: dict[str, tuple[int, asyncio.Queue[None]]] = {}
        self._stepping: asyncio.Task[None] | None = None
        self.sizes: set[tuple[int, int]] = set()
        """Batch sizes and greatest depths of its steps."""

    async def generate(self, request: EngineRequest, sink: StepSink) -> None:
        queue: asyncio.Queue[None] = asyncio.Queue()
        self._running[request.id] = request.depth or 0, queue
        if self._stepping is None:
            self._stepping = asyncio.create_task(self._step())
        try:
            left = request.sampling.max_tokens
            while left > 0:
                await queue.get()
                tokens = min(left, 1 + (request.depth or 0))
                left -= tokens
                await put(Step((1,) * tokens), sink)
        finally:
            del self._running[request.id]

    async def _step(self) -> None:
        await asyncio.sleep(0)
        while batch := list(self._running.values()):
            depths = [depth for depth, _ in batch]
            self.sizes.add((len(depths), max(depths)))
            await asyncio.sleep(self._seconds(depths))
            for _, queue in batch:
                queue.put_nowait(None)
            await asyncio.sleep(0)
        self._stepping = None

    async def wait_idle(self) -> None:
        if self._stepping is not None:
            await self._stepping


def time_on(core: SlowCore, most: int = 64) -> float:
    """The seconds that timing takes, its last step included."""
    warm = 0.0

    async def start() -> None:
        nonlocal warm
        loop, info = asyncio.get_running_loop(), make_info()
        step_s = await warm_up(core.generate, info, lambda _: None)
        warm, core.sizes = loop.time(), set()
        await time_steps(core.generate, info, most, lambda _: None, BUDGET_S, step_s)
        await core.wait_idle()

    return run_simulated(start()) - warm


def throttled(share: float) -> Callable[[list[int]], float]:
    """The demo on a share of its cores: 3 ms, and more for requests and drafts."""
    return lambda depths: (3 + 0.4 * len(depths) + 0.3 * sum(depths)) / 1000 / share


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(throttled(1.0), id="demo"),
        pytest.param(throttled(0.05), id="throttled cores"),
        pytest.param(throttled(0.01), id="three engines on two busy cores"),
        pytest.param(lambda depths: 0.4 + 0.1 * sum(depths), id="large model"),
        pytest.param(lambda depths: 2.5 * len(depths), id="larger model"),
        pytest.param(lambda _: 60.0, id="model that is too large"),
    ],
)
def test_timing_ends_within_its_budget_on_any_machine(
    seconds: Callable[[list[int]], float],
) -> None:
    assert time_on(SlowCore(seconds)) < BUDGET_S + 1


def test_a_quick_machine_times_all_sizes() -> None:
    core = SlowCore(throttled(1.0))
    assert time_on(core) < BUDGET_S
    assert {(size, depth) for size in (1, 4, 16) for depth in (0, 1, 4, 7)} <= core.sizes


def test_a_slow_machine_times_what_tells_most() -> None:
    """One request, without drafts and with as many as there can be, before any larger batch."""
    core = SlowCore(throttled(0.05))
    time_on(core)
    assert {(1, 0), (1, DEPTH)} <= core.sizes
    assert (16, DEPTH) not in core.sizes


def test_batches_are_no_larger_than_the_engine_takes() -> None:
    assert {batch.size for batch in list_batches(DEPTH, 3)} == {1, 3}
    assert {batch.size for batch in list_batches(DEPTH, 1)} == {1}


@pytest.mark.parametrize("depth", [1, 2, 3, DEPTH])
def test_no_batch_is_timed_twice(depth: int) -> None:
    batches = list(list_batches(depth, 64))
    assert len(batches) == len(set(batches))


async def test_costs_learnt_from_traffic_are_saved_while_an_engine_serves() -> None:
    """A lost engine cannot be asked any more."""
    now = 0.0
    costs, core = StepCosts(lambda: now), Core(LEARNT)
    await costs.save(core.steer)
    assert not costs.is_due
    now = 10.0
    assert costs.is_due
    core.learn({"steps": 900})
    await costs.save(core.steer)
    assert not costs.is_due
    later = Core()
    assert await costs.hand_over(later.steer)
    assert later.given == [{"steps": 900}]
