"""vLLM's scheduler with a speculation depth per request and an exact account of every step.

``scheduler_cls`` selects it, and it runs in the engine process. Each step drafts as many tokens as
its deepest request asks for, and every request keeps as many drafts as it asks for itself:

* with synchronous scheduling the scheduler receives the drafts and shortens them
  (``update_draft_token_ids``), also if they would pass a request's last token;
* with asynchronous scheduling they stay in the worker, which takes as many as the request has
  placeholders (``_limit_placeholders``).

Two features of vLLM are off, because they count drafts that were never made: padding requests with
-1 after a hit in the cache of blocks, and zeros for drafts near the end of the context.

With a planner (``--depth auto``, speculation/planner/) requests without their own depth get the
most profitable depth; ``planning.py`` asks the planner at every step.

A step in which no request drafts skips the draft model (``patches/draft_pass.py``) and so leaves a
hole in its KV cache. Prompts are never skipped. What a step may carry besides its plan and its
account is a plug-in (``step_plugin.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.engine.core import EngineCore
from vllm.v1.metrics.stats import RequestSpecDecodeMetrics
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.spec_decode.metrics import SpecDecodingStats

from eaglegate.engine.speculation.drafts.methods import StepDepth
from eaglegate.engine.types import find_class
from eaglegate.engine.vllm_backend.child_process import exit_with_parent
from eaglegate.engine.vllm_backend.draft_reload import (
    discard_draft,
    get_staged,
    stage_draft,
    swap_draft,
)  # fmt: skip
from eaglegate.engine.vllm_backend.flight_record import FlightRecorder
from eaglegate.engine.vllm_backend.graphs import is_declaration
from eaglegate.engine.vllm_backend.planning import StepPlanning, get_extra, get_own_depth
from eaglegate.engine.vllm_backend.plugin_table import load_step_plugins
from eaglegate.engine.vllm_backend.runners import make_runner
from eaglegate.engine.vllm_backend.step_plugin import StepAccount, StepPlugins
from eaglegate.engine.vllm_contract import SKIP, read_draft_depth
from eaglegate.engine.vllm_fields import TRACED, mark_other_drafter, unpack_depth

DESCRIBER = ThreadPoolExecutor(1, "describe-slices")


class DepthSchedulerBase(Scheduler):  # type: ignore[misc]
    """Base of both schedulers below. ``ceiling`` is the greatest depth that any request gets."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = self.vllm_config.additional_config
        self.draft_depth: int = read_draft_depth(config, self.num_spec_tokens)
        """Greatest depth of the draft. vLLM's K is greater if a plug-in verifies more tokens."""
        self.ceiling: int = self.draft_depth
        self._verify_counts: dict[str, tuple[int, int]] = {}
        self._traced_requests: set[str] = set()
        """Requests whose accounts include their draft tokens."""
        self._answers: RequestAccounts | None = None
        self._own_schedule = self._take_over_schedule()
        self.runner = make_runner(self.vllm_config)
        self.method, self.behaviour = self.runner.method, self.runner.behaviour
        self.planning = StepPlanning(self, self.behaviour, self.method.may_find_none)
        self._flight = FlightRecorder()
        self._is_uniform = self.vllm_config.parallel_config.data_parallel_size > 1
        plugins = (module.make_plugin(self) for module in load_step_plugins(config))
        self.plugins = StepPlugins(plugin for plugin in plugins if plugin is not None)

    @property
    def fixed(self) -> bool:
        """True if every step drafts and verifies K tokens, whatever a request asks for."""
        return self.behaviour.depth is StepDepth.FIXED

    def get_depth(self, request: Request) -> int:
        """Return the depth that this request wants, limited by the engine and the ceiling."""
        if self.fixed:
            return int(self.num_spec_tokens)
        depth = get_own_depth(request)
        return self.ceiling if depth is None else max(0, min(depth, self.ceiling))

    def _get_width(self, request: Request) -> int:
        """Return the number of this request's draft tokens to verify next."""
        return self.planning.get_width(request, self.get_depth(request))

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        self.plugins.call("begin_step")
        output: SchedulerOutput = super().schedule(throttle_prefills)
        self.plugins.call("settle", output)
        return output

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)
        self._flight.write(
            request.request_id for request in self.running if not request.num_output_tokens
        )
        if not self.num_spec_tokens:
            return
        tokens = scheduler_output.num_scheduled_tokens
        requests = [self.requests[req_id] for req_id in tokens]
        self.planning.note(scheduler_output)
        depth = self._get_step_depth(requests)
        is_decoding = all(
            is_past_prompt(self.requests[req_id], tokens[req_id]) for req_id in tokens
        )
        skip = depth == 0 and is_decoding and self.behaviour.skips and not self._is_uniform
        setattr(scheduler_output, SKIP, skip)
        if skip and self.planning.active:
            self.planning.note_skipped(requests)
        if not self._is_uniform and self.behaviour.depth is StepDepth.ANY:
            scheduler_output.num_spec_tokens_to_schedule = depth
        self.plugins.call("mark", scheduler_output, depth)
        self._limit_placeholders(requests, depth)

    def _get_step_depth(self, requests: list[Request]) -> int:
        """Choose the depth to draft after this step: the greatest depth of its requests."""
        if not self.runner.drafts_for(requests):
            return 0
        request_depths = [
            (request, self.get_depth(request))
            for request in requests
            if not request.is_prefill_chunk
        ]
        if self.planning.active:
            depth = self.planning.plan(request_depths)
        else:
            limit = self._get_batch_limit(len(requests))
            depth = min(limit, max((depth for _, depth in request_depths), default=0))
        return int(self.plugins.pass_on("limit_depth", requests, depth))

    def _limit_placeholders(self, requests: list[Request], depth: int) -> None:
        """Limit the placeholders of drafts. Only asynchronous scheduling has placeholders."""

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        if not (any(draft_token_ids.draft_token_ids) or self.plugins.replaces_drafts):
            return  # a scheduled request has no drafts until it gets new ones
        drafts = zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True)
        useful_drafts = [
            list(tokens[: self.count_useful_drafts(req_id)]) for req_id, tokens in drafts
        ]
        useful_drafts = self.plugins.pass_on("replace", draft_token_ids, useful_drafts)
        super().update_draft_token_ids(DraftTokenIds(draft_token_ids.req_ids, useful_drafts))

    def count_useful_drafts(self, req_id: str) -> int:
        """Return the number of drafts worth verifying. The bonus token takes one of the remaining
        tokens.

        With CUDA graphs, the same width as the other requests is worth more than the saved tokens.
        """
        request = self.requests.get(req_id)
        if request is None:
            return 0
        if self.planning.graphs is not None:
            return self._get_width(request)
        num_remaining = request.max_tokens - request.num_output_tokens
        return int(min(self._get_width(request), max(0, num_remaining - 1)))

    def make_spec_decoding_stats(
        self,
        spec_decoding_stats: SpecDecodingStats | None,
        num_draft_tokens: int,
        num_accepted_tokens: int,
        num_invalid_spec_tokens: dict[str, int] | None,
        request_id: str,
    ) -> SpecDecodingStats | None:
        """Record the counts before any cut. Called once per verified request and step."""
        num_invalid = (num_invalid_spec_tokens or {}).get(request_id, 0)
        num_drafted = num_draft_tokens - num_invalid
        num_drafted = self.plugins.count_drafted(request_id, num_drafted, num_accepted_tokens)
        self._verify_counts[request_id] = (num_drafted, num_accepted_tokens)
        if num_draft_tokens == num_invalid:
            return spec_decoding_stats
        counts = num_draft_tokens, num_accepted_tokens, num_invalid_spec_tokens, request_id
        stats: SpecDecodingStats | None = super().make_spec_decoding_stats(
            spec_decoding_stats, *counts
        )
        return stats

    def add_request(self, request: Request) -> None:
        if get_extra(request).get(TRACED):
            self._traced_requests.add(request.request_id)
        self.plugins.call("add", request)
        super().add_request(request)
        sort_waiting(self, lambda waiting_request: find_class(waiting_request.priority))

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        depths = {
            req_id: self.planning.get_depth_in_force(
                scheduler_output, request, self.get_depth(request)
            )
            for req_id in scheduler_output.num_scheduled_tokens
            if (request := self.requests.get(req_id)) is not None
        }
        traces = self._list_traces(scheduler_output, depths) if self._traced_requests else {}
        answers = self.plugins.collect("read", scheduler_output, model_runner_output)
        other_names = set[str]().union(*answers)
        for name in other_names & depths.keys():
            depths[name] = mark_other_drafter(depths[name])
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(
            scheduler_output, model_runner_output
        )
        seconds = None
        if self.planning.active or self.plugins.needs_times:
            # A step that accepts tokens behind the draft's own says nothing about its depths.
            wide_names = {
                name
                for name, (drafted, _) in self._verify_counts.items()
                if drafted > self.draft_depth
            }
            seconds = self.planning.observe(
                scheduler_output, self._verify_counts, other_names | wide_names
            )
        account = StepAccount(self._verify_counts, depths, seconds)
        self.plugins.call("observe", scheduler_output, account)
        self._attach_accounts(outputs.values(), depths)
        if traces and self._answers is None:
            _attach_traces(outputs.values(), traces)
        return outputs

    def _list_traces(
        self, scheduler_output: SchedulerOutput, depths: Mapping[str, int]
    ) -> dict[str, tuple[list[int], list[int]]]:
        """List the draft tokens of traced requests that this step verifies, and the packed rates of
        their plan.

        Asynchronous scheduling has -1 in place of the tokens, because the ids stay in the worker. A
        grammar puts -1 in place of drafts that it does not allow.
        """
        drafts, rates = scheduler_output.scheduled_spec_decode_tokens, None
        traces = {}
        for name in self._traced_requests & depths.keys():
            token_ids = [int(token) for token in drafts.get(name, ()) if token >= 0]
            _, reason, _ = unpack_depth(depths[name])
            if reason is not None and rates is None:
                rates = self.planning.pack_rates(scheduler_output)
            traces[name] = token_ids, rates or [] if reason is not None else []
        return traces

    def _attach_accounts(
        self, outputs: Iterable[EngineCoreOutputs], depths: dict[str, int]
    ) -> None:
        """Attach this step's account to every output. ``translate.read_decode_step`` reads it."""
        for batch in outputs:
            for output in batch.outputs:
                drafted, accepted = self._verify_counts.get(output.request_id, (0, 0))
                depth = depths.get(output.request_id, 0)
                output.spec_decode_metrics = (
                    make_step_account(depth, drafted, accepted)
                    if self._answers is None
                    else self._answers.add(output, drafted, accepted)
                )
                if output.prefill_stats is not None and self._answers is None:
                    self.plugins.call("begin_answer", output)
        self._verify_counts.clear()
        if self._answers is not None:
            self._answers.forget_others(self.requests)

    def account_per_answer(self) -> None:
        """Account per answer, because vLLM's own server reports only the account of a request's
        last output."""
        self._answers = RequestAccounts(self.num_spec_tokens)

    def set_planning(self, mode: str) -> str:
        """Set the mode (``auto``, ``random`` or ``off``), and return the mode in force."""
        can_plan = (
            self.num_spec_tokens and self._own_schedule and not self._is_uniform and not self.fixed
        )
        self.planning.start(mode if can_plan else "off")
        return self.planning.mode

    def forget_draft(self) -> None:
        """Forget what was learnt of the last draft's acceptance, because another draft serves."""
        self.planning.restart()
        self.plugins.call("forget_draft")

    def _take_over_schedule(self) -> bool:
        """Return True if the scheduler may ignore vLLM's depth by batch size. A table also turns
        off the padding with -1."""
        if not self.num_spec_tokens:
            return True
        table = self.vllm_config.speculative_config.num_speculative_tokens_per_batch_size
        if table and not is_declaration(table):
            return False
        self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.max_num_running_reqs + 1)
        return True

    def _get_batch_limit(self, batch_size: int) -> int:
        """Return the depth limit of the user's own table of depths by batch size, or K without a
        table."""
        if self._own_schedule or self.dynamic_sd_lookup is None:
            return self.draft_depth
        return min(self.draft_depth, int(self.dynamic_sd_lookup[batch_size]))

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self.planning.forget(request)
        self.plugins.call("end", request)
        self._traced_requests.discard(request.request_id)
        return super()._free_request(request, *args, **kwargs)


class DepthScheduler(DepthSchedulerBase):
    """Scheduler for synchronous scheduling."""


class AsyncDepthScheduler(DepthSchedulerBase, AsyncScheduler):  # type: ignore[misc]
    """Scheduler for asynchronous scheduling."""

    def _limit_placeholders(self, requests: list[Request], depth: int) -> None:
        for request in requests:
            if not request.is_prefill_chunk:
                request.spec_token_ids = [-1] * min(self._get_width(request), depth)


class RequestAccounts:
    """Accounts of whole answers in vLLM's ``detailed`` format, with steps without a draft in
    addition.

    Steps without a draft are zeros in the per-step lists. The histogram counts only verify steps.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._accounts: dict[str, RequestSpecDecodeMetrics] = {}

    def add(
        self, output: EngineCoreOutput, drafted: int, accepted: int
    ) -> RequestSpecDecodeMetrics | None:
        """Add an output. Return the whole answer's account with its last output, else None."""
        account = self._accounts.get(output.request_id)
        if account is None:
            account = RequestSpecDecodeMetrics.new(self._depth)
            self._accounts[output.request_id] = account
        elif drafted:
            account.observe(drafted, accepted, detailed=True)
        elif output.new_token_ids:
            account.per_step_drafted.append(0)
            account.per_step_accepted.append(0)
        return None if output.finish_reason is None else account

    def forget_others(self, requests: Mapping[str, Request]) -> None:
        """Forget all other requests, which have ended or were aborted."""
        for req_id in self._accounts.keys() - requests.keys():
            del self._accounts[req_id]


@lru_cache(maxsize=4096)
def make_step_account(depth: int, drafted: int, accepted: int) -> RequestSpecDecodeMetrics:
    """Return one step's account in vLLM's field for a request's. Cached, because few different ones
    exist."""
    return RequestSpecDecodeMetrics(depth, histogram=[accepted], num_draft_tokens=drafted)


def attach_recomputed(output: EngineCoreOutput, num_tokens: int) -> None:
    """Attach the prompt tokens that are computed again because of the draft to a request's first
    output."""
    if num_tokens and output.spec_decode_metrics is not None:
        # An EngineCoreOutput has no field for this number, and a new one would not survive msgpack
        # on its way to the front end. ``per_step_accepted`` of vLLM's RequestSpecDecodeMetrics
        # (vllm/v1/metrics/stats.py) is free: a step's own account uses only ``histogram`` and
        # ``num_draft_tokens``. ``outputs.py`` reads element 0 of it. A copy, because
        # ``make_step_account`` returns the same object to every request.
        output.spec_decode_metrics = replace(
            output.spec_decode_metrics, per_step_accepted=[num_tokens]
        )


def _attach_traces(
    outputs: Iterable[EngineCoreOutputs], traces: Mapping[str, tuple[list[int], list[int]]]
) -> None:
    """Add the ids of draft tokens and the rates of plans to the accounts of traced requests."""
    for batch in outputs:
        for output in batch.outputs:
            account, trace = output.spec_decode_metrics, traces.get(output.request_id)
            if account is None or trace is None:
                continue
            # ``per_step_drafted`` carries ids, not counts, and ``per_step_accepted`` rates, unless
            # it has the drop of a prompt. ``outputs.py`` makes a StepTrace of them. See
            # ``attach_recomputed`` for the reason, and for the copy. Accounts of whole answers use
            # these lists for counts, so ``update_from_output`` attaches nothing there.
            token_ids, rates = trace
            is_prompt = output.prefill_stats is not None
            output.spec_decode_metrics = replace(
                account,
                per_step_drafted=token_ids,
                per_step_accepted=account.per_step_accepted if is_prompt else rates,
            )


def sort_waiting(scheduler: Scheduler, rank: Callable[[Request], int]) -> None:
    """Put waiting requests of a lower rank first. A priority queue keeps its own order."""
    waiting = scheduler.waiting
    if len(waiting) < 2 or not isinstance(waiting, FCFSRequestQueue):
        return
    requests = sorted(waiting, key=rank)
    waiting.clear()
    waiting.extend(requests)


def is_past_prompt(request: Request, scheduled_tokens: int) -> bool:
    """Return True if the step just planned begins after the request's prompt."""
    return bool(request.num_computed_tokens - scheduled_tokens >= request.num_prompt_tokens)


def scheduler(vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> DepthSchedulerBase:
    """Make the scheduler that ``scheduler_cls`` names, for synchronous or asynchronous
    scheduling."""
    is_asynchronous = vllm_config.scheduler_config.async_scheduling
    scheduler_class = AsyncDepthScheduler if is_asynchronous else DepthScheduler
    return scheduler_class(vllm_config, *args, **kwargs)


def server_scheduler(vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> DepthSchedulerBase:
    """Make the scheduler that ``--scheduler-cls`` names for a worker under ``vllm serve``."""
    worker_scheduler = scheduler(vllm_config, *args, **kwargs)
    worker_scheduler.account_per_answer()
    return worker_scheduler


def planning_scheduler(vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> DepthSchedulerBase:
    """Make a worker's scheduler that also plans the depth of requests without their own."""
    worker_scheduler = server_scheduler(vllm_config, *args, **kwargs)
    worker_scheduler.set_planning("auto")
    return worker_scheduler


def set_depth(core: EngineCore, depth: int) -> int:
    """Bound every request's depth from the next step on, and return the bound in force."""
    scheduler = core.scheduler
    if scheduler.fixed:
        return int(scheduler.num_spec_tokens)
    scheduler.ceiling = max(0, min(depth, scheduler.draft_depth))
    return int(scheduler.ceiling)


def set_planning(core: EngineCore, mode: str) -> str:
    """Choose depths by cost (``auto``), at random (``random``, for tests) or not (``off``)."""
    return str(core.scheduler.set_planning(mode))


def describe_planning(core: EngineCore, recent: int) -> dict[str, object]:
    """Describe the planner's estimates and decisions, and its newest steps."""
    scheduler = core.scheduler
    description: dict[str, object] = scheduler.planning.describe(recent)
    for part in scheduler.plugins.collect("describe"):
        description.update(part)
    return description


def describe_slices(core: EngineCore) -> Future[list[dict[str, object]]]:
    """Describe what the planner knows of each slice. vLLM answers when the future is done, so the
    next step waits for the copies alone."""
    return DESCRIBER.submit(core.scheduler.planning.copy_slices())


def forget_tenants(core: EngineCore, tenants: list[str]) -> None:
    """Forget what the traffic of these tenants has taught."""
    scheduler = core.scheduler
    scheduler.planning.forget_tenants(tenants)
    scheduler.plugins.call("forget_tenants", tenants)


def drop_blocks(core: EngineCore) -> int:
    """Drop all cached blocks and return their number. Running requests keep theirs; the next ones
    compute them again."""
    pool = core.scheduler.kv_cache_manager.block_pool
    block_ids = {block.block_id for block in pool.blocks if block.block_hash is not None}
    pool.evict_blocks(block_ids)
    return len(block_ids)


def freeze_planning(core: EngineCore, depth: int | None) -> bool:
    """Hold the planner at ``depth``, or let it choose again if None. Return False without a
    planner."""
    return bool(core.scheduler.planning.freeze(depth))


def export_costs(core: EngineCore) -> dict[str, object]:
    """Export the learnt costs of steps, for ``restore_costs`` of a later engine."""
    costs: dict[str, object] = core.scheduler.planning.export_costs()
    return costs


def restore_costs(core: EngineCore, costs: Mapping[str, object]) -> bool:
    """Restore learnt costs; return False if they do not fit, or if there is no planner."""
    return bool(core.scheduler.planning.restore_costs(costs))


# The front end reaches the engine process by the names of EngineCore's methods.
DRAFT_METHODS = stage_draft, get_staged, discard_draft, swap_draft
PLANNING_METHODS = set_planning, describe_planning, freeze_planning, export_costs, restore_costs
OTHER_METHODS = set_depth, drop_blocks, describe_slices, forget_tenants
for function in (*DRAFT_METHODS, *PLANNING_METHODS, *OTHER_METHODS):
    setattr(EngineCore, function.__name__, function)
exit_with_parent()
