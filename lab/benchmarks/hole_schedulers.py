"""Other ways to treat the draft's KV cache at depth 0, for prefix_holes.py to compare with ours."""

from __future__ import annotations

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from eaglegate.engine.vllm_backend.scheduler import DepthScheduler
from eaglegate.engine.vllm_contract import SKIP


class PublishAll(DepthScheduler):
    """Skips as ours does, but shares what was generated at depth 0 with later requests."""

    def _count_shareable_tokens(self, request: Request) -> int:
        return int(request.num_tokens)


class SkipAll(PublishAll):
    """Skips every draft pass nobody wants, prompts included."""

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)
        setattr(scheduler_output, SKIP, scheduler_output.num_spec_tokens_to_schedule == 0)


class SkipNothing(PublishAll):
    """vLLM's own way: one draft pass in every step."""

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)
        setattr(scheduler_output, SKIP, False)
