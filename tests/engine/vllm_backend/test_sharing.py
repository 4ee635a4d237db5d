"""The sharing of steps in vLLM's scheduler: a pretended model with step times of its own."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.core.sched.output import SchedulerOutput

from eaglegate.engine.types import CLASS_PRIORITIES
from eaglegate.engine.vllm_backend.scheduler import describe_planning
from eaglegate.engine.vllm_fields import LATENCY, TENANT, WEIGHT
from eaglegate.features.fair_share.engine.step_plugin import StepSharing
from eaglegate.features.fair_share.fair_share import DecodingRow, FairShare, Ration
from tests.engine.vllm_backend.test_scheduler import MOST, Pretence


class TimedPretence(Pretence):
    """A step takes 10 ms, 2 ms for each request, and 1 ms for each draft and 4 prompt tokens."""

    now = 0.0

    def _process(self, planned: SchedulerOutput, prefilling: set[str]) -> None:
        self.scheduler.planning.clock = lambda: self.now
        drafts = sum(map(len, planned.scheduled_spec_decode_tokens.values()))
        tokens = sum(planned.num_scheduled_tokens.values())
        rows = len(planned.num_scheduled_tokens)
        prompt = max(0, tokens - rows - drafts)
        self.now += 0.01 + 0.002 * rows + 0.001 * drafts + 0.00025 * prompt
        super()._process(planned, prefilling)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("mode", ["auto", "off"])
def test_a_latency_class_keeps_its_time_beside_others(mode: str, asynchronous: bool) -> None:
    pretence = TimedPretence(asynchronous)
    pretence.scheduler.set_planning(mode)
    seconds = {}
    for others in (0, 6):
        for at in range(others):
            pretence.add(f"slow{at}", max_tokens=150, **{TENANT: "slow"})
        name = f"fast{others}"
        pretence.add(name, max_tokens=240, **{TENANT: "fast", LATENCY: 0.0})
        while name not in pretence.steps:
            pretence.step()
        began = pretence.now
        while name not in pretence.finished:
            pretence.step()
        seconds[others] = pretence.now - began
    assert seconds[6] < 1.1 * seconds[0]
    found: Any = describe_planning(SimpleNamespace(scheduler=pretence.scheduler), 0)["sharing"]  # type: ignore[arg-type]
    keys = found["keys"]["slow"]
    assert found["held_rows"] == keys["waited"] > 0
    assert keys["in_step"] > 0
    assert 0 < found["added"] / found["steps"] < 0.1
    assert found["prices"]["request"] == pytest.approx(0.002 / 0.012, rel=1)
    pretence.run(2000)
    for at in range(6):
        steps = pretence.steps[f"slow{at}"]
        assert 1 + sum(step.delivered for step in steps) == 150


def test_requests_of_the_latency_class_go_first() -> None:
    pretence = TimedPretence()
    for name in ("slow0", "slow1"):
        pretence.add(name, prompt=list(range(60)))
    pretence.add("fast", prompt=list(range(60)), **{LATENCY: 0.0})
    output = pretence.step()
    assert next(iter(output.num_scheduled_tokens)) == "fast"


def test_waiting_prompts_are_in_the_order_of_their_classes() -> None:
    """Without ``--scheduling-policy priority``, numbers within a class change nothing."""
    pretence = Pretence()
    classes = {"low": 1, "normal0": 0, "audit": 16, "high": -1, "normal1": 0}
    numbers = {"normal0": 9, "normal1": -9}
    for name, level in classes.items():
        priority = level * CLASS_PRIORITIES + numbers.get(name, 0)
        pretence.add(name, prompt=list(range(40)), priority=priority)
    order = list(pretence.step().num_scheduled_tokens)
    assert order == ["high", "normal0", "normal1", "low", "audit"]


def get_share(pretence: Pretence) -> FairShare:
    plugins = pretence.scheduler.plugins
    (sharing,) = (plugin for plugin in plugins if isinstance(plugin, StepSharing))
    return sharing.share


def ration_at_random(pretence: Pretence, seed: int) -> None:
    """Hold requests, cut drafts and limit prompts at random: nothing may depend on it."""
    rng = random.Random(seed)
    share: Any = get_share(pretence)

    def ration(rows: list[DecodingRow], prompt: int, _depth: int) -> Ration:
        others = [row for row in rows if not share.is_latency(row.name)]
        held = [row.name for row in others if rng.random() < 0.5]
        widths = {row.name: rng.randint(0, row.width) for row in others if row.name not in held}
        return Ration(widths, held, rng.choice([0, 1, 7, prompt]) if prompt else None)

    share.ration = ration


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_every_token_is_accounted_for_in_any_sharing(seed: int, asynchronous: bool) -> None:
    pretence = Pretence(asynchronous)
    ration_at_random(pretence, seed)
    pretence.accepts = {"slow0": 0, "slow1": 1}
    pretence.add("fast", max_tokens=60, **{LATENCY: 5.0})
    for at in range(4):
        prompt = list(range(20 * at + 4))
        pretence.add(f"slow{at}", prompt=prompt, **{TENANT: f"k{at % 2}", WEIGHT: 1.0 + at})
    pretence.run(1000)
    for name, steps in pretence.steps.items():
        expected = 60 if name == "fast" else 50
        assert 1 + sum(step.delivered for step in steps) == expected, name
        assert all(step.drafted <= MOST for step in steps)
    assert len(pretence.steps) == 5
    assert pretence.scheduler.max_num_scheduled_tokens > 7
    assert not get_share(pretence).is_needed
