"""Lookups beside the draft model, in vLLM's scheduler: ``--lookup N``.

With the first model runner and synchronous scheduling the scheduler receives the draft's tokens
after it knows the tokens that the target has accepted, and what it puts in their place is verified
in the next step. So a lookup replaces them here, of any length up to N, and vLLM validates it
against a grammar like any draft. vLLM's own K is N, because it sizes the rows of grammars and its
counters by K; the draft's depth stays at most the operator's ``num_speculative_tokens``.
``second_runner.py`` has those of the second model runner.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request

from eaglegate.engine.vllm_backend.planning import get_extra
from eaglegate.engine.vllm_backend.step_plugin import StepPlugin
from eaglegate.engine.vllm_fields import (
    DEPTH,
    LOOKUP_BOUND,
    MAX_QUOTES,
    QUOTES,
    TENANT,
    UNTAUGHT,
    unpack_tokens,
)
from eaglegate.features.lookups.chooser import LookupChooser

RUN_DEPTH = 1
"""The draft's depth while all requests of a step copy. One pass keeps its KV cache whole."""


class Lookups(StepPlugin):
    """Lookups of one scheduler's requests."""

    def __init__(self, scheduler: Any, width: int) -> None:
        self._scheduler = scheduler
        self.width = width
        self.chooser = LookupChooser(width, scheduler.draft_depth)
        self._limits: dict[str, int] = {}
        """Longest lookup of each request, by its depth and its rule."""
        self._random = Random(0)
        """Widths in the planner's mode ``random``, because text must not depend on them."""

    def replace(self, proposal: DraftTokenIds, drafts: list[list[int]]) -> list[list[int]]:
        """Return the tokens to verify: for each request a lookup, or its ``drafts``.

        ``proposal`` has the draft's tokens uncut, by which the draft is scored.
        """
        scheduler, chooser = self._scheduler, self.chooser
        names = proposal.req_ids
        self._begin_step(names)
        limit = self._get_limit()
        is_random = scheduler.planning.mode == "random"
        for place, (name, tokens) in enumerate(zip(names, proposal.draft_token_ids, strict=True)):
            request = scheduler.requests.get(name)
            if request is None or name not in chooser:
                continue
            if request.is_prefill_chunk or request.is_finished():
                continue
            useful_drafts = drafts[place]
            width = self._limit_width(request, limit, len(useful_drafts))
            lookup = chooser.choose(name, tokens, len(useful_drafts), width)
            if is_random:
                lookup = chooser.copy(name, self._random.randint(0, max(0, width)))
            if lookup is not None:
                drafts[place] = lookup
        return drafts

    def _begin_step(self, names: Collection[str]) -> None:
        """Begin the choice for the requests of a step: take the price of a token, add requests that
        are new, and build indexes."""
        scheduler, chooser = self._scheduler, self.chooser
        if (price := scheduler.planning.get_token_price(len(names))) is not None:
            chooser.acceptance.price = price
        for name in names:
            if name not in chooser and (request := scheduler.requests.get(name)) is not None:
                self._begin(request)
        chooser.begin_step()

    def _get_limit(self) -> int:
        """Return the longest lookup: N, unless an operator has bounded or frozen the depth."""
        scheduler = self._scheduler
        bounds = [self.width]
        if scheduler.ceiling < scheduler.draft_depth:
            bounds.append(scheduler.ceiling)
        frozen_depth = scheduler.planning.frozen_depth
        if frozen_depth is not None:
            bounds.append(frozen_depth)
        return min(bounds)

    def _limit_width(self, request: Request, limit: int, num_drafts: int) -> int:
        """Return the longest lookup of a request. ``num_drafts`` of the draft's tokens would be
        verified instead."""
        num_useful = request.max_tokens - request.num_output_tokens - 1
        width = min(limit, self._limits[request.request_id], num_useful)
        if self._scheduler.plugins.binds_widths:
            width = min(width, num_drafts)
        return max(0, int(width))

    def _begin(self, request: Request) -> None:
        """Add a request, unless it gets no lookups: its speculation or its lookups are off, the
        planner must not learn from it, or its prompt has no tokens."""
        extra = get_extra(request)
        bounds = (extra.get(DEPTH), extra.get(LOOKUP_BOUND))
        limit = min(int(bound) for bound in (self.width, *bounds) if bound is not None)
        if limit <= 0 or UNTAUGHT in extra or request.prompt_token_ids is None:
            return
        name = request.request_id
        self._limits[name] = limit
        traffic = self._scheduler.planning.name_traffic(request)
        tenant = str(extra.get(TENANT, ""))
        # The live list, not a copy: 100,000 tokens would cost a step half a millisecond.
        text = request._all_token_ids
        sources = [quotes] if (quotes := self._read_quotes(extra)) else []
        self.chooser.begin(name, text, request.num_prompt_tokens, traffic, tenant, sources)

    def _read_quotes(self, extra: Mapping[str, Any]) -> list[int]:
        """Return the tokens that a request may quote beside its prompt. Tokens outside the
        vocabulary would stop the engine, and vLLM checks only those of prompts."""
        quotes = unpack_tokens(extra.get(QUOTES, ""))
        vocabulary = self._scheduler.vllm_config.model_config.get_vocab_size()
        is_valid = quotes and min(quotes) >= 0 and max(quotes) < vocabulary
        return quotes[-MAX_QUOTES:] if is_valid else []

    def read(self, output: SchedulerOutput, result: ModelRunnerOutput) -> set[str]:  # noqa: ARG002
        """List the requests of a step whose verified tokens are a lookup's. Called before the
        scheduler reads the step's ``result``."""
        return {
            name for name in output.scheduled_spec_decode_tokens if self.chooser.uses_lookup(name)
        }

    def limit_depth(self, requests: Sequence[Request], depth: int) -> int:
        """Return the depth of the draft's next pass: ``RUN_DEPTH`` while all requests copy."""
        if depth <= RUN_DEPTH or not requests:
            return depth
        is_copying = self.chooser.are_sure(request.request_id for request in requests)
        return RUN_DEPTH if is_copying else depth

    def describe(self) -> Mapping[str, object]:
        return {"lookups": self.chooser.describe()}

    def forget_tenants(self, tenants: Collection[str]) -> None:
        self.chooser.acceptance.forget(tenants)

    def forget_draft(self) -> None:
        self.chooser.acceptance.forget_draft()

    def end(self, request: Request) -> None:
        self.chooser.end(request.request_id)
        self._limits.pop(request.request_id, None)
