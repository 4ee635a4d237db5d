"""The batches that the scheduler makes, and the CUDA graph that vLLM's own code finds for each.

The scheduler, the second model runner's reading of a step and its dispatcher are real; the model is
pretended, and graphs are taken for captured. No GPU is needed.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

from eaglegate.engine.speculation.planner.step_graphs import GraphMode
from eaglegate.engine.vllm_backend.graphs import choose_depths, declare_depths
from tests.engine.vllm_backend.test_graphs import declare
from tests.engine.vllm_backend.test_scheduler import MOST, Pretence

REQUESTS = 12
"""Most requests at a time."""
FULL, PIECEWISE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE
SECONDS = {FULL: 0.010, PIECEWISE: 0.016, CUDAGraphMode.NONE: 0.020}
"""Time of a made-up step, by the graph it finds, so that the planner learns that graphs pay."""


class Batch(NamedTuple):
    """One step as the model runner sees it."""

    mode: CUDAGraphMode
    widths: tuple[int, ...]
    """Draft tokens of each request."""
    prefills: bool


class GraphedPretence(Pretence):
    """Runs every step of the scheduler through vLLM's dispatcher. ``depth`` as in ``--depth``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, depth: int | None, **more: Any) -> None:
        depths = choose_depths(MOST, depth)
        self.manager = declare(MOST, REQUESTS, depth)
        self.batches: list[Batch] = []
        self._prefill_lengths: dict[str, int] = {}
        self._now = 0.0

        def prepare(config: VllmConfig) -> None:
            monkeypatch.setattr(VllmConfig, "use_v2_model_runner", True)
            sized = self.manager.compilation_config
            config.compilation_config.cudagraph_mode = CUDAGraphMode.FULL_AND_PIECEWISE
            config.compilation_config.cudagraph_capture_sizes = sized.cudagraph_capture_sizes
            config.scheduler_config.max_num_seqs = REQUESTS
            if depths != [MOST]:
                table = declare_depths(depths, REQUESTS)
                config.speculative_config.num_speculative_tokens_per_batch_size = table

        super().__init__(prepare=prepare, **more)
        self.scheduler.planning.clock = lambda: self._now
        if depth is not None:
            self.scheduler.ceiling = depth
        schedule = self.scheduler.schedule

        def watch(*args: Any, **kwargs: Any) -> SchedulerOutput:
            planned = schedule(*args, **kwargs)
            if planned.total_num_scheduled_tokens:
                self._dispatch(planned)
            return planned

        monkeypatch.setattr(self.scheduler, "schedule", watch)

    def _dispatch(self, planned: SchedulerOutput) -> None:
        for new in planned.scheduled_new_reqs:  # the second runner's hold resumed ones as well
            self._prefill_lengths[new.req_id] = len(new.prefill_token_ids)
        tokens = planned.num_scheduled_tokens
        computed = {name: self._request(name).num_computed_tokens - tokens[name] for name in tokens}
        lengths = {name: self._prefill_lengths[name] for name in tokens}
        runner: Any = object.__new__(GPUModelRunner)
        runner.decode_query_len = self.manager.decode_query_len
        runner.use_pp, runner.adaptive_verification, runner.pcp_manager = False, None, None
        runner.req_states = type("States", (), {})()
        runner.req_states.req_id_to_index = {name: at for at, name in enumerate(tokens)}
        runner.req_states.prefill_len = type("Lengths", (), {"np": np.array([*lengths.values()])})
        runner.req_states.num_computed_prefill_tokens = np.array(
            [min(computed[name], lengths[name]) for name in tokens]
        )
        state, uniform = runner.gather_batch_req_state(planned, dummy_run=False)
        longest = None if state.has_prefill else max(tokens.values())
        found = self.manager.dispatch(
            len(tokens), state.num_tokens, uniform, 0, max_query_len=longest
        )
        drafts = planned.scheduled_spec_decode_tokens
        widths = tuple(len(drafts.get(name, ())) for name in tokens)
        self.batches.append(Batch(found.cg_mode, widths, state.has_prefill))
        self._now += SECONDS[found.cg_mode]

    def serve(self, seed: int, requests: int, depths: tuple[int | None, ...] = (None,)) -> None:
        """Requests of all lengths that come at random, until the last has ended."""
        draw = random.Random(seed)
        coming = [f"r{number}" for number in range(requests)]
        while coming or self.scheduler.has_unfinished_requests():
            for _ in range(min(len(coming), draw.choice((0,) * 12 + (1, 4)))):
                name = coming.pop()
                self.accepts[name] = draw.choice((1, 2, 3))
                prompt = [draw.randrange(90) for _ in range(draw.randint(4, 90))]
                self.add(name, draw.choice(depths), prompt, draw.randint(2, 90))
            self.step()

    @property
    def decoding(self) -> list[Batch]:
        return [batch for batch in self.batches if not batch.prefills]

    def find_mode(self, batch: Batch) -> GraphMode:
        graphs = self.scheduler.planning.graphs
        assert graphs is not None
        return graphs.find_mode(batch.widths)


def share(batches: list[Batch]) -> float:
    return sum(batch.mode is FULL for batch in batches) / len(batches)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("depth", [0, 2, MOST])
def test_every_step_at_a_fixed_depth_finds_a_full_graph(
    monkeypatch: pytest.MonkeyPatch, depth: int, asynchronous: bool
) -> None:
    """A full graph is found up to the last token of every request, whatever comes and goes beside
    it."""
    world = GraphedPretence(monkeypatch, depth, asynchronous=asynchronous)
    world.serve(seed=depth, requests=60)
    assert {width for batch in world.decoding for width in batch.widths} == {depth}
    assert max(len(batch.widths) for batch in world.decoding) == REQUESTS
    assert len(world.decoding) > 150
    assert {batch.mode for batch in world.decoding} == {FULL}


def test_steps_with_prompts_find_piecewise_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    world = GraphedPretence(monkeypatch, MOST)
    world.serve(seed=5, requests=60)
    largest = world.manager.compilation_config.cudagraph_capture_sizes[-1]
    modes = Counter(batch.mode for batch in world.batches if batch.prefills)
    assert set(modes) <= {PIECEWISE, CUDAGraphMode.NONE}, "NONE has more tokens than any graph"
    assert modes[PIECEWISE] > 10
    assert largest > REQUESTS * (MOST + 1)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_depths_of_their_own_cost_the_batch_its_full_graph(
    monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    """A batch of one declared depth has a graph; one with two depths, or an undeclared, has not."""
    world = GraphedPretence(monkeypatch, None, asynchronous=asynchronous)
    world.serve(seed=1, requests=80, depths=(None, None, 0, 1, 2, 3))
    declared = set(choose_depths(MOST))
    for batch in world.decoding:
        uniform = len(set(batch.widths)) == 1 and batch.widths[0] in declared
        assert (batch.mode is FULL) == uniform, batch
    assert 0 < share(world.decoding) < 1


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("mode", ["auto", "random"])
def test_the_planner_expects_the_graph_that_each_of_its_steps_finds(
    monkeypatch: pytest.MonkeyPatch, mode: str, asynchronous: bool
) -> None:
    world = GraphedPretence(monkeypatch, None, asynchronous=asynchronous)
    assert world.scheduler.set_planning(mode) == mode
    world.serve(seed=2, requests=120)
    for batch in world.decoding:
        assert (batch.mode is FULL) == (world.find_mode(batch) is GraphMode.FULL), batch
    if mode == "auto":
        assert share(world.decoding[len(world.decoding) // 2 :]) > 0.9
