"""Conversion of the engine core's outputs into the steps of each request, inside vLLM's AsyncLLM.

For every output vLLM makes two large objects and runs a detokenizer; the gateway only needs a
``Step``. So this processor replaces AsyncLLM's ``OutputProcessor``, while AsyncLLM keeps its work
on incoming requests, aborts, errors and statistics. A request whose consumer is slow gets several
steps joined into one, with the account of every decode step. Steps after a consumer has left are
counted separately.

``AsyncLLM.output_processor`` may be replaced until ``output_handler`` runs. A ``RequestState`` puts
the output of an abort into its ``queue``, and ``propagate_error`` an exception. The other private
parts of vLLM that this needs are listed in ``engine/vllm_parts.py``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from vllm import envs
from vllm.lora.request import LoRARequest
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, core_client
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import AsyncMPClient
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import (
    OutputProcessor,
    OutputProcessorOutput,
    RequestOutputCollector,
    RequestState,
)
from vllm.v1.metrics.stats import IterationStats

from eaglegate.engine.errors import EngineDead, EngineFailed
from eaglegate.engine.speculation.accounts.accounting import sum_steps
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import DecodeStep, EngineRequest, Step, StepTrace
from eaglegate.engine.vllm_backend import translate
from eaglegate.engine.vllm_backend.step_queue import SinkFlusher, StepQueue
from eaglegate.engine.vllm_backend.translate import ABORTED, AccountReader
from eaglegate.engine.vllm_fields import ABORT, FINISH, unpack_rates
from eaglegate.text.events import FinishReason


class FeaturesMissing(EngineFailed):
    """The engine does not have the features of an image. vLLM has noted which, so the same request
    can be rendered and sent again."""


NOTHING_TO_DO = OutputProcessorOutput([], [])


class StepOutputProcessor(OutputProcessor):  # type: ignore[misc]
    """vLLM's OutputProcessor, filling step queues. ``unclaimed`` sums undelivered steps.

    The engine made those steps for a request after its consumer had left. Together with the
    accounts of all requests they equal the engine's own counters.
    """

    def __init__(
        self, processor: OutputProcessor, read: AccountReader, interval_s: float | None = None
    ) -> None:
        super().__init__(
            processor.tokenizer,
            log_stats=processor.log_stats,
            tracing_enabled=processor.tracing_enabled,
            admission_stats=processor.admission_stats,
        )
        self.unclaimed = Totals()
        self._read = read
        self._interval = processor.stream_interval
        self._flusher = SinkFlusher(interval_s)
        self._looks_for_nans = envs.VLLM_COMPUTE_NANS_IN_LOGITS

    def add_request(
        self,
        request: EngineCoreRequest,
        prompt: str | None,
        parent_req: Any = None,
        request_index: int = 0,
        queue: RequestOutputCollector | None = None,
    ) -> None:
        """Add a request. Its inbox is ``queue.inbox``, because AsyncLLM returns only the queue it
        has made."""
        assert queue is not None
        queue.inbox = StepQueue(request.request_id, self._interval, self._flusher)
        super().add_request(request, prompt, parent_req, request_index, queue.inbox)

    def process_outputs(
        self,
        engine_core_outputs: Sequence[EngineCoreOutput],
        engine_core_timestamp: float = 0.0,
        iteration_stats: IterationStats | None = None,
        weight_version: str | None = None,  # noqa: ARG002
    ) -> OutputProcessorOutput:
        states, read = self.request_states, self._read
        for output in engine_core_outputs:
            state = states.get(output.request_id)
            if state is None:
                self._count_unclaimed(read(output, output.prefill_stats is not None))
                continue
            if (
                state.is_prefilling
                or output.finish_reason is not None
                or output.new_logprobs is not None
                or output.new_prompt_logprobs_tensors is not None
                or output.events is not None
                or state.queue.traced
                or self._looks_for_nans
            ):
                self._process_edge(state, output, engine_core_timestamp, iteration_stats)
                continue
            token_ids = output.new_token_ids
            if iteration_stats is not None:  # vLLM's statistics of an output with tokens only
                stats, num_tokens = state.stats, len(token_ids)
                iteration_stats.num_generation_tokens += num_tokens
                stats.num_generation_tokens += num_tokens
                latency = engine_core_timestamp - stats.last_token_ts
                iteration_stats.inter_token_latencies_iter.append(latency)
                stats.last_token_ts = engine_core_timestamp
            account = read(output, False)
            state.queue.push(Step(tuple(token_ids), () if account is None else (account,)))
        return NOTHING_TO_DO

    def _process_edge(
        self,
        state: RequestState,
        output: EngineCoreOutput,
        timestamp: float | None,
        counts: IterationStats | None,
    ) -> None:
        """Process a request's first or last output, or one with more than tokens."""
        is_first = state.is_prefilling
        if counts is not None:
            self._update_stats_from_output(state, output, timestamp, counts)
        if is_first:
            _end_prefill(state, output)
        account = self._read(output, is_first)
        self._deliver(state, output, timestamp, () if account is None else (account,), is_first)
        if output.finish_reason is not None:
            self._end(state, output, counts)

    async def open_request(
        self, llm: AsyncLLM, request: EngineRequest, adapter: LoRARequest | None
    ) -> StepQueue:
        """Return the queue of the request's steps. Raises EngineError if vLLM refuses it."""
        return await self.send(llm, request, adapter, translate.make_prompt(request))

    async def send(
        self, llm: AsyncLLM, request: EngineRequest, adapter: LoRARequest | None, prompt: Any
    ) -> StepQueue:
        """Send a request with vLLM's form of its prompt, and return the queue of its steps."""
        try:
            queue = await llm.add_request(
                prompt=prompt,
                params=translate.make_sampling_params(request),
                **translate.make_options(request, adapter),
            )
            inbox: StepQueue = queue.inbox
            inbox.traced = request.traced
            return inbox
        except translate.INTAKE_ERRORS as error:
            raise translate.convert_intake_error(error, request.id) from error
        except asyncio.CancelledError:
            await llm.abort(request.id)
            raise

    async def close_request(self, llm: AsyncLLM, inbox: StepQueue) -> None:
        self.release(inbox)
        if not inbox.ended and not llm.errored:
            await llm.abort(inbox.request_id, internal=True)

    async def fail_all(self, llm: AsyncLLM) -> None:
        if llm.output_handler is not None:
            llm.output_handler.cancel()
        self.propagate_error(EngineDeadError())
        envs.disable_envs_cache()

    def release(self, inbox: StepQueue) -> None:
        """Count the undelivered steps of a consumer that has left as unclaimed."""
        for step in inbox.take():
            self._count_unclaimed(*step.decode)

    def _deliver(
        self,
        state: RequestState,
        output: EngineCoreOutput,
        timestamp: float | None,
        decode: tuple[DecodeStep, ...],
        is_first: bool,
    ) -> None:
        token_ids = tuple(output.new_token_ids)
        has_logprobs = (
            output.new_logprobs is not None or output.new_prompt_logprobs_tensors is not None
        )
        reason = str(output.finish_reason) if output.finish_reason is not None else ""
        if reason in ("error", ABORT):
            kind = FeaturesMissing if output.mm_cache_miss_hashes else EngineFailed
            error = kind("The engine failed on this request.")
            state.queue.fail(EngineDead(ABORTED) if reason == ABORT else error)
            self._count_unclaimed(*decode)
            return
        finish = FINISH.get(reason)
        logprobs, prompt_logprobs = _take_logprobs(state, output) if has_logprobs else ((), None)
        has_stop_token = finish is FinishReason.STOP and token_ids
        state.queue.push(
            Step(
                token_ids,
                decode,
                logprobs,
                prompt_logprobs,
                cached_tokens=state.num_cached_tokens if is_first else None,
                recomputed_tokens=_read_recomputed(output) if is_first else None,
                finish=finish,
                stop_token=token_ids[-1] if has_stop_token else None,
                queued_s=_read_queued(state) if is_first else None,
                preemptions=0
                if finish is None or state.stats is None
                else state.stats.num_preemptions,
                traces=_trace(output, timestamp) if state.queue.traced and token_ids else (),
            )
        )

    def _end(
        self, state: RequestState, output: EngineCoreOutput, counts: IterationStats | None
    ) -> None:
        self._finish_request(state)
        self._update_stats_from_finished(state, output.finish_reason, counts)
        if self.tracing_enabled:
            self.do_tracing(output, state, counts)

    def _count_unclaimed(self, *steps: DecodeStep | None) -> None:
        self.unclaimed += sum_steps([step for step in steps if step is not None], requests=0)


def _trace(output: EngineCoreOutput, timestamp: float | None) -> tuple[StepTrace, ...]:
    """Return the trace of an output with tokens. ``timestamp`` is from the engine's own clock."""
    account = output.spec_decode_metrics
    if account is None:
        return (StepTrace(timestamp or 0.0),)
    packed_rates = account.per_step_accepted if output.prefill_stats is None else ()
    drafts, rates = tuple(account.per_step_drafted), unpack_rates(packed_rates)
    return (StepTrace(timestamp or 0.0, drafts, *rates),)


def _read_queued(state: RequestState) -> float | None:
    """Return the seconds from the engine's queue to the first scheduling; None if vLLM records
    neither."""
    stats = state.stats
    if stats is None or not stats.scheduled_ts or not stats.queued_ts:
        return None
    return float(stats.scheduled_ts - stats.queued_ts)


def _read_recomputed(output: EngineCoreOutput) -> int:
    account = output.spec_decode_metrics
    return int(account.per_step_accepted[0]) if account and account.per_step_accepted else 0


def _end_prefill(state: RequestState, output: EngineCoreOutput) -> None:
    state.is_prefilling = False
    if output.prefill_stats is not None:
        state.num_cached_tokens = output.prefill_stats.num_cached_tokens


def _take_logprobs(state: RequestState, output: EngineCoreOutput) -> tuple[Any, Any]:
    """Return the log probabilities of the output's tokens, and the prompt's if it has them."""
    token_ids, processor = output.new_token_ids, state.logprobs_processor
    processor.update_from_output(output)
    logprobs = processor.logprobs[-len(token_ids) :] if processor.logprobs and token_ids else None
    prompt_logprobs = processor.pop_prompt_logprobs()
    return (
        translate.convert_output_logprobs(token_ids, logprobs, processor.num_logprobs),
        translate.convert_prompt_logprobs(
            state.prompt_token_ids, prompt_logprobs, processor.num_prompt_logprobs
        ),
    )


def take_over(
    llm: AsyncLLM, read: AccountReader, interval_s: float | None = None
) -> StepOutputProcessor:
    """Make ``llm`` put its outputs into inboxes. Call it on the running loop, before the first
    request.

    ``interval_s``: see ``step_queue.SinkFlusher``. For every request vLLM looks up its settings,
    and the end token in a borrowed tokenizer. Neither changes, so they are read once (the settings
    until ``fail_all``).
    """
    envs.enable_envs_cache()
    end_id = llm.renderer.get_eos_token_id()
    llm.renderer.get_eos_token_id = lambda: end_id
    llm.output_processor = outputs = StepOutputProcessor(llm.output_processor, read, interval_s)
    replace_output_reader(llm.engine_core)
    return outputs


TASK_NAME = "EngineCoreOutputQueueTask"
EVENTS, POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
"""Plain numbers, because a query by enumeration member takes 50 % longer."""


def replace_output_reader(core: AsyncMPClient) -> None:
    """Read ``core``'s messages on the running loop. Call it before the first request.

    Clients of several engines, and of engines with fault tolerance, receive more than outputs and
    keep vLLM's own reader.
    """
    tolerates_faults = core.vllm_config.parallel_config.enable_fault_tolerance
    is_usual = type(core) is AsyncMPClient and not tolerates_faults
    if is_usual and core.resources.output_queue_task is None:
        intake = OutputReader(core)
        core.resources.output_queue_task = asyncio.create_task(intake.run(), name=TASK_NAME)


class OutputReader:
    """Reader of the engine core's messages that needs one callback of the event loop.

    vLLM awaits every message on an asyncio socket, which costs futures, callbacks and system calls
    in every step. Here the socket's readiness calls the reader, which decodes the waiting messages
    and puts them into the queue that AsyncLLM reads. The rest of ``AsyncMPClient`` is unchanged.

    In addition to ``engine/vllm_parts.py``, this depends on two facts. ``AsyncMPClient`` reads
    its ``resources.output_socket`` only in ``resources.output_queue_task``, and starts no such task
    if there is one. Closing the socket cancels the task.

    ``run`` reads until it is cancelled or an error occurs, and then reports that in the queue.
    """

    def __init__(self, core: AsyncMPClient) -> None:
        self._resources = core.resources
        self._decoder = core.decoder
        self._queue: asyncio.Queue[Any] = core.outputs_queue
        self._utility_results = core.utility_results
        self._socket = core.resources.output_socket
        self._plain_socket: zmq.Socket[bytes] = zmq.Socket.shadow(self._socket)
        """The same socket without asyncio. ``_socket`` is closed on this loop only."""
        self._get_option: Callable[[int], Any] = self._plain_socket.get

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        failure: asyncio.Future[None] = loop.create_future()
        descriptor = os.dup(self._plain_socket.FD)
        """A duplicate, because the socket's own descriptor may be reused once it is closed."""
        loop.add_reader(descriptor, self._on_readable, failure)
        self._on_readable(failure)
        try:
            await failure
        except asyncio.CancelledError:
            self._queue.put_nowait(EngineDeadError())
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def _on_readable(self, failure: asyncio.Future[None]) -> None:
        """Read every waiting message, because ZeroMQ signals once for any number of them."""
        try:
            while not (failure.done() or self._socket.closed) and self._get_option(EVENTS) & POLLIN:
                self._handle_message(self._receive_frames())
        except Exception as error:  # the readers of the queue must get any error
            self._queue.put_nowait(error)
            failure.set_result(None)

    def _receive_frames(self) -> list[zmq.Frame]:
        frames = [self._plain_socket.recv(zmq.NOBLOCK, copy=False)]
        while frames[-1].more:
            frames.append(self._plain_socket.recv(zmq.NOBLOCK, copy=False))
        return frames

    def _handle_message(self, frames: list[zmq.Frame]) -> None:
        self._resources.validate_alive(frames)
        outputs: EngineCoreOutputs = self._decoder.decode(frames)
        if outputs.utility_output is not None:
            core_client._process_utility_output(outputs.utility_output, self._utility_results)
        elif outputs.outputs or outputs.scheduler_stats:
            self._queue.put_nowait(outputs)
