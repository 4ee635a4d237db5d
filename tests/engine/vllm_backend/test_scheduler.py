"""The scheduler alone: a pretended model says how many drafts it accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, groupby
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from eaglegate.engine.speculation.drafts.methods import AT_K, METHODS, Runner
from eaglegate.engine.types import DecodeStep, DepthReason, UndraftedReason
from eaglegate.engine.vllm_backend.arguments import make_demo_arguments
from eaglegate.engine.vllm_backend.graphs import choose_depths, declare_depths
from eaglegate.engine.vllm_backend.runners import SecondRunner
from eaglegate.engine.vllm_backend.scheduler import (
    DepthSchedulerBase,
    drop_blocks,
    scheduler,
    set_depth,
)
from eaglegate.engine.vllm_backend.translate import read_decode_step
from eaglegate.engine.vllm_contract import SKIP
from eaglegate.engine.vllm_fields import DEPTH, TRACED
from tests.engine.drive import speculation

BLOCK = 32
MOST = 3


class Pretence:
    """A scheduler and a model that accepts as many drafts as ``accepts`` says (default all)."""

    def __init__(
        self,
        asynchronous: bool = False,
        prepare: Callable[[VllmConfig], None] = lambda _: None,
        **speculative: Any,
    ) -> None:
        """``prepare`` changes the configuration before the scheduler reads it."""
        chosen = speculation(MOST) | speculative
        config = make_demo_arguments(
            speculative_config=chosen, max_model_len=256, block_size=BLOCK
        ).create_engine_config()
        self.asynchronous = asynchronous
        config.scheduler_config.async_scheduling = asynchronous
        config.cache_config.num_gpu_blocks = 64
        prepare(config)
        spec = FullAttentionSpec(BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
        self.scheduler: DepthSchedulerBase = scheduler(
            config,
            kv_cache_config=KVCacheConfig(64, [], [KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            log_stats=True,
        )
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self._fresh: Iterator[int] = count(100)
        self.accepts: dict[str, int] = {}
        self.steps: dict[str, list[DecodeStep]] = {}
        self.drafts: dict[str, list[list[int]]] = {}
        """Draft tokens that accounts carry, by request."""
        self.rates: dict[str, list[list[int]]] = {}
        """Packed rates that accounts of decode steps carry, by request."""
        self.finished: set[str] = set()
        self._in_flight: tuple[SchedulerOutput, set[str]] | None = None

    def add(
        self,
        name: str,
        depth: int | None = None,
        prompt: list[int] | None = None,
        max_tokens: int = 50,
        priority: int = 0,
        **more: Any,
    ) -> Request:
        extra = more | ({} if depth is None else {DEPTH: depth})
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, extra_args=extra)
        request = Request(
            name,
            prompt or [1, 2, 3, 4],
            params,
            pooling_params=None,
            block_hasher=self._hasher,
            priority=priority,
        )
        self.scheduler.add_request(request)
        return request

    def step(self) -> SchedulerOutput:
        """Plan a step; asynchronous scheduling plans it before the last one's tokens are known."""
        planned = self.scheduler.schedule()
        prefilling = {
            name for name in planned.num_scheduled_tokens if self._request(name).is_prefill_chunk
        }
        if not self.asynchronous:
            self._process(planned, prefilling)
            self._hand_over_drafts(planned)
            return planned
        if self._in_flight is not None:
            self._process(*self._in_flight)
        self._in_flight = (planned, prefilling)
        return planned

    def _process(self, planned: SchedulerOutput, prefilling: set[str]) -> None:
        names = list(planned.num_scheduled_tokens)
        sampled = [[] if name in prefilling else self._sample(name, planned) for name in names]
        rows = {name: row for row, name in enumerate(names)}
        outputs = self.scheduler.update_from_output(
            planned, ModelRunnerOutput(names, rows, sampled)
        )
        for batch in outputs.values():
            for output in batch.outputs:
                seen = self.steps.setdefault(output.request_id, [])
                step = read_decode_step(output, is_first=output.prefill_stats is not None)
                seen += [step] if step else []
                if step:
                    carried = self.rates.setdefault(output.request_id, [])
                    carried.append(output.spec_decode_metrics.per_step_accepted)
                if output.spec_decode_metrics and output.spec_decode_metrics.per_step_drafted:
                    carried = self.drafts.setdefault(output.request_id, [])
                    carried.append(output.spec_decode_metrics.per_step_drafted)
                if output.finished:
                    self.finished.add(output.request_id)

    def _hand_over_drafts(self, planned: SchedulerOutput) -> None:
        names, depth = list(planned.num_scheduled_tokens), planned.num_spec_tokens_to_schedule
        drafts = [[next(self._fresh) for _ in range(depth)] for _ in names]
        self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))

    def _request(self, name: str) -> Request:
        request: Request = self.scheduler.requests[name]
        return request

    def run(self, steps: int = 100) -> None:
        for _ in range(steps):
            if not self.scheduler.has_unfinished_requests():
                return
            self.step()

    def _sample(self, name: str, planned: SchedulerOutput) -> list[int]:
        drafts = planned.scheduled_spec_decode_tokens.get(name, [])
        accepted = min(len(drafts), self.accepts.get(name, MOST))
        return [next(self._fresh) for _ in range(accepted + 1)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_request_drafts_as_deep_as_it_wants(asynchronous: bool) -> None:
    world = Pretence(asynchronous)
    for depth in (0, 1, 2, 3):
        world.add(f"d{depth}", depth)
    world.run()
    for depth in (0, 1, 2, 3):
        steps = world.steps[f"d{depth}"]
        assert max(step.drafted for step in steps) == depth
        assert 1 + sum(step.delivered for step in steps) == 50
        whole = [step.drafted for step in steps[:-2]]
        assert set(whole) == {depth}


def test_accounts_of_traced_requests_alone_carry_their_drafts() -> None:
    """All of a step's drafts, the last step's included; the scheduler then forgets the request."""
    world = Pretence()
    world.accepts = {"traced": 1, "other": 1}
    world.add("traced", 2, **{TRACED: 1})
    world.add("other", 2)
    world.run()
    verified = [step for step in world.steps["traced"] if step.drafted]
    assert [len(drafts) for drafts in world.drafts["traced"]] == [s.drafted for s in verified]
    assert all(token >= 100 for drafts in world.drafts["traced"] for token in drafts)
    assert "other" not in world.drafts
    assert world.scheduler._traced_requests == set()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_steps_of_planned_requests_carry_the_planners_reason(asynchronous: bool) -> None:
    world = Pretence(asynchronous)
    world.scheduler.set_planning("random")
    world.add("planned")
    world.add("asked", 2)
    world.run()
    assert {step.planned for step in world.steps["planned"][1:-2]} == {DepthReason.PROBE}
    assert {step.planned for step in world.steps["asked"]} == {None}
    assert {step.undrafted for step in world.steps["planned"]} <= {None, *UndraftedReason}


def test_asynchronous_scheduling_does_not_know_the_drafts() -> None:
    world = Pretence(asynchronous=True)
    world.add("traced", 2, **{TRACED: 1})
    world.run()
    assert world.drafts == {}
    assert sum(step.drafted for step in world.steps["traced"]) > 0


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_step_drafts_as_deep_as_its_deepest_request(asynchronous: bool) -> None:
    world = Pretence(asynchronous)
    world.add("shallow", 1)
    assert world.step().num_spec_tokens_to_schedule == 1
    world.add("deep", 2)
    assert world.step().num_spec_tokens_to_schedule == 2


@pytest.mark.parametrize("asynchronous", [False, True])
def test_only_pure_decode_steps_without_wishes_skip_the_draft_model(asynchronous: bool) -> None:
    world = Pretence(asynchronous)
    world.add("off", 0)
    assert getattr(world.step(), SKIP) is False, "the prompt's draft KV must be whole"
    assert getattr(world.step(), SKIP) is True
    world.add("also off", 0)
    assert getattr(world.step(), SKIP) is False
    assert getattr(world.step(), SKIP) is True
    world.add("on", 3)
    assert getattr(world.step(), SKIP) is False
    assert getattr(world.step(), SKIP) is False


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("method", "skips"), [("medusa", True), ("suffix", False)])
def test_a_method_that_always_drafts_k_is_asked_for_k(
    asynchronous: bool, method: str, skips: bool
) -> None:
    """The proposer of such a method asserts its K. Requests verify as many as they want all the
    same."""
    world = Pretence(asynchronous)
    world.scheduler.behaviour = METHODS[method].on(Runner.FIRST)
    world.add("off", 0)
    world.add("shallow", 1)
    assert world.step().num_spec_tokens_to_schedule == MOST
    world.run(4)
    assert {step.drafted for step in world.steps["off"]} == {0}
    assert {step.drafted for step in world.steps["shallow"]} == {1}
    world.scheduler.ceiling = 0
    world.run(2)
    planned = world.step()
    assert planned.num_spec_tokens_to_schedule == MOST
    assert getattr(planned, SKIP) is skips


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_method_of_a_fixed_depth_drafts_and_verifies_k(asynchronous: bool) -> None:
    world = Pretence(asynchronous)
    world.scheduler.behaviour = AT_K
    world.add("off", 0)
    world.add("none", None)
    assert world.step().num_spec_tokens_to_schedule == MOST
    world.run(3)
    assert {step.drafted for steps in world.steps.values() for step in steps[1:]} == {MOST}
    assert set_depth(SimpleNamespace(scheduler=world.scheduler), 1) == MOST
    assert world.scheduler.set_planning("auto") == "off"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_ceiling_moves_running_requests(asynchronous: bool) -> None:
    world = Pretence(asynchronous)
    world.add("a")
    world.accepts["a"] = 0
    for ceiling, steps in ((3, 4), (0, 4), (1, 4)):
        world.scheduler.ceiling = ceiling
        world.run(steps)
    drafted = [step.drafted for step in world.steps["a"]]
    assert [depth for depth, _ in groupby(drafted)] == [3, 0, 1]
    assert len(drafted) >= 10


def test_the_reason_tells_off_from_undrafted() -> None:
    world = Pretence()
    world.add("off", 0, max_tokens=4)
    world.add("on", 3, max_tokens=2)
    world.run()
    assert {step.undrafted for step in world.steps["off"]} == {UndraftedReason.OFF}
    assert world.steps["on"] == [DecodeStep(0, 0, 1, undrafted=UndraftedReason.REFUSED)]


def test_no_draft_is_verified_that_could_not_be_delivered() -> None:
    world = Pretence()
    world.add("a", 3, max_tokens=8)
    world.run()
    assert [step.drafted for step in world.steps["a"]] == [3, 2]
    assert sum(step.cut for step in world.steps["a"]) == 0


def test_near_the_end_of_the_context_nobody_drafts() -> None:
    """vLLM's worker does not draft there, and the scheduler would verify zeros instead."""
    world = Pretence()
    world.add("long", 3, prompt=list(range(245)), max_tokens=10)
    world.run()
    steps = world.steps["long"]
    assert 1 + sum(step.delivered for step in steps) == 10
    assert steps[-1].drafted == 0
    assert all(step.drafted in (0, 3) for step in steps)


def test_the_second_runner_drafts_for_others_near_the_end_of_one_context() -> None:
    world = Pretence()
    world.scheduler.runner = SecondRunner(world.scheduler.vllm_config)
    world.add("long", 3, prompt=list(range(235)), max_tokens=20)
    world.add("short", 3, max_tokens=50)
    world.run()
    for name, tokens in (("long", 20), ("short", 50)):
        assert 1 + sum(step.delivered for step in world.steps[name]) == tokens
        assert all(step.cut == 0 for step in world.steps[name])
    assert {step.drafted for step in world.steps["short"][:-2]} == {3}
    assert world.steps["long"][-1].drafted > 0


def test_a_fully_cached_prompt_is_not_padded_with_drafts_nobody_made() -> None:
    world = Pretence()
    prompt = list(range(BLOCK * 3 + 1))
    world.add("first", 3, prompt=prompt, max_tokens=2)
    world.run()
    world.add("again", 3, prompt=prompt, max_tokens=2)
    planned = world.step()
    assert planned.scheduled_spec_decode_tokens == {}


def test_a_users_own_table_of_depths_bounds_the_requests() -> None:
    world = Pretence(num_speculative_tokens_per_batch_size=[[1, 1, 2], [2, 64, 1]])
    world.add("a", 3)
    assert world.step().num_spec_tokens_to_schedule == 2
    world.add("b", 3)
    assert world.step().num_spec_tokens_to_schedule == 1


def test_our_own_declaration_for_gpus_bounds_nothing() -> None:
    table = [list(entry) for entry in declare_depths(choose_depths(MOST))]
    world = Pretence(num_speculative_tokens_per_batch_size=table)
    world.add("a", 3)
    assert world.step().num_spec_tokens_to_schedule == 3


def test_ended_requests_are_forgotten() -> None:
    world = Pretence()
    for number in range(5):
        world.add(f"{number}", number % 2, max_tokens=5)
    world.run()
    assert world.scheduler._verify_counts == {}


def test_dropped_blocks_are_computed_again() -> None:
    world = Pretence()
    prompt = [*range(3 * BLOCK + 1)]
    computed = []
    for name in "abc":
        if name == "c":
            assert drop_blocks(SimpleNamespace(scheduler=world.scheduler)) >= 3  # type: ignore[arg-type]
        world.add(name, prompt=prompt, max_tokens=5)
        computed.append(world.step().num_scheduled_tokens[name])
        world.run()
    assert computed[0] == computed[2] == len(prompt)
    assert computed[1] < len(prompt)
