"""The prefix cache beside a draft, in vLLM's scheduler.

The output of a request at depth 0 stays out of the prefix cache, because the draft has not seen it,
and it would make a later request draft worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.request import Request

from eaglegate.engine.vllm_backend.scheduler import attach_recomputed
from eaglegate.engine.vllm_backend.step_plugin import StepPlugin
from eaglegate.engine.vllm_contract import SKIP
from eaglegate.features.prefix_cache.engine.drops import PrefixDrops


class PrefixCache(StepPlugin):
    """The prefix cache of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.drops = PrefixDrops(scheduler.kv_cache_manager)
        self._shareable_tokens: dict[str, int] = {}
        if scheduler.num_spec_tokens:
            self._limit_blocks()

    def _limit_blocks(self) -> None:
        coordinator = self._scheduler.kv_cache_manager.coordinator
        cache_blocks = coordinator.cache_blocks

        def cache_shareable_blocks(request: Request, num_computed_tokens: int) -> None:
            cache_blocks(request, min(num_computed_tokens, self._count_shareable_tokens(request)))

        coordinator.cache_blocks = cache_shareable_blocks

    def _count_shareable_tokens(self, request: Request) -> int:
        """Count the tokens before the first hole in the draft's KV cache."""
        req_id = request.request_id
        if req_id not in self._shareable_tokens and self._scheduler.get_depth(request) == 0:
            self._shareable_tokens[req_id] = max(
                request.num_prompt_tokens, request.num_computed_tokens
            )
        return int(self._shareable_tokens.get(req_id, request.num_tokens))

    def mark(self, output: SchedulerOutput, depth: int) -> None:  # noqa: ARG002
        """Keep the results of a step without a draft model out of the cache."""
        if not (getattr(output, SKIP, False) and self._scheduler.planning.active):
            return
        for name, num_tokens in output.num_scheduled_tokens.items():
            request = self._scheduler.requests[name]
            num_computed = request.num_computed_tokens - num_tokens
            self._shareable_tokens.setdefault(name, max(request.num_prompt_tokens, num_computed))

    def begin_answer(self, output: EngineCoreOutput) -> None:
        attach_recomputed(output, self.drops.count(output.request_id))

    def end(self, request: Request) -> None:
        self._shareable_tokens.pop(request.request_id, None)
        self.drops.take(request.request_id)

    def describe(self) -> Mapping[str, object]:
        """Describe the draft's cost in the cache: prompt tokens computed again, and their time.

        A planner's gains are relative to depth 0 with the same draft. The gains over an engine
        without a draft are smaller by this time.
        """
        num_tokens = self.drops.total
        if not num_tokens:
            return {}
        token_s = self._scheduler.planning.prompt_token_s
        seconds = None if token_s is None else num_tokens * token_s
        return {"recomputed_tokens": num_tokens, "recomputed_s": seconds}


make_plugin = PrefixCache
