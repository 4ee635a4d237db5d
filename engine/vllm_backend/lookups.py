"""Lookups beside the draft model, in vLLM's scheduler: ``--lookup N``.

With the first model runner and synchronous scheduling the scheduler receives the draft's tokens
after it knows the tokens that the target has accepted, and what it puts in their place is verified
in the next step. So a lookup replaces them here, of any length up to N, and vLLM validates it
against a grammar like any draft. vLLM's own K is N, because it sizes the rows of grammars and its
counters by K; the draft's depth stays at most the operator's ``num_speculative_tokens``.
``second_lookups.py`` has those of the second model runner.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Any

from vllm.config import CUDAGraphMode, VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request

from eaglegate.engine.speculation.drafts.methods import Runner, StepDepth, find_method
from eaglegate.engine.speculation.lookup.chooser import LookupChooser
from eaglegate.engine.speculation.lookup.twin import TWIN_TOKENS
from eaglegate.engine.vllm_fields import (
    DEPTH,
    LOOKUP_BOUND,
    QUOTES,
    TENANT,
    UNTAUGHT,
    unpack_tokens,
)

LOOKUP = "eaglegate_lookup"
"""Key in vLLM's ``additional_config``: ``{"width": N, "depth": the draft's own K}``."""
MAX_WIDTH = 32
RUN_DEPTH = 1
"""The draft's depth while all requests of a step copy. One pass keeps its KV cache whole."""


class Lookups:
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
        if self._scheduler.planning.share.is_needed:
            # The width of the plan is what a latency class can bear.
            width = min(width, num_drafts)
        return max(0, int(width))

    def _begin(self, request: Request) -> None:
        """Add a request, unless it gets no lookups: its speculation or its lookups are off, the
        planner must not learn from it, or its prompt has no tokens."""
        params = request.sampling_params
        extra = (params.extra_args if params else None) or {}
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
        return quotes[-TWIN_TOKENS:] if is_valid else []

    def list_used(self, output: SchedulerOutput, result: ModelRunnerOutput) -> set[str]:  # noqa: ARG002
        """List the requests of a step whose verified tokens are a lookup's. Called before the
        scheduler reads the step's ``result``."""
        return {
            name for name in output.scheduled_spec_decode_tokens if self.chooser.uses_lookup(name)
        }

    def count_drafted(self, name: str, drafted: int, accepted: int) -> int:  # noqa: ARG002
        """Count the verified tokens of a request that a drafter has proposed."""
        return drafted

    def mark(self, output: SchedulerOutput, depth: int) -> None:
        """Mark a scheduled step for the worker; ``depth`` is the draft's depth after it."""

    def observe(self, output: SchedulerOutput) -> None:
        """Called after the scheduler has read a step's result."""

    def widen(self, requests: Sequence[Request]) -> None:
        """Choose the widths of the step that asynchronous scheduling schedules next."""

    def limit_depth(self, requests: Sequence[Request], depth: int) -> int:
        """Return the depth of the draft's next pass: ``RUN_DEPTH`` while all requests copy."""
        if depth <= RUN_DEPTH or not requests:
            return depth
        is_copying = self.chooser.are_sure(request.request_id for request in requests)
        return RUN_DEPTH if is_copying else depth

    def forget(self, request: Request) -> None:
        self.chooser.end(request.request_id)
        self._limits.pop(request.request_id, None)


def read_lookup(additional_config: Any) -> tuple[int, int] | None:
    """Return (longest lookup, the draft's depth) of vLLM's ``additional_config``; None without
    lookups."""
    is_mapping = isinstance(additional_config, Mapping)
    settings = additional_config.get(LOOKUP) if is_mapping else None
    return None if settings is None else (int(settings["width"]), int(settings["depth"]))


def describe_lookups(settings: tuple[int, int] | None) -> str:
    """Return the end of a sentence about speculation; empty without lookups."""
    if settings is None:
        return ""
    return f", lookups of up to {settings[0]} tokens"


def _has_graphs(config: VllmConfig) -> bool:
    mode = config.compilation_config.cudagraph_mode
    return mode is not None and mode.decode_mode() == CUDAGraphMode.FULL


def refuse_lookups(config: VllmConfig) -> None:
    """Raise ValueError if lookups would be wrong with this configuration, with what to do."""
    settings = read_lookup(config.additional_config)
    if settings is None:
        return
    width, depth = settings
    draft, parallel, model = (
        config.speculative_config,
        config.parallel_config,
        config.model_config,
    )
    is_parallel = getattr(draft, "parallel_drafting", False)
    method = find_method({"method": draft.method, "parallel_drafting": is_parallel})
    is_second = bool(config.use_v2_model_runner)
    behaviour = method.on(Runner.SECOND if is_second else Runner.FIRST)
    problem = None
    if config.scheduler_config.async_scheduling and not is_second:
        problem = (
            "works with synchronous scheduling on vLLM's first model runner; add "
            "--no-async-scheduling"
        )
    elif method.lookup:
        problem = (
            f"works beside a draft model, and {method.name} looks drafts up itself; leave it out"
        )
    elif is_second and draft.use_multi_module_mtp():
        problem = (
            "works beside an MTP draft of several layers on vLLM's first model runner only; set "
            "VLLM_USE_V2_MODEL_RUNNER=0"
        )
    elif behaviour.depth is not StepDepth.ANY:
        names = "eagle, eagle3, mtp" if is_second else "eagle, eagle3, mtp, draft_model"
        problem = (
            f"works beside a draft whose depth varies by step ({names}), "
            f"and {method.name} {behaviour.summary}; leave it out"
        )
    elif is_second and width > depth and (width + 1) % (depth + 1) and _has_graphs(config):
        fitting_width = max(2, (width + 1) // (depth + 1)) * (depth + 1) - 1
        problem = (
            f"of {width} leaves drafts of {depth} tokens without FULL CUDA graphs: N + 1 must be a "
            f"multiple of {depth + 1}; use --lookup {fitting_width}"
        )
    elif draft.draft_sample_method == "probabilistic":
        problem = (
            "would be verified by the draft's probabilities, which gives another distribution; "
            "set draft_sample_method to greedy"
        )
    elif parallel.data_parallel_size > 1:
        problem = "works without data parallelism, whose ranks draft alike; run one gateway each"
    elif parallel.pipeline_parallel_size > 1:
        problem = "works without pipeline parallelism; use --tensor-parallel-size"
    elif (model.is_hybrid or model.is_attention_free) and width > depth:
        problem = (
            f"of {width} is longer than num_speculative_tokens {depth}, and a recurrent target "
            f"keeps one state per draft token; use --lookup {depth}"
        )
    if problem is not None:
        raise ValueError(f"--lookup {problem}")
