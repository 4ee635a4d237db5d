"""The scheduler's part of lookups on the second model runner, with a pretended worker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from eaglegate.engine.speculation.planner.step_graphs import StepGraphs
from eaglegate.engine.types import DecodeStep, Drafter
from eaglegate.engine.vllm_contract import DRAFT_DEPTH, DRAFT_K
from eaglegate.engine.vllm_fields import LATENCY, LOOKUP_BOUND, UNTAUGHT
from eaglegate.features.lookups.engine.contract import LOOKUP, MIN_MATCHES, PROPOSALS
from eaglegate.features.lookups.engine.second_runner import SecondLookups
from eaglegate.features.lookups.engine.worker_plugin import init_states
from tests.engine.vllm_backend.test_scheduler import MOST, Pretence

WIDTH = 7
UNIT = [*range(1000, 1020)]
BOTH = pytest.mark.parametrize("asynchronous", [False, True])


class SecondPretence(Pretence):
    """Requests whose prompt repeats ``UNIT`` go on with it, and the worker finds that."""

    def __init__(self, asynchronous: bool, patch: pytest.MonkeyPatch) -> None:
        def prepare(config: VllmConfig) -> None:
            patch.setattr(VllmConfig, "use_v2_model_runner", True)
            config.additional_config = {LOOKUP: WIDTH, DRAFT_K: MOST}

        super().__init__(asynchronous, prepare, num_speculative_tokens=WIDTH)
        plugins = self.scheduler.plugins
        (self.lookups,) = (plugin for plugin in plugins if isinstance(plugin, SecondLookups))
        self.rows: dict[str, list[int]] = {}
        """What the worker has proposed for each request, as in ``PROPOSALS``."""
        update = self.scheduler.update_from_output

        def update_from_output(planned: SchedulerOutput, result: ModelRunnerOutput) -> Any:
            rows = [self.rows.get(name, [0] + [-1] * MOST) for name in result.req_ids]
            setattr(result, PROPOSALS, np.array(rows))
            outputs = update(planned, result)
            self._propose(planned)
            return outputs

        patch.setattr(self.scheduler, "update_from_output", update_from_output)

    def copy(self, name: str, **options: Any) -> None:
        self.add(name, prompt=[*UNIT * 2, *UNIT[:4]], max_tokens=100, **options)

    def _propose(self, planned: SchedulerOutput) -> None:
        depth = getattr(planned, DRAFT_DEPTH)
        assert planned.num_spec_tokens_to_schedule == WIDTH, "or vLLM erases the lookup's columns"
        for name in planned.num_scheduled_tokens:
            is_lookup = name in getattr(planned, MIN_MATCHES) and name.startswith("copy")
            drafts = [next(self._fresh) for _ in range(depth)]
            self.rows[name] = [int(is_lookup), *drafts, *[-1] * (MOST - depth)]

    def _sample(self, name: str, planned: SchedulerOutput) -> list[int]:
        if not name.startswith("copy"):
            return super()._sample(name, planned)
        width = len(planned.scheduled_spec_decode_tokens.get(name, []))
        accepted = width if self.rows.get(name, [0])[0] else 0
        end = len(self._request(name).all_token_ids)
        return [UNIT[(end + index) % len(UNIT)] for index in range(accepted + 1)]

    def select(self, name: str, drafter: Drafter) -> list[DecodeStep]:
        return [step for step in self.steps[name] if step.drafter is drafter and step.drafted]


@BOTH
def test_a_copy_is_verified_as_a_wide_lookup(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SecondPretence(asynchronous, monkeypatch)
    world.copy("copy")
    world.add("other")
    world.run()
    lookups = world.select("copy", Drafter.LOOKUP)
    assert max(step.drafted for step in lookups) == WIDTH
    assert sum(step.accepted + step.cut for step in lookups) > 60
    assert all(step.drafted <= MOST for step in world.select("copy", Drafter.DRAFT))
    assert world.select("other", Drafter.LOOKUP) == []
    assert {step.drafted for step in world.steps["other"][:-2]} == {MOST}
    assert world.lookups._widths == world.lookups._min_matches == {}


@BOTH
@pytest.mark.parametrize(
    ("options", "widest"),
    [({"depth": 0}, 0), ({UNTAUGHT: 1}, MOST), ({LOOKUP_BOUND: 0}, MOST), ({"depth": 5}, 5)],
)
def test_requests_get_no_longer_lookups_than_they_may(
    asynchronous: bool, options: dict[str, Any], widest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SecondPretence(asynchronous, monkeypatch)
    world.copy("copy", **options)
    world.run()
    assert max(step.drafted for step in world.steps["copy"]) == widest
    assert bool(world.select("copy", Drafter.LOOKUP)) == (widest > MOST)


@BOTH
def test_a_latency_class_keeps_the_draft_s_widths(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SecondPretence(asynchronous, monkeypatch)
    world.add("fast", max_tokens=240, **{LATENCY: 0})
    world.copy("copy")
    while world.scheduler.requests.get("fast"):
        world.step()
    assert world.select("copy", Drafter.LOOKUP)
    assert max(step.drafted for step in world.steps["copy"]) <= MOST


@BOTH
def test_a_step_keeps_its_graph(asynchronous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world = SecondPretence(asynchronous, monkeypatch)
    world.scheduler.planning.graphs = StepGraphs((0, 1, 3, 7), tuple(range(1, 65)))
    world.copy("copy-1")
    world.add("other", max_tokens=30)
    widths: list[list[int]] = []

    def step() -> None:
        drafts = world.step().scheduled_spec_decode_tokens
        widths.append([len(tokens) for tokens in drafts.values()])

    while world.scheduler.requests.get("other"):
        step()
    assert len(widths) > 6
    assert {tuple(step) for step in widths} <= {(), (MOST,), (MOST, MOST), (WIDTH,)}
    world.copy("copy-2")
    for _ in range(12):
        step()
    assert [WIDTH, WIDTH] in widths
    assert all(len(set(step)) <= 1 for step in widths)


@BOTH
def test_an_operators_bound_holds_at_once(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SecondPretence(asynchronous, monkeypatch)
    world.copy("copy")
    world.run(6)
    world.scheduler.ceiling = 1
    for _ in range(4):
        drafts = world.step().scheduled_spec_decode_tokens
    assert len(drafts["copy"]) == 1


@BOTH
def test_a_row_without_a_lookup_is_as_wide_as_the_draft(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While all requests copy, the draft makes one token. A run that ends leaves it alone."""
    world = SecondPretence(asynchronous, monkeypatch)
    world.copy("copy")
    world.run(8)
    monkeypatch.setattr(world.lookups, "_choose", lambda *_: None)
    world.lookups._widths.clear()
    assert getattr(world.step(), DRAFT_DEPTH) == 1
    assert len(world.step().scheduled_spec_decode_tokens["copy"]) == 1


def test_tokens_behind_the_draft_s_own_count_only_if_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = SecondPretence(True, monkeypatch)
    world.copy("copy")
    world.lookups._num_proposed = {"copy": 2}
    count = world.lookups.count_drafted
    assert (count("copy", 7, 1), count("copy", 7, 4), count("copy", 1, 1)) == (2, 4, 1)
    assert count("a lookup", 7, 1) == 7


def test_lookups_scan_tokens_in_the_device_s_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM keeps them in the host's memory, which a scan of every step would read over PCIe."""
    world = SecondPretence(True, monkeypatch)
    config = world.scheduler.vllm_config
    choices: list[bool] = []

    def init(_: object, use_dense_all_token_ids: bool) -> None:
        choices.append(use_dense_all_token_ids)

    for settings in (config.additional_config, {}):
        monkeypatch.setattr(config, "additional_config", settings)
        with set_current_vllm_config(config):
            init_states(init, object(), use_dense_all_token_ids=False)
    assert choices == [True, False]
