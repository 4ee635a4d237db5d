"""A share of the engine's time for audits and trials."""

from __future__ import annotations

from eaglegate.engine.speculation.policy.time_budget import TimeBudget


def test_work_is_paid_from_a_share_of_the_time_and_from_what_was_saved() -> None:
    now = [0.0]
    budget = TimeBudget(0.1, 5.0, lambda: now[0], 1.0)
    assert budget.has_time()
    budget.spend(3.0)
    assert not budget.has_time()
    now[0] = 19.0
    assert not budget.has_time()
    now[0] = 21.0
    assert budget.has_time()
    now[0] = 1000.0
    assert budget.has_time()
    budget.spend(5.0)
    assert not budget.has_time()
    assert budget.share_spent == 8.0 / 1000.0


def test_some_work_leaves_seconds_for_other_work() -> None:
    budget = TimeBudget(0.1, 5.0, lambda: 10.0, 5.0)
    assert budget.has_time(3.0)
    budget.spend(2.0)
    assert not budget.has_time(3.0)
    assert budget.has_time()
