"""Sharing of steps in vLLM's scheduler: enforcement of a ration.

``features/fair_share/fair_share.py`` says who gets how much of a step.

- A request that must wait for a step gets a later ``next_decode_eligible_step``, which vLLM itself
  uses to space decodes under pipeline parallelism. With asynchronous scheduling its drafts stay in
  the worker, which keeps only those of the last step. The request then verifies none at first.
- Drafts are cut before they are scheduled, as for a request's own depth.
- Prompts are limited by the tokens of the step. Requests of the latency class come first among the
  running and the waiting requests, so that the limit and preemption affect the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from eaglegate.engine.vllm_backend.planning import get_draft_depth, get_extra
from eaglegate.engine.vllm_backend.scheduler import sort_waiting
from eaglegate.engine.vllm_backend.step_plugin import StepAccount, StepPlugin
from eaglegate.engine.vllm_fields import LATENCY, TENANT, WEIGHT
from eaglegate.features.fair_share.fair_share import DecodingRow, FairShare, Ration, ShareMember

SHARED = "shared_step"
"""Attribute of a SchedulerOutput: the work that others add to a step of a latency class."""


class StepSharing(StepPlugin):
    """Keeps other requests within their ration in the steps of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.share = FairShare()
        self._planning = planning = scheduler.planning
        config = scheduler.vllm_config
        self._asynchronous = bool(config.scheduler_config.async_scheduling)
        self._may_cut = planning.may_cut
        may_leave_drafts = self._may_cut or not self._asynchronous
        self._may_hold = config.parallel_config.pipeline_parallel_size == 1 and may_leave_drafts
        self._may_split = bool(
            scheduler.scheduler_config.enable_chunked_prefill
            and not scheduler.need_mamba_block_aligned_split
        )
        self._depth = 0
        """Number of draft tokens that the last step made for each request."""
        self._max_tokens: int | None = None
        """vLLM's limit of a step's tokens, while a step is limited; None otherwise."""

    @property
    def needs_times(self) -> bool:  # type: ignore[override]
        return self.share.is_needed

    @property
    def binds_widths(self) -> bool:  # type: ignore[override]
        """The width of the plan is what a latency class can bear."""
        return self.share.is_needed

    def add(self, request: Request) -> None:
        extra = get_extra(request)
        objective = extra.get(LATENCY)
        weight = max(float(extra.get(WEIGHT, 1.0)), 1e-3)
        objective_s = float(objective or 0.0) / 1e3
        member = ShareMember(str(extra.get(TENANT, "")), weight, objective is not None, objective_s)
        self.share.add(request.request_id, member)

    def end(self, request: Request) -> None:
        self.share.remove(request.request_id)

    def choose(self, requests: Sequence[Request]) -> Collection[str]:
        """Return the requests of the latency class, if one runs."""
        if not self.share.is_needed:
            return ()
        names = (request.request_id for request in requests)
        return [name for name in names if self.share.is_latency(name)]

    def observe(self, output: SchedulerOutput, account: StepAccount) -> None:
        if self.share.is_needed:
            self.share.observe(account.counts)
        shared_step = getattr(output, SHARED, None)
        if account.seconds is not None and shared_step is not None:
            self.share.observe_step(shared_step, account.seconds)

    def describe(self) -> Mapping[str, object]:
        """Describe the sharing, after a latency class has run."""
        sharing = self.share.describe()
        return {"sharing": sharing} if sharing else {}

    def forget_tenants(self, tenants: Collection[str]) -> None:
        self.share.forget(tenants)

    def begin_step(self) -> None:
        """Limit other requests in the step that is scheduled next."""
        if not self.share.is_needed:
            return
        scheduler = self._scheduler
        self._put_latency_first()
        pending_tokens = {request.request_id: _count_left(request) for request in scheduler.running}
        decoding_requests = [
            request
            for request in scheduler.running
            if _is_decoding(request, pending_tokens[request.request_id])
        ]
        rows = [
            DecodingRow(request.request_id, len(request.spec_token_ids))
            for request in decoding_requests
        ]
        num_tokens = sum(pending_tokens[row.name] for row in rows)
        latency_prompt, other_prompt = self._count_prompts(
            pending_tokens, {row.name for row in rows}
        )
        ration = self.share.ration(rows, other_prompt, self._depth) if self._may_hold else None
        self._max_tokens = max_tokens = scheduler.max_num_scheduled_tokens
        if ration is not None:
            num_saved = self._apply(ration, decoding_requests, pending_tokens)
            if ration.prompt is not None and self._may_split:
                num_tokens += latency_prompt + ration.prompt - num_saved
                scheduler.max_num_scheduled_tokens = max(1, min(max_tokens, num_tokens))
                if not ration.prompt:
                    self._hold(
                        request
                        for request in scheduler.running
                        if self._is_other_prompt(request, pending_tokens)
                    )

    def settle(self, output: SchedulerOutput) -> None:
        """Charge the ration for the scheduled step."""
        if self._max_tokens is None:
            return
        self._scheduler.max_num_scheduled_tokens, self._max_tokens = self._max_tokens, None
        drafts = output.scheduled_spec_decode_tokens
        rows, prompt, reads_first = [], 0, False
        for name, tokens in output.num_scheduled_tokens.items():
            width = len(drafts.get(name, ()))
            if tokens == 1 + width:
                rows.append(DecodingRow(name, width))
            elif self.share.is_latency(name):
                reads_first = True
            else:
                prompt += tokens
        num_drafts = get_draft_depth(output)
        shared_step = self.share.settle(rows, prompt, self._depth, num_drafts)
        setattr(output, SHARED, None if reads_first else shared_step)
        self._depth = num_drafts

    def _put_latency_first(self) -> None:
        scheduler, is_latency = self._scheduler, self.share.is_latency
        scheduler.running.sort(key=lambda request: not is_latency(request.request_id))
        sort_waiting(scheduler, lambda request: not is_latency(request.request_id))

    def _count_prompts(self, pending_tokens: dict[str, int], decoding: set[str]) -> tuple[int, int]:
        """Count the prompt tokens still to be read, of the latency class and of others."""
        counts = [0, 0]
        for name, tokens in pending_tokens.items():
            if name not in decoding:
                counts[not self.share.is_latency(name)] += tokens
        for request in self._scheduler.waiting:
            tokens = max(1, int(request.num_tokens - request.num_computed_tokens))
            counts[not self.share.is_latency(request.request_id)] += tokens
        return counts[0], counts[1]

    def _apply(
        self, ration: Ration, decoding_requests: list[Request], pending_tokens: dict[str, int]
    ) -> int:
        """Hold and cut requests, and return the number of tokens that the step saves."""
        held_names = set(ration.held_requests) if self._may_hold else set()
        num_saved = 0
        for request in decoding_requests:
            name = request.request_id
            width = 0 if name in ration.held_requests else ration.widths.get(name)
            if name in held_names:
                self._hold([request])
                num_saved += pending_tokens[name]
            elif self._may_cut and width is not None and width < len(request.spec_token_ids):
                num_saved += len(request.spec_token_ids) - width
                request.spec_token_ids = request.spec_token_ids[:width]
                self._planning.limit_width(request, width)
        return num_saved

    def _hold(self, requests: Iterable[Request]) -> None:
        """Leave requests out of the next step."""
        for request in requests:
            step = self._scheduler.current_step + 2
            request.next_decode_eligible_step = max(request.next_decode_eligible_step, step)
            if self._asynchronous and request.spec_token_ids:
                request.spec_token_ids = []
                self._planning.limit_width(request, 0)

    def _is_other_prompt(self, request: Request, pending_tokens: dict[str, int]) -> bool:
        name = request.request_id
        return not self.share.is_latency(name) and not _is_decoding(
            request, pending_tokens.get(name, 0)
        )


def _count_left(request: Request) -> int:
    """Return the number of a running request's tokens that a step without limits computes."""
    num_tokens = request.num_tokens_with_spec + request.num_output_placeholders
    return int(num_tokens - request.num_computed_tokens)


def _is_decoding(request: Request, num_pending: int) -> bool:
    return num_pending <= 1 + len(request.spec_token_ids)


make_plugin = StepSharing
