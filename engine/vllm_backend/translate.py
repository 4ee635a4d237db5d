"""Between vLLM and us: configuration, requests, logprobs, errors, and the queue of one's steps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any

from vllm.config import VllmConfig
from vllm.config.speculative import SpeculativeConfig
from vllm.exceptions import GracefulHTTPError, VLLMClientError, VLLMError
from vllm.inputs.engine import tokens_input
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.sampling_params import (
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.engine.exceptions import EngineDeadError

from eaglegate.engine.errors import (
    EngineDead,
    EngineError,
    EngineFailed,
    EngineOverloaded,
    RequestRejected,
)
from eaglegate.engine.speculation.accounting import intern_step
from eaglegate.engine.speculation.lossy import add_lossy, find_lossy
from eaglegate.engine.speculation.methods import find_method
from eaglegate.engine.speculation.prefix_cost import find_prefix_cost
from eaglegate.engine.types import (
    DecodeStep,
    EngineInfo,
    EngineRequest,
    PositionLogprobs,
    SpeculationInfo,
    Step,
    StepSink,
    TokenLogprob,
    UndraftedReason,
)
from eaglegate.engine.vllm_contract import SCHEDULER, WORKER, find_broken
from eaglegate.engine.vllm_fields import (
    DEPTH_BITS,
    build_sampling_fields,
    is_reasoning_ended,
    select_top,
    unpack_depth,
)

log = logging.getLogger(__name__)

ABORTED = "The engine ended the request before its answer was complete."
SAMPLING_DEFAULTS = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens",
)  # fmt: skip


def describe_engine(config: VllmConfig) -> EngineInfo:
    model = config.model_config
    served = model.served_model_name
    speculation = config.speculative_config
    return EngineInfo(
        model=served if isinstance(served, str) else served[0],
        max_model_len=model.max_model_len,
        vocab_size=model.get_vocab_size(),
        speculation=_describe_speculation(speculation),
        reports_decode_steps=(
            speculation is None or config.scheduler_config.scheduler_cls == SCHEDULER
        ),
        thinking_budget=_keeps_thinking_budgets(config),
        degraded=tuple(find_broken()),
        default_sampling=_select_sampling_defaults(model.get_diff_sampling_param()),
        details={
            "dtype": str(model.dtype).removeprefix("torch."),
            "tensor_parallel_size": str(config.parallel_config.tensor_parallel_size),
            **_describe_prefix_cost(config),
        },
    )


def _describe_prefix_cost(config: VllmConfig) -> dict[str, str]:
    """What the draft costs each hit of the prefix cache; empty where there is nothing to say."""
    draft, cache = config.speculative_config, config.cache_config
    if draft is None or not cache.enable_prefix_caching:
        return {}
    target = config.model_config.hf_text_config.to_dict()
    given = {"disable_eagle_block_drop": getattr(draft, "disable_eagle_block_drop", False)}
    cost = find_prefix_cost(given, target, cache.block_size, draft.method)
    return {} if cost is None else {"prefix cache": cost.explain()}


def _keeps_thinking_budgets(config: VllmConfig) -> bool:
    """vLLM's first model runner gives them to the wrong rows of a batch; our worker does not."""
    known = bool(config.reasoning_config and config.reasoning_config.enabled)
    steered = config.parallel_config.worker_extension_cls == WORKER
    return known and bool(steered or config.use_v2_model_runner)


def _select_sampling_defaults(params: Mapping[str, Any]) -> dict[str, float]:
    """vLLM's reading of generation_config.json; a limit of tokens goes by our name."""
    return {name: params[name] for name in SAMPLING_DEFAULTS if params.get(name) is not None}


def _describe_speculation(config: SpeculativeConfig | None) -> SpeculationInfo:
    if config is None:
        return SpeculationInfo("none", 0, summary="no speculation: no draft was given")
    method, depth, draft = _name_method(config), config.num_speculative_tokens, str(config.model)
    known = find_method({"method": config.method}).known
    lossy = find_lossy({field.name: getattr(config, field.name) for field in fields(config)})
    summary = add_lossy(f"{method}, K = {depth}, draft {draft}", lossy)
    return SpeculationInfo(method, depth, draft, summary, per_request=known, lossy=lossy)


def _name_method(config: SpeculativeConfig) -> str:
    """vLLM calls EAGLE 3 and 3.1 both ``eagle3``; the draft's flags distinguish them."""
    draft = getattr(config.draft_model_config, "hf_config", None)
    flags = getattr(draft, "fc_norm", False) or getattr(draft, "norm_output", False)
    return "eagle3.1" if config.method == "eagle3" and flags else str(config.method)


def make_sampling_params(request: EngineRequest) -> SamplingParams:
    """Tokens out, as deltas. Made for one request, so vLLM need not copy them.

    Nor need it look through ``extra_args`` for what its messages cannot hold: we write them.
    """
    fields = build_sampling_fields(request)
    extra_args = fields.pop("extra_args")
    if "repetition_detection" in fields:
        repetition = RepetitionDetectionParams(**fields["repetition_detection"])
        fields["repetition_detection"] = repetition
    if "structured_outputs" in fields:
        fields["structured_outputs"] = StructuredOutputsParams(**fields["structured_outputs"])
    params = SamplingParams(**fields, output_kind=RequestOutputKind.DELTA, skip_clone=True)
    params.extra_args = extra_args
    return params


def make_prompt(request: EngineRequest) -> Any:
    return tokens_input(list(request.prompt), cache_salt=request.cache_salt or None)


def make_options(request: EngineRequest, adapter: LoRARequest | None) -> dict[str, Any]:
    """Make AsyncLLM's options beside the prompt and the sampling."""
    return {
        "request_id": request.id,
        "lora_request": adapter,
        "trace_headers": request.trace_headers or None,
        "priority": request.priority,
        "reasoning_ended": is_reasoning_ended(request.constraint),
    }


Alternatives = Mapping[int, Any]
"""vLLM's log probabilities of one position: token id -> (logprob, rank)."""


def convert_position_logprobs(token_id: int, given: Alternatives, top: int) -> PositionLogprobs:
    """``given`` holds the chosen token and the ``top`` most likely, in no promised order."""
    chosen = given[token_id]
    return PositionLogprobs(
        chosen=TokenLogprob(token_id, chosen.logprob, chosen.rank),
        top=select_top(
            (TokenLogprob(token, entry.logprob, entry.rank) for token, entry in given.items()), top
        ),
    )


def convert_output_logprobs(
    token_ids: Sequence[int], given: Sequence[Alternatives] | None, top: int | None
) -> tuple[PositionLogprobs, ...]:
    if given is None or top is None:
        return ()
    return tuple(
        convert_position_logprobs(token, entry, top)
        for token, entry in zip(token_ids, given, strict=True)
    )


def convert_prompt_logprobs(
    token_ids: Sequence[int], given: Sequence[Alternatives | None] | None, top: int | None
) -> tuple[PositionLogprobs | None, ...] | None:
    """None where there is nothing before the first token. vLLM hands them out once, then []."""
    if not given or top is None:
        return None
    return tuple(
        None if entry is None else convert_position_logprobs(token, entry, top)
        for token, entry in zip(token_ids, given, strict=True)
    )


INTAKE_ERRORS = (VLLMError, ValueError, OverflowError)
"""Errors that vLLM raises for a request that it does not take; not all are of its own classes."""


def convert_intake_error(error: Exception, request_id: str) -> EngineError:
    """An error of taking a request in: unless it is about the engine, the request is at fault."""
    converted = convert_error(error)
    if type(converted) is EngineFailed:
        kind = type(error).__name__
        log.warning("vLLM rejected request %s (%s)", request_id, kind)
        return RequestRejected(f"The engine rejected this request ({kind}).")
    return converted


def convert_error(error: Exception) -> EngineError:
    """vLLM's error as one of ours. Messages of unknown errors stay inside: they may hold text."""
    match error:
        case EngineError():
            return error
        case EngineDeadError():
            return EngineDead("The engine died while it was generating.")
        case VLLMClientError():
            message = str(error.args[0]) if error.args else type(error).__name__
            return RequestRejected(message, param=getattr(error, "parameter", None))
        case GracefulHTTPError():
            return EngineOverloaded(error.message)
        case _:
            return EngineFailed(f"The engine failed on this request ({type(error).__name__}).")


AccountReader = Callable[[EngineCoreOutput, bool], DecodeStep | None]
"""Finds the decode step behind an output; the flag marks a request's first output."""


def choose_reader(info: EngineInfo) -> AccountReader:
    if not info.reports_decode_steps:
        return read_nothing
    return read_decode_step if info.speculation.depth else read_plain_step


def read_nothing(_output: EngineCoreOutput, _first: bool) -> DecodeStep | None:
    """Speculation under another scheduler, which reports no decode steps."""
    return None


def read_plain_step(output: EngineCoreOutput, first: bool) -> DecodeStep | None:
    """A step of an engine without speculation."""
    tokens = len(output.new_token_ids)
    return None if first or not tokens else intern_step(0, 0, tokens, 0, UndraftedReason.OFF)


def read_decode_step(output: EngineCoreOutput, first: bool) -> DecodeStep | None:
    """None for the token that comes from prefill, and for an end without tokens."""
    account = output.spec_decode_metrics
    delivered = len(output.new_token_ids)
    if account is None or not delivered or (first and not account.num_draft_tokens):
        return None
    drafted, (reached,) = account.num_draft_tokens, account.histogram
    packed = account.num_spec_tokens
    depth, planned = unpack_depth(packed) if packed >> DEPTH_BITS else (packed, None)
    if not drafted:
        reason = UndraftedReason.REFUSED if depth else UndraftedReason.OFF
        return intern_step(0, 0, delivered, 0, reason, planned)
    accepted = reached if reached < delivered else delivered
    return intern_step(drafted, accepted, delivered, reached - accepted, None, planned)


class SinkFlusher:
    """Has queues push what they hold: at once, or together with what comes within ``interval_s``.

    With None a queue's steps are joined only while the event loop lags: it pushes when the loop has
    read every message of the engine that had come.
    """

    def __init__(self, interval_s: float | None = None) -> None:
        self._interval_s = interval_s
        self._queues: list[StepQueue] = []

    def add(self, queue: StepQueue) -> None:
        """``queue`` holds its first step. Steps that cannot be pushed do not wait."""
        if self._interval_s == 0.0 or (self._interval_s and queue.is_blocked()):
            queue.flush()
            return
        if not self._queues:
            loop = asyncio.get_running_loop()
            if self._interval_s is None:
                loop.call_soon(self._flush)
            else:
                loop.call_later(self._interval_s, self._flush)
        self._queues.append(queue)

    def _flush(self) -> None:
        queues, self._queues = self._queues, []
        for queue in queues:
            queue.flush()


class StepQueue:
    """The steps that have come for one request, on their way into its sink.

    While the sink is open, steps are pushed as they come, and ``deliver`` sleeps on: only the end,
    errors and a client that does not keep up wake it. With an ``interval`` above 1 steps are pushed
    for that many tokens at a time, after the first step and before the last (vLLM's
    ``--stream-interval``).
    """

    __slots__ = (
        "_error",
        "_flusher",
        "_held",
        "_interval",
        "_left",
        "_sink",
        "_steps",
        "_waiting",
        "ended",
        "request_id",
        "traced",
    )

    def __init__(self, request_id: str, interval: int, flusher: SinkFlusher) -> None:
        self.request_id = request_id
        self.ended = False
        """The engine has done with the request, whether or not its client knows."""
        self._sink: StepSink | None = None
        self.traced = False
        self._flusher = flusher
        self._interval = interval
        self._left = 1
        self._held: list[Step] = []
        """Steps held back until the flusher asks for them."""
        self._steps: list[Step] = []
        """Steps that ``deliver`` has to push."""
        self._error: EngineError | None = None
        self._waiting: asyncio.Future[None] | None = None

    async def deliver(self, sink: StepSink) -> None:
        """Push steps into ``sink`` to the last. Raises the error that was put."""
        self._sink = sink
        while True:
            if not sink.is_open():
                await sink.drain()
            if steps := self._steps:
                self._steps = []
                sink.push(steps[0] if len(steps) == 1 else join_steps(steps))
                continue
            if self._error is not None:
                raise self._error
            if self.ended:
                return
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None

    def push(self, step: Step) -> None:
        """Called with each step of the engine."""
        self._held.append(step)
        self.ended = step.finish is not None
        self._left -= len(step.token_ids)
        if self.ended or (self._interval > 1 and self._left <= 0):
            self._left = self._interval
            self.flush()
        elif self._interval == 1 and len(self._held) == 1:
            self._flusher.add(self)

    def flush(self) -> None:
        """Push what is held, as one step; what the sink raises ends ``deliver``."""
        if not self._held:
            return
        sink, waiting = self._sink, self._waiting
        if sink is None or waiting is None or waiting.done() or self.is_blocked():
            self._return_held()
            self._wake()
            return
        held, self._held = self._held, []
        try:
            sink.push(held[0] if len(held) == 1 else join_steps(held))
        except Exception as error:
            waiting.set_exception(error)
            return
        if self.ended or not sink.is_open():
            self._wake()

    def fail(self, error: EngineError) -> None:
        """``deliver`` raises this after the steps that are there."""
        self._return_held()
        self._error = error
        self.ended = True
        self._wake()

    def put(self, output: RequestOutput | Exception) -> None:
        """Called by vLLM with the end of an aborted request, or with an error."""
        if isinstance(output, Exception):
            error = convert_error(output)
            error.__cause__ = output
            self.fail(error)
        else:
            self.fail(EngineDead(ABORTED))

    def take(self) -> list[Step]:
        """Undelivered steps; the queue is empty afterwards."""
        self._return_held()
        steps, self._steps = self._steps, []
        return steps

    def is_blocked(self) -> bool:
        """The sink takes nothing now, or has steps to come before."""
        return self._sink is None or bool(self._steps) or not self._sink.is_open()

    def _return_held(self) -> None:
        self._steps.extend(self._held)
        self._held.clear()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def join_steps(steps: Sequence[Step]) -> Step:
    """Steps in a row, as one."""
    first, last = steps[0], steps[-1]
    return Step(
        tuple(chain.from_iterable(step.token_ids for step in steps)),
        decode=tuple(chain.from_iterable(step.decode for step in steps)),
        logprobs=tuple(chain.from_iterable(step.logprobs for step in steps)),
        prompt_logprobs=first.prompt_logprobs,
        cached_tokens=first.cached_tokens,
        recomputed_tokens=first.recomputed_tokens,
        finish=last.finish,
        stop_token=last.stop_token,
        queued_s=first.queued_s,
        preemptions=last.preemptions,
        traces=tuple(chain.from_iterable(step.traces for step in steps)),
    )
