"""The circuit's states and the pauses between probes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglegate.engine.fleet.types import BreakerSettings
from eaglegate.engine.fleet.worker import CircuitBreaker, CircuitState

RULES = BreakerSettings(failures=3, backoff_s=1.0, max_backoff_s=10.0, jitter=0.5)


def closed(chance: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker(RULES, lambda: chance)
    breaker.close()
    return breaker


def test_a_circuit_begins_with_a_probe():
    assert CircuitBreaker(RULES).state is CircuitState.HALF_OPEN


def test_failures_in_a_row_open_it_and_no_others():
    breaker = closed()
    for _ in range(5):
        breaker.record_failure(0.0)
        breaker.record_failure(0.0)
        breaker.record_success()
    assert breaker.is_closed
    for _ in range(3):
        breaker.record_failure(7.0)
    assert breaker.state is CircuitState.OPEN
    assert (breaker.retry_at, breaker.num_opened) == (8.0, 1)


def test_pauses_double_up_to_a_bound_and_begin_anew_after_a_success():
    breaker, pauses = closed(), []
    for _ in range(6):
        breaker.open(0.0)
        pauses.append(breaker.retry_at)
        breaker.begin_probe()
        breaker.close()
    assert pauses == [1, 2, 4, 8, 10, 10]
    breaker.record_success()
    breaker.open(0.0)
    assert breaker.retry_at == 1


@given(st.floats(0, 1))
def test_chance_shortens_a_pause_by_its_part_at_most(chance):
    breaker = closed(chance)
    breaker.open(0.0)
    assert 0.5 <= breaker.retry_at <= 1.0


def test_failures_of_running_requests_do_not_postpone_the_next_try():
    breaker = closed()
    breaker.open(5.0)
    at = breaker.retry_at
    for _ in range(9):
        breaker.record_failure(6.0)
    assert (breaker.state, breaker.retry_at, breaker.num_opened) == (CircuitState.OPEN, at, 1)


def test_a_probe_that_fails_opens_it_without_counting_as_another_opening():
    breaker = closed()
    breaker.open(0.0)
    breaker.begin_probe()
    breaker.open(1.0)
    assert breaker.retry_at == pytest.approx(3.0)
    assert breaker.num_opened == 1
