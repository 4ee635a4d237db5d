"""Step costs between the engines of one gateway: a pretended engine process is asked for them."""

from __future__ import annotations

import logging

import pytest

from engine.errors import EngineDead
from engine.vllm_backend.warm_up import StepCosts

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


async def test_what_does_not_fit_is_logged_and_timed_anew(
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
    """It fails the start."""
    costs, dead = StepCosts(), Core(failure=EngineDead("gone"))
    with pytest.raises(EngineDead):
        await costs.save(dead.steer)
    await costs.save(Core(LEARNT).steer)
    with pytest.raises(EngineDead):
        await costs.hand_over(dead.steer)
