"""A state machine of hypothesis with an event loop of its own."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

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
