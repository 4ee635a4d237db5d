"""The depth planner in vLLM's scheduler: what it is asked and told at every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from engine.speculation.planner.planner import DepthPlanner, Planner, RandomPlanner
from engine.vllm_fields import DEPTH, TENANT, TRAFFIC

WIDTHS = "planned_widths"
"""Attribute of a SchedulerOutput: the widths planned for the drafts it verifies."""
PLANNERS = {"auto": DepthPlanner, "random": RandomPlanner}


class StepPlanning:
    """One scheduler's planner, if it has one. Requests with a depth of their own keep it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._planner: Planner | None = None
        self._widths: dict[str, int] = {}
        self._begun: set[str] = set()
        self._last_update: float | None = None
        self.mode = "off"

    @property
    def active(self) -> bool:
        return self._planner is not None

    def start(self, mode: str) -> None:
        """``off``, or a name in ``PLANNERS``. What was learnt before is forgotten."""
        self._planner = PLANNERS[mode](self._scheduler.num_spec_tokens) if mode != "off" else None
        self._widths, self._begun, self.mode = {}, set(), mode

    def get_width(self, request: Request, useful: int) -> int:
        """Draft tokens to verify; ``useful`` where no plan knows the request."""
        if self._planner is None:
            return useful
        return min(useful, self._widths.get(request.request_id, useful))

    def note(self, output: SchedulerOutput) -> None:
        """Remember, before the next plan, what was planned for the drafts of this step."""
        if self._planner is not None:
            setattr(output, WIDTHS, self._widths)

    def get_depth_in_force(self, output: SchedulerOutput, request: Request, depth: int) -> int:
        """The depth a step's account states: the planned width, where there is one."""
        if self._planner is None:
            return depth
        return min(depth, int(getattr(output, WIDTHS, {}).get(request.request_id, depth)))

    def plan(self, drafting: Sequence[tuple[Request, int]], most: int) -> int:
        """Depth of the drafts made after this step; the widths are kept for the next one."""
        self._widths = {}
        if self._planner is None or not drafting:
            return 0
        names = [request.request_id for request, _ in drafting]
        for request, _ in drafting:
            if request.request_id not in self._begun:
                self._begin(self._planner, request)
        bounds = np.array([min(depth, most, _left(request)) for request, depth in drafting])
        asked = np.array([_asked(request) is not None for request, _ in drafting])
        plan = self._planner.plan(names, bounds, np.where(asked, bounds, 0))
        self._widths = dict(zip(names, plan.widths.tolist(), strict=True))
        return min(plan.depth, most)

    def observe(self, output: SchedulerOutput, verified: Mapping[str, tuple[int, int]]) -> None:
        """After a step: what was drafted and accepted of each request, and how long it took."""
        now, before = perf_counter(), self._last_update
        self._last_update = now if self._scheduler.has_unfinished_requests() else None
        if self._planner is None:
            return
        tokens = output.num_scheduled_tokens
        names = [name for name in tokens if name in self._begun]
        pairs = np.array([verified.get(name, (0, 0)) for name in names]).reshape(-1, 2)
        if names:
            self._planner.observe(names, pairs[:, 0], pairs[:, 1])
        drafts = output.scheduled_spec_decode_tokens
        width = sum(len(drafted) for drafted in drafts.values())
        decoding = sum(tokens.values()) == len(tokens) + width
        if before is not None and decoding and names:
            depth = output.num_spec_tokens_to_schedule
            self._planner.observe_step(len(tokens), width, depth, now - before)

    def forget(self, request: Request) -> None:
        """A request is over."""
        self._widths.pop(request.request_id, None)
        if self._planner is not None and request.request_id in self._begun:
            self._begun.discard(request.request_id)
            self._planner.end(request.request_id)

    def _begin(self, planner: Planner, request: Request) -> None:
        extra = _extra(request)
        context = (request.num_prompt_tokens // 1024).bit_length()
        traffic = f"{extra.get(TRAFFIC, '')}/{context}"
        planner.begin(request.request_id, traffic, str(extra.get(TENANT, "")))
        self._begun.add(request.request_id)


def _extra(request: Request) -> dict[str, Any]:
    return (request.sampling_params.extra_args if request.sampling_params else None) or {}


def _asked(request: Request) -> int | None:
    """The depth a request brought with it."""
    depth = _extra(request).get(DEPTH)
    return None if depth is None else int(depth)


def _left(request: Request) -> int:
    """Draft tokens that can still be used: the last token is the target's own."""
    return max(0, int(request.max_tokens - request.num_output_tokens) - 1)
