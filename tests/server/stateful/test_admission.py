"""Random histories of quotas and admission against a simple model."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    rule,
    run_state_machine_as_test,
)

from eaglegate.server.access.quota import KeyQuota
from eaglegate.server.errors import TooManyRequests

OWNERS = st.sampled_from(["ann", "bob"])
OTHER = {"ann": "bob", "bob": "ann"}
FEW = settings(
    max_examples=15, stateful_step_count=25,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


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


def test_quotas_follow_their_model():
    run_state_machine_as_test(Quotas, settings=settings(FEW, max_examples=100))
