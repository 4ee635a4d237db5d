"""The depth planner in vLLM's scheduler: its inputs and outputs at every step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from eaglegate.engine.speculation.drafts.methods import StepBehaviour, StepDepth
from eaglegate.engine.speculation.planner.planner import DepthPlan, DepthPlanner
from eaglegate.engine.speculation.planner.step_cost import ObservedStep
from eaglegate.engine.speculation.planner.step_graphs import GraphMode
from eaglegate.engine.types import DepthReason
from eaglegate.engine.vllm_backend.graphs import read_graphs
from eaglegate.engine.vllm_backend.reasoning_span import ReasoningSpan
from eaglegate.engine.vllm_contract import DRAFT_DEPTH, SKIP
from eaglegate.engine.vllm_fields import DEPTH, TENANT, TRAFFIC, UNTAUGHT, pack_depth, pack_rates


class RandomPlanner:
    """Planner of a random depth and random widths for every step, because text must not depend on
    them."""

    def __init__(self, depth: int, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._depth = depth

    def learn_nothing(self, *_: object) -> None:
        """Do nothing, because no observation changes a random plan."""

    begin = move = end = observe = observe_step = learn_nothing

    def plan(self, _: Sequence[str], bounds: list[int], floors: list[int]) -> DepthPlan:
        min_widths = np.array(floors)
        depth = int(self._rng.integers(min_widths.max(initial=0), self._depth + 1))
        widths = np.maximum(
            np.minimum(self._rng.integers(0, depth + 1, len(bounds)), bounds), min_widths
        )
        return DepthPlan(depth, widths.tolist(), DepthReason.PROBE, float(len(bounds)), 0.0)


Planner = DepthPlanner | RandomPlanner
PLAN = "depth_plan"
"""Attribute of a SchedulerOutput: the plan of the drafts that it verifies."""
WIDTHS = "planned_widths"
"""Attribute of a SchedulerOutput: the planned widths of the drafts that it verifies."""
MIN_HOLES = 16
"""Tokens unseen by the draft model from which a request counts in a slice with holes."""
PROMPT_TAIL = 64
"""Prompt tokens that are searched for the start of reasoning."""


class StepPlanning:
    """Planning of one scheduler's steps. Requests with their own depth keep it."""

    def __init__(self, scheduler: Scheduler, behaviour: StepBehaviour, may_find_none: bool) -> None:
        """Set up without a planner. ``may_find_none`` means that the method may find no drafts; see
        ``DraftMethod``."""
        self._scheduler = scheduler
        self._behaviour = behaviour
        self._may_find_none = may_find_none
        self.graphs = None if may_find_none else read_graphs(scheduler.vllm_config)
        """The CUDA graphs of steps, if equal widths make them faster."""
        self._planner: Planner | None = None
        self._widths: dict[str, int] = {}
        self._plan: DepthPlan | None = None
        """The last plan."""
        self._request_names: set[str] = set()
        self.clock: Callable[[], float] = perf_counter
        self._last_update: float | None = None
        self._reasoning = ReasoningTracker(scheduler.vllm_config)
        self._holes: dict[str, int] = {}
        """Tokens of a request that the draft model has not seen, made in steps at depth 0."""
        self._slices: dict[str, tuple[bool, bool]] = {}
        """State of a request as (in its reasoning, has holes)."""
        self._paused_planner: tuple[str, Planner | None] = ("off", None)
        self.frozen_depth: int | None = None
        """The depth at which an operator holds the planner."""
        self.mode = "off"

    @property
    def may_cut(self) -> bool:
        """True if a request may verify fewer drafts than were made."""
        return self._behaviour.depth is not StepDepth.FIXED

    def limit_width(self, request: Request, width: int) -> None:
        """Verify at most ``width`` of a request's drafts."""
        if self._planner is not None:
            self._widths[request.request_id] = width

    @property
    def active(self) -> bool:
        return self._planner is not None

    def start(self, mode: str) -> None:
        """Set the mode: ``off``, ``auto`` or ``random``. Switching off and on again keeps what was
        learnt."""
        if mode == self.mode:
            return
        if self._planner is not None:
            self._paused_planner = self.mode, self._planner
            for request in self._request_names:
                self._planner.end(request)
        last_mode, planner = self._paused_planner
        if mode != last_mode or planner is None:
            planner = self._make_planner(mode) if mode != "off" else None
        self._planner = None if mode == "off" else planner
        self._widths, self._request_names, self._slices, self.mode = {}, set(), {}, mode
        self.freeze(self.frozen_depth)

    def _make_planner(self, mode: str) -> Planner:
        depth = int(self._scheduler.draft_depth)
        if mode == "random":
            return RandomPlanner(depth)
        always_full = self._behaviour.depth is StepDepth.FULL
        return DepthPlanner(depth, always_full, self._may_find_none, self.graphs)

    def restart(self) -> None:
        """Forget the acceptance of traffic, because another draft serves. The costs of steps are
        kept, and so is a depth that an operator holds."""
        mode, costs = self.mode, self.export_costs()
        self.start("off")
        self._paused_planner = "off", None
        self.start(mode)
        self.restore_costs(costs)

    def describe(self, recent: int = 0) -> dict[str, object]:
        """Describe the planner's estimates and decisions; only the mode without a planner."""
        planner = self._planner if isinstance(self._planner, DepthPlanner) else None
        description = {} if planner is None else planner.describe(recent)
        return {"mode": self.mode, **description}

    def copy_slices(self) -> Callable[[], list[dict[str, object]]]:
        """See ``SurvivalEstimator.copy_slices``."""
        planner = self._planner
        return planner.copy_slices() if isinstance(planner, DepthPlanner) else list

    def forget_tenants(self, tenants: Collection[str]) -> None:
        """Forget what the traffic of these tenants has taught, also while planning is off."""
        for planner in (self._planner, self._paused_planner[1]):
            if isinstance(planner, DepthPlanner):
                planner.survival.forget(tenants)

    @property
    def prompt_token_s(self) -> float | None:
        """Seconds of a prompt token in a step; None if unknown."""
        if not isinstance(self._planner, DepthPlanner) or not self._planner.cost.is_known:
            return None
        return self._planner.cost.prompt_token_s

    def export_costs(self) -> dict[str, object]:
        """Export the learnt costs of steps; empty if the planner knows none."""
        planner = self._planner
        if not isinstance(planner, DepthPlanner) or not planner.cost.is_known:
            return {}
        return planner.cost.export()

    def restore_costs(self, costs: Mapping[str, object]) -> bool:
        """Restore the costs that another engine's planner has learnt; False if they do not fit."""
        return isinstance(self._planner, DepthPlanner) and self._planner.cost.restore(costs)

    def freeze(self, depth: int | None) -> bool:
        """Plan this depth for all requests without their own; None lets the planner choose
        again."""
        if not isinstance(self._planner, DepthPlanner):
            return False
        self._planner.frozen_depth = self.frozen_depth = depth
        return True

    def get_token_price(self, batch: int) -> float | None:
        """Return the cost of one more verified token, in tokens that its time would bring; None if
        unknown."""
        planner = self._planner
        return planner.get_token_price(batch) if isinstance(planner, DepthPlanner) else None

    def get_width(self, request: Request, num_useful: int) -> int:
        """Return the number of draft tokens to verify; ``num_useful`` if no plan knows the
        request."""
        if self._planner is None:
            return num_useful
        return min(num_useful, self._widths.get(request.request_id, num_useful))

    def note(self, output: SchedulerOutput) -> None:
        """Attach the plan for this step's drafts to ``output``. Called before the next plan."""
        if self._planner is not None:
            widths = self._widths
            names = output.num_scheduled_tokens
            setattr(output, WIDTHS, {name: widths[name] for name in names if name in widths})
            setattr(output, PLAN, self._plan)

    def note_skipped(self, requests: Iterable[Request]) -> None:
        """Record that no draft model runs in a step of these requests."""
        for request in requests:
            name = request.request_id
            self._holes[name] = self._holes.get(name, 0) + 1

    def get_depth_in_force(self, output: SchedulerOutput, request: Request, depth: int) -> int:
        """Return the depth for a step's account: the planned width, if any, packed with the plan's
        reason."""
        if self._planner is None:
            return depth
        width = getattr(output, WIDTHS, {}).get(request.request_id)
        plan: DepthPlan | None = getattr(output, PLAN, None)
        if width is None or plan is None or get_own_depth(request) is not None:
            return depth if width is None else min(depth, int(width))
        return pack_depth(min(depth, int(width)), plan.reason)

    def pack_rates(self, output: SchedulerOutput) -> list[int]:
        """Pack the rates and the price of a token of the plan whose drafts this step verifies;
        empty without one."""
        plan: DepthPlan | None = getattr(output, PLAN, None)
        return pack_rates(plan.rates, plan.token_price) if plan and plan.rates else []

    def plan(self, request_depths: Sequence[tuple[Request, int]]) -> int:
        """Return the depth of the drafts made after this step, and keep the widths for the next
        step. The depths of requests are those of ``get_depth`` of the scheduler, so at most K.

        Requests from which the planner must not learn are unknown to it and keep their depth. The
        widths of requests outside this step are kept as well: with pipeline parallelism other steps
        are in progress, and their drafts are still to be verified.
        """
        if self._planner is None:
            return 0
        untaught_depths = [
            depth for request, depth in request_depths if UNTAUGHT in get_extra(request)
        ]
        min_depth = max(untaught_depths, default=0)
        if untaught_depths:
            request_depths = [pair for pair in request_depths if UNTAUGHT not in get_extra(pair[0])]
        if not request_depths:
            return min_depth
        for request, _ in request_depths:
            self._follow(self._planner, request)
        # A draft has one depth for the whole batch. Where some requests choose it, the others would
        # otherwise buy throughput with their latency.
        requests = [request for request, _ in request_depths]
        chosen_names = set[str]().union(*self._scheduler.plugins.collect("choose", requests))
        choosers = [pair for pair in request_depths if pair[0].request_id in chosen_names]
        names, bounds, floors = [], [], []
        for request, depth in choosers or request_depths:
            has_own_depth = get_own_depth(request) is not None
            bound = depth
            # Drafts beyond the last token are never committed. With graphs a request's own depth
            # is kept even there, because other widths cost the whole step its FULL graph.
            if self.graphs is None or not has_own_depth:
                bound = min(depth, _count_useful(request))
            names.append(request.request_id)
            bounds.append(bound)
            floors.append(bound if has_own_depth else 0)
        plan = self._planner.plan(names, bounds, floors)
        assert plan.depth <= self._scheduler.draft_depth
        self._widths.update(zip(names, plan.widths, strict=True))
        self._plan = plan
        if choosers:
            self._follow_depth(request_depths, set(names), plan.depth)
        return max(plan.depth, min_depth)

    def _follow_depth(
        self,
        request_depths: Sequence[tuple[Request, int]],
        planned_names: Container[str],
        depth: int,
    ) -> None:
        """Plan the widths of other requests after some have chosen the depth."""
        other_depths = [pair for pair in request_depths if pair[0].request_id not in planned_names]
        names = [request.request_id for request, _ in other_depths]
        useful_widths = [depth] * len(names)
        if depth and names and isinstance(self._planner, DepthPlanner):
            useful_widths = self._planner.list_useful_widths(names, depth)
        for (request, bound), width in zip(other_depths, useful_widths, strict=True):
            limit = min(bound, depth)
            has_own_depth = get_own_depth(request) is not None
            self._widths[request.request_id] = limit if has_own_depth else min(limit, width)

    def observe(
        self,
        output: SchedulerOutput,
        verify_counts: Mapping[str, tuple[int, int]],
        others: Container[str] = (),
    ) -> float | None:
        """Observe a step: drafts and accepted tokens of each request, and the step's time. Return
        the seconds of the step; None where its content is uncertain.

        The planner does not learn the draft's acceptance from requests in ``others``, which
        verified other tokens.
        """
        now, last_update = self.clock(), self._last_update
        # Two updates in a row bound one step's time, unless the engine was idle between them.
        self._last_update = now if self._scheduler.has_unfinished_requests() else None
        if last_update is None:
            self._scheduler.runner.pause()
        tokens = output.num_scheduled_tokens
        names = [name for name in tokens if name in self._request_names]
        if names and self._planner is not None:
            # A request without drafts in this step counts, too: (0, 0) is a step of its life.
            drafting = [name for name in names if name not in others] if others else names
            counts = [verify_counts.get(name, (0, 0)) for name in drafting]
            drafted, accepted = zip(*counts, strict=True) if counts else ((), ())
            other_tokens = sum(
                1 + verify_counts.get(name, (0, 0))[1] for name in names if name in others
            )
            # A draft that was not found was planned, and its cost is learnt.
            planned_counts = (
                self._count_planned(output, drafting, drafted) if self._may_find_none else drafted
            )
            self._planner.observe(drafting, planned_counts, accepted, drafted, other_tokens)
        step = StepContent.read(output)
        made = 0 if getattr(output, SKIP, False) else get_draft_depth(output)
        depth = self._scheduler.runner.find_drafted_depth(made, step.prompt > 0)
        # Acceptance is learnt from every step; a time only where its content is certain.
        # A step that also encodes images takes longer, by a time that no later step has.
        has_encoded = bool(output.scheduled_encoder_inputs)
        if last_update is None or depth is None or not step.batch or has_encoded:
            return None
        seconds = now - last_update
        mode = self.graphs.find_mode(step.widths) if self.graphs else GraphMode.FULL
        observation = ObservedStep(step.batch, step.width, depth, seconds, step.prompt, mode)
        if names and self._planner is not None:
            self._planner.observe_step(observation, getattr(output, PLAN, None))
        return seconds

    def _count_planned(
        self, output: SchedulerOutput, names: Sequence[str], hits: Sequence[int]
    ) -> list[int]:
        """Count the draft tokens that were planned for each request.

        A planned token that was not found brings nothing, so the value of a planned token includes
        the chance that it is found.
        """
        widths = getattr(output, WIDTHS, {})
        return [
            max(int(widths.get(name, 0)), count) for name, count in zip(names, hits, strict=True)
        ]

    def forget(self, request: Request) -> None:
        """Forget a finished request."""
        self._widths.pop(request.request_id, None)
        self._reasoning.forget(request)
        self._holes.pop(request.request_id, None)
        self._slices.pop(request.request_id, None)
        if self._planner is not None and request.request_id in self._request_names:
            self._request_names.discard(request.request_id)
            self._planner.end(request.request_id)

    def _follow(self, planner: Planner, request: Request) -> None:
        """Begin a new request in the planner, or move one whose slice has changed."""
        name = request.request_id
        state = self._reasoning.is_reasoning(request), self._holes.get(name, 0) >= MIN_HOLES
        if name in self._request_names and self._slices[name] == state:
            return
        begin = planner.move if name in self._request_names else planner.begin
        self._request_names.add(name)
        self._slices[name] = state
        traffic = self.name_traffic(request, *state)
        begin(name, traffic, str(get_extra(request).get(TENANT, "")))

    def name_traffic(self, request: Request, reasoning: bool = False, holes: bool = False) -> str:
        """Return the slice that a request belongs to."""
        workload = str(get_extra(request).get(TRAFFIC, ""))
        temperature = _get_temperature(request)
        return name_slice(
            workload,
            reasoning,
            holes,
            request.num_prompt_tokens,
            temperature,
            has_images=bool(request.mm_features),
        )


def get_draft_depth(output: SchedulerOutput) -> int:
    """Return the draft's depth after a step."""
    return int(getattr(output, DRAFT_DEPTH, output.num_spec_tokens_to_schedule) or 0)


class StepContent(NamedTuple):
    """Content of a step: decoding requests, their draft tokens, and prompt tokens."""

    batch: int
    width: int
    prompt: int
    widths: Sequence[int]
    """Number of draft tokens of every request in the step."""

    @classmethod
    def read(cls, output: SchedulerOutput) -> StepContent:
        tokens, drafts = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
        widths = {name: len(token_ids) for name, token_ids in drafts.items()}
        total, width = sum(tokens.values()), sum(widths.values())
        request_widths = [widths.get(name, 0) for name in tokens]
        if total == len(tokens) + width:
            return cls(len(tokens), width, 0, request_widths)
        batch = sum(count == 1 + widths.get(name, 0) for name, count in tokens.items())
        return cls(batch, width, total - batch - width, request_widths)


class ReasoningTracker:
    """Tracks which requests are in their reasoning; none without a reasoning parser."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        config = vllm_config.reasoning_config
        self._start = list(config.reasoning_start_token_ids or ()) if config else []
        self._end = list(config.natural_reasoning_end_token_ids or ()) if config else []
        self._spans: dict[str, ReasoningSpan] = {}

    def is_reasoning(self, request: Request) -> bool:
        if not (self._start and self._end):
            return False
        span = self._spans.get(request.request_id)
        if span is None:
            tail = max(0, request.num_prompt_tokens - PROMPT_TAIL)
            span = ReasoningSpan(self._start, self._end, tail)
            self._spans[request.request_id] = span
        span.read(request.all_token_ids)
        return span.length is not None

    def forget(self, request: Request) -> None:
        self._spans.pop(request.request_id, None)


def name_slice(
    workload: str,
    reasoning: bool,
    holes: bool,
    prompt_tokens: int,
    temperature: float = 1.0,
    *,
    has_images: bool = False,
) -> str:
    """Return the slice's name: workload, phase, context bucket, temperature, images and holes.

    ``agent/answer/4k`` has a prompt of fewer than 4,096 tokens and a sampling temperature of at
    most one. ``agent/answer/4k/greedy`` does not sample, and ``agent/answer/4k/hot`` samples at a
    higher temperature. ``agent/answer/4k/images`` has images in its prompt, which most drafts have
    not seen. ``agent/answer/4k/holes`` has answer tokens that the draft model has not
    seen.
    """
    bucket = 1 << (prompt_tokens // 1024).bit_length()
    phase = "reasoning" if reasoning else "answer"
    sampling = "/greedy" if temperature <= 0 else "/hot" if temperature > 1 else ""
    images = "/images" if has_images else ""
    return f"{workload}/{phase}/{bucket}k{sampling}{images}{'/holes' if holes else ''}"


def get_extra(request: Request) -> dict[str, Any]:
    return (request.sampling_params.extra_args if request.sampling_params else None) or {}


def _get_temperature(request: Request) -> float:
    return request.sampling_params.temperature if request.sampling_params else 0.0


def get_own_depth(request: Request) -> int | None:
    """Return the request's own depth; None if it has none."""
    fields = request.sampling_params and request.sampling_params.extra_args
    depth = fields.get(DEPTH) if fields else None
    return None if depth is None else int(depth)


def _count_useful(request: Request) -> int:
    """Return the number of draft tokens that can still be used. The target makes the last token."""
    return max(0, int(request.max_tokens - request.num_output_tokens) - 1)
