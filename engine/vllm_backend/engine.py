"""vLLM's AsyncLLM as an Engine: its front end in this process, its engine core in a child process.

Only one engine per process is possible, because a second one removes the first one's metrics from
the Prometheus registry.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, cast

from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.lora.request import LoRARequest
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from eaglegate.engine.base import (
    CountsImages,
    DropsBlocks,
    Engine,
    Kind,
    SupportsDepth,
    SupportsKill,
    SupportsKilled,
    SupportsPlanning,
    SupportsPostMortem,
    SupportsUnclaimed,
    T,
)
from eaglegate.engine.errors import (
    EngineDead,
    EngineError,
    EngineFailed,
    EngineStartError,
    RequestRejected,
)
from eaglegate.engine.logs import LineFormat, pass_line
from eaglegate.engine.machine import count_oom_kills, is_stopped
from eaglegate.engine.speculation.drafts.methods import find_method
from eaglegate.engine.speculation.drafts.versions import SwapsDrafts
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import (
    EngineInfo,
    EngineRequest,
    Execution,
    Health,
    PostMortem,
    StepSink,
)
from eaglegate.engine.vllm_backend.arguments import make_engine_config
from eaglegate.engine.vllm_backend.child_log import ChildLog, find_cause, redact_cause, redact_tail
from eaglegate.engine.vllm_backend.child_process import (
    kill_loading,
    replace_environment,
    separate_engines,
)
from eaglegate.engine.vllm_backend.class_names import SCHEDULER, WORKER
from eaglegate.engine.vllm_backend.engine_plugin import list_engine_plugins
from eaglegate.engine.vllm_backend.flight_record import FlightRecord
from eaglegate.engine.vllm_backend.outputs import FeaturesMissing, StepOutputProcessor, take_over
from eaglegate.engine.vllm_backend.refused_fields import allow_fields
from eaglegate.engine.vllm_backend.start_failure import explain_failure, summarize_error
from eaglegate.engine.vllm_backend.step_queue import StepQueue
from eaglegate.engine.vllm_backend.translate import choose_reader, describe_engine
from eaglegate.engine.vllm_backend.warm_up import (
    LARGE_BATCHES,
    TIMING_S,
    StepCosts,
    time_steps,
    warm_up,
)
from eaglegate.engine.vllm_parts import examine_installed
from eaglegate.text.limited_child import name_exit
from eaglegate.text.media.image import Image

if TYPE_CHECKING:
    from vllm.v1.metrics.loggers import StatLoggerFactory

    from eaglegate.engine.vllm_backend.images import ImageRenderer

log = logging.getLogger(__name__)

SHUTDOWN_S = 5.0
LAST_WORDS_S = 2.0
PING = "is_scheduler_paused"
"""A method of EngineCore that the engine's own loop answers and that changes nothing."""
STAGE_POLL_S = (0.02, 0.5)
"""First and longest pause between polls for a staged draft, because each poll delays a step."""
ERRORED_POLL_S = 0.5
OUTSIDE_SIGNALS = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
UNPLANNED_REASON = "another scheduler or a table of depths decides, or ranks that must draft alike"
RESENDS = 2
"""Times that a prompt is sent again because the engine lacks features of its images. Prompts with
the same image, sent at once, may each cost another one a time."""
NO_IMAGES = "This model reads text only, or was started without images."

NO_ADAPTERS: Mapping[str, str] = {}


def ignore(_: object) -> None:
    """No-op callback."""


class VllmEngine(
    Engine,
    SupportsDepth,
    SupportsPlanning,
    SupportsKill,
    SupportsKilled,
    SupportsPostMortem,
    SupportsUnclaimed,
    SwapsDrafts,
    DropsBlocks,
    CountsImages,
):
    """See ``eaglegate.engine.base.Engine``. ``progress`` receives one line per phase of ``start``.

    With ``planning="auto"`` the engine chooses the depth of every step for requests without their
    own. ``stream_interval_s``: see ``step_queue.SinkFlusher``. ``costs`` (``warm_up.StepCosts``)
    are known step costs; without them the planner times steps at every start, for ``timing_s``
    seconds. ``echo`` writes each line of vLLM and its child processes to the log; None captures it
    for error reports only.
    """

    def __init__(
        self,
        arguments: AsyncEngineArgs,
        progress: Callable[[str], None] = ignore,
        echo: LineFormat | None = pass_line,
        adapters: Mapping[str, str] = NO_ADAPTERS,
        planning: str = "off",
        stream_interval_s: float | None = None,
        costs: StepCosts | None = None,
        timing_s: float = TIMING_S,
    ) -> None:
        self._arguments = arguments
        self._adapters = {
            name: LoRARequest(name, number, path)
            for number, (name, path) in enumerate(adapters.items(), start=1)
        }
        self._planning = planning
        self._costs = costs or StepCosts()
        self._timing_s = timing_s
        self._stream_interval_s = stream_interval_s
        self._progress = progress
        self._log = ChildLog(echo=echo)
        self._llm: AsyncLLM | None = None
        self._outputs: StepOutputProcessor | None = None
        self._closed = False
        self._images: ImageRenderer | None = None
        """None if the model reads no images."""
        self._flight: FlightRecord | None = None
        self._steered = False
        """True if the engine's scheduler is eaglegate's."""
        self._plans = False
        """True if the scheduler chooses depths and learns the cost of steps."""
        self._oom_kills = count_oom_kills()
        """Number of kills for lack of memory when the engine was last healthy. None was of this
        engine."""
        self._processes: tuple[BaseProcess, ...] = ()
        self._exits: tuple[int | None, ...] = ()

    def capability(self, kind: Kind[T]) -> T | None:
        """Return this engine, or a plug-in of it, with the methods of ``kind``; None without."""
        if (engine := super().capability(kind)) is not None:
            return engine
        offers = (plugin.offer(self) for plugin in list_engine_plugins())
        return next((cast("T", offer) for offer in offers if kind in type(offer).__mro__), None)

    async def start(self) -> EngineInfo:
        self._progress(f"starting vLLM with {self._arguments.model}")
        start_time = time.monotonic()
        if examination := examine_installed():
            log.warning("%s", examination.explain())
        try:
            llm = await self._load_in_thread()
            load_end = time.monotonic()
            self._llm = llm
            self._processes = _find_processes(llm)
            info = describe_engine(llm.vllm_config)
            allow_fields(llm.input_processor)
            self._outputs = take_over(llm, choose_reader(info), self._stream_interval_s)
            info = self._accept_images(llm, self._outputs, info)
            self._steered = await _is_steered(llm)
            await self._load_adapters(llm)
            step_s = await warm_up(self.generate, info, self._progress)
            warm_up_end = time.monotonic()
            info = await self._start_planning(info, step_s)
            worker_s = await _read_worker_start(llm)
            info = replace(
                info,
                start_s={
                    "engine process": max(0.0, load_end - start_time - sum(worker_s.values())),
                    **worker_s,
                    "warm-up": warm_up_end - load_end,
                    "timing": time.monotonic() - warm_up_end,
                },
            )
        except Exception as error:
            await self.aclose()
            await asyncio.to_thread(self._log.join, LAST_WORDS_S)
            exit_name = next((name_exit(code) for code in self._exits if code), "")
            cause = explain_failure(self._log.lines, error, exit_name)
            raise EngineStartError(cause, detail="\n".join(self._log.lines)) from error
        except asyncio.CancelledError:
            await self.aclose()
            raise
        return info

    async def generate(
        self, request: EngineRequest, sink: StepSink, charge: Callable[[float], None] = ignore
    ) -> None:
        """See ``eaglegate.engine.base.Engine``. Call ``charge`` with the seconds of the steps."""
        for _ in range(RESENDS):
            with suppress(FeaturesMissing):  # raised before the first step
                return await self._generate_once(request, sink, charge)
        return await self._generate_once(request, sink, charge)

    async def _generate_once(
        self, request: EngineRequest, sink: StepSink, charge: Callable[[float], None]
    ) -> None:
        llm, outputs = self._require_running()
        adapter = self._adapters[request.adapter] if request.adapter else None
        if self._images is not None:
            inbox = await self._images.open_request(request, adapter)
        elif request.images:
            raise RequestRejected(NO_IMAGES, "images")
        else:
            inbox = await outputs.open_request(llm, request, adapter)
        start = time.monotonic()
        try:
            await inbox.deliver(sink)
        except EngineDead as error:
            error.ran = self._has_run(inbox)
            raise
        finally:
            charge(time.monotonic() - start)
            await outputs.close_request(llm, inbox)

    async def count_image(self, image: Image) -> int:
        """See ``eaglegate.engine.base.CountsImages``."""
        self._require_running()
        if self._images is None:
            raise RequestRejected(NO_IMAGES, "images")
        return await self._images.count(image)

    def _accept_images(
        self, llm: AsyncLLM, outputs: StepOutputProcessor, info: EngineInfo
    ) -> EngineInfo:
        """Accept prompts with images if the model reads them."""
        if not llm.vllm_config.model_config.supports_multimodal_inputs:
            return info
        from eaglegate.engine.vllm_backend.image_sizes import find_fit
        from eaglegate.engine.vllm_backend.images import ImageRenderer, read_image_input

        image_input = read_image_input(llm)
        if image_input is not None:
            fit = find_fit(llm.vllm_config.model_config)
            self._images = ImageRenderer(llm, outputs, image_input, fit)
        return replace(info, image_input=image_input)

    def _has_run(self, inbox: StepQueue) -> bool | None:
        """Return True if the request was in the scheduler's last batch. Other requests cannot have
        ended it."""
        if self._flight is None or not self._steered:
            return None
        return inbox.request_id in self._flight.read()

    async def set_depth(self, depth: int) -> int:
        """Bound every request's depth, running ones included, from the next step on.

        Returns the bound in force, which is at most the K of the engine's start. Raises ValueError
        if the engine has another scheduler.
        """
        bound = await self._steer("set_depth", depth)
        if bound is None:
            raise ValueError("the engine has a scheduler that is not eaglegate's")
        return int(bound)

    async def set_planning(self, mode: str) -> str:
        """Choose depths by cost for requests without their own (``auto``), or do not (``off``).

        Returns the mode in force, which is ``off`` if there is nothing to plan.
        """
        return str(await self._steer("set_planning", mode) or "off")

    async def swap_draft(self, path: str, running_draft: str) -> float:
        """Load the draft in ``path`` in place of ``running_draft``, between two steps.

        The draft is read while steps continue. Returns the seconds in which no step was made.
        """
        llm, _ = self._require_running()
        try:
            await _stage_draft(llm, path, running_draft)
            return float(await _call_core(llm, "swap_draft", path, running_draft))
        except EngineError:
            raise
        except Exception as error:
            raise EngineFailed(f"The draft was not exchanged: {summarize_error(error)}") from error

    async def describe_planning(self, recent: int = 0) -> dict[str, Any]:
        """See ``engine.base.SupportsPlanning``. Empty without a draft."""
        if self._arguments.speculative_config is None:
            return {}
        return dict(await self._steer("describe_planning", recent) or {})

    async def freeze_planning(self, depth: int | None) -> bool:
        """See ``eaglegate.engine.base.SupportsPlanning``."""
        return bool(await self._steer("freeze_planning", depth))

    async def describe_slices(self) -> list[dict[str, Any]]:
        """See ``eaglegate.engine.base.SupportsPlanning``."""
        return list(await self._steer("describe_slices") or ())

    async def forget_tenants(self, tenants: Sequence[str]) -> None:
        """See ``eaglegate.engine.base.SupportsPlanning``."""
        await self._steer("forget_tenants", [*tenants])

    async def describe_execution(self) -> Execution | None:
        """Describe how the engine runs its model; None if its workers cannot report it."""
        llm, _ = self._require_running()
        from eaglegate.engine.vllm_backend.execution import read_execution

        workers = await self.call_workers("describe_execution")
        loggers = llm.logger_manager.stat_loggers if llm.logger_manager else ()
        eager = bool(self._arguments.enforce_eager)
        return read_execution(llm.vllm_config, eager, workers, loggers)

    async def call_workers(self, method: str, *arguments: object) -> Sequence[Any]:
        """Call a method of every worker, and return their answers."""
        llm, _ = self._require_running()
        answers: Sequence[Any] = await llm.collective_rpc(method, args=arguments)
        return answers

    @property
    def vllm_config(self) -> VllmConfig:
        """vLLM's configuration. Raises EngineDead if the engine does not run."""
        llm, _ = self._require_running()
        return llm.vllm_config

    async def drop_blocks(self) -> int:
        """Drop all cached blocks, and return their number."""
        num_dropped = await self._steer("drop_blocks")
        if num_dropped is None:
            raise EngineFailed("The engine has a scheduler that is not eaglegate's.")
        return int(num_dropped)

    def count_drafts(self) -> Totals | None:
        """Return vLLM's own counters of this engine's drafts; None if it keeps none."""
        llm, _ = self._require_running()
        if llm.logger_manager is None:
            return None
        from eaglegate.engine.vllm_backend.execution import count_drafts

        return count_drafts(llm.logger_manager.stat_loggers)

    def kill(self) -> int:
        """End the engine's processes with SIGKILL, as a crash would, and return how many were
        running."""
        processes = [process for process in self._processes if process.is_alive()]
        for process in processes:
            process.kill()
        return len(processes)

    async def _steer(self, method: str, *arguments: object) -> Any:
        """Call a method that ``scheduler.py`` adds; None if the engine has another scheduler."""
        llm, _ = self._require_running()
        return await _call_core(llm, method, *arguments) if self._steered else None

    @property
    def unclaimed(self) -> Totals:
        """Steps made for requests whose consumer had already left."""
        return self._outputs.unclaimed if self._outputs else Totals()

    async def health(self) -> Health:
        if self._llm is None:
            return Health(live=False, reason="closed" if self._closed else "not started")
        if self._llm.errored or not await _ping(self._llm):
            cause = find_cause(self._log.lines)
            return Health(live=False, reason=cause or "the engine process died")
        self._oom_kills = count_oom_kills()
        if self._plans and self._costs.is_due:
            with suppress(EngineError):  # the next health check will find a death
                await self._costs.save(self._steer)
        return Health(live=True)

    @property
    def killed(self) -> bool:
        """True if a signal from outside ended an engine process or has stopped it.

        A kill for lack of memory does not count.
        """
        if count_oom_kills() != self._oom_kills:
            return False
        return any(
            process.exitcode in OUTSIDE_SIGNALS or is_stopped(process.pid)
            for process in self._processes
        )

    async def post_mortem(self) -> PostMortem:
        """See ``eaglegate.engine.base.SupportsPostMortem``."""
        await asyncio.to_thread(self._log.join, LAST_WORDS_S)
        late_codes = (process.exitcode or 0 for process in self._processes)
        codes = (
            *self._exits,
            *(code for code in late_codes if code > 0),
        )  # later signals are the gateway's own
        exit_name = next((name_exit(code) for code in codes if code), "")
        oom_note = " (the kernel was out of memory)" if count_oom_kills() != self._oom_kills else ""
        error = redact_cause(find_cause(self._log.lines))
        return PostMortem(exit_name + oom_note, error, redact_tail(self._log.lines, 20))

    async def aclose(self) -> None:
        llm, self._llm, self._closed = self._llm, None, True
        if llm is None:
            return
        self._exits = tuple(
            -signal.SIGSTOP if is_stopped(process.pid) else process.exitcode
            for process in self._processes
        )
        if self._outputs is not None:
            await self._outputs.fail_all(llm)
        if self._images is not None:
            await self._images.aclose()
        await asyncio.to_thread(llm.shutdown, SHUTDOWN_S)

    def _require_running(self) -> tuple[AsyncLLM, StepOutputProcessor]:
        if self._llm is None or self._outputs is None:
            raise EngineDead("The engine was closed." if self._closed else "Not started yet.")
        if self._llm.errored:
            raise EngineDead("The engine has died.")
        return self._llm, self._outputs

    async def _load_in_thread(self) -> AsyncLLM:
        other_processes = set(multiprocessing.active_children())
        task = asyncio.create_task(asyncio.to_thread(self._load))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await kill_loading(task, other_processes, SHUTDOWN_S)
            raise

    def _load(self) -> AsyncLLM:
        """Load the engine. This takes seconds to minutes, so it runs in a thread."""
        config = make_engine_config(self._arguments)
        with self._log.capture(), self._record_flight(), separate_engines():
            return AsyncLLM.from_vllm_config(
                config,
                usage_context=UsageContext.OPENAI_API_SERVER,
                enable_log_requests=self._arguments.enable_log_requests,
                disable_log_stats=self._arguments.disable_log_stats,
                stat_loggers=self._choose_stat_loggers(),
            )

    @contextmanager
    def _record_flight(self) -> Iterator[None]:
        """Make an engine that is started inside the context record the requests that it runs."""
        try:
            self._flight = record = FlightRecord()
        except OSError as error:
            log.warning("running requests cannot be recorded for an engine loss: %s", error)
            yield
            return
        try:
            with replace_environment(record.variables):
                yield
        finally:
            record.unlink()

    def _choose_stat_loggers(self) -> list[StatLoggerFactory] | None:
        if self._arguments.disable_log_stats:
            return None
        from eaglegate.engine.vllm_backend.statistics import BatchedStatLogger

        if self._arguments.cudagraph_metrics:
            from eaglegate.engine.vllm_backend.execution import GraphCounter

            return [BatchedStatLogger, GraphCounter]
        return [BatchedStatLogger]

    async def _load_adapters(self, llm: AsyncLLM) -> None:
        """Load the adapters. If one does not fit the model, the start fails."""
        for name, adapter in self._adapters.items():
            self._progress(f"loading adapter {name}")
            await llm.add_lora(adapter)

    async def _start_planning(self, info: EngineInfo, step_s: float) -> EngineInfo:
        """Start planning if there is a draft and a scheduler that can plan. A step takes about
        ``step_s``."""
        method = find_method({"method": info.speculation.method})
        if info.speculation.depth and not info.speculation.per_request:
            log.warning("depth: %s", method.summary)
            return replace(info, details={**info.details, "depth": method.summary})
        if self._planning == "off" or not info.speculation.depth:
            return info
        mode = await self.set_planning(self._planning)
        if mode == "off":
            log.warning("depths are not planned: %s", UNPLANNED_REASON)
            return info
        if mode == "auto":
            await self._learn_costs(info, step_s)
            self._plans = True
        details = {**info.details, "depth": f"{mode}, chosen at every step"}
        return replace(info, details=details, plans_depth=mode == "auto")

    async def _learn_costs(self, info: EngineInfo, step_s: float) -> None:
        """Learn the costs of steps from the last engine, or by timing steps."""
        if await self._costs.hand_over(self._steer):
            self._progress("step times are known from the last engine")
            return
        max_requests = self._arguments.max_num_seqs or max(LARGE_BATCHES)
        budget_s, start = self._timing_s, time.monotonic()
        is_complete = await time_steps(
            self.generate, info, max_requests, self._progress, budget_s, step_s
        )
        suffix = "" if is_complete else ", and leave other sizes to traffic"
        self._progress(f"timed steps for {time.monotonic() - start:.1f} s{suffix}")
        await self._costs.save(self._steer)


def _find_processes(llm: AsyncLLM) -> tuple[BaseProcess, ...]:
    resources = getattr(llm.engine_core, "resources", None)
    return tuple(getattr(getattr(resources, "engine_manager", None), "processes", ()))


async def _read_worker_start(llm: AsyncLLM) -> dict[str, float]:
    """Return the seconds of the slowest worker's start by part; empty for a worker of another
    class."""
    if llm.vllm_config.parallel_config.worker_extension_cls != WORKER:
        return {}
    workers = await llm.collective_rpc("describe_start")
    slowest: dict[str, float] = max(workers, key=lambda stages: sum(stages.values()))
    return slowest


async def _ping(llm: AsyncLLM) -> bool:
    try:
        await _call_core(llm, PING)
    except Exception:
        return False
    return True


async def _is_steered(llm: AsyncLLM) -> bool:
    """Return True if the engine's scheduler is eaglegate's, or derived from it."""
    class_name = str(llm.vllm_config.scheduler_config.scheduler_cls or "vllm.")
    if class_name == SCHEDULER or class_name.startswith("vllm."):
        return class_name == SCHEDULER
    try:
        return bool(await _call_core(llm, "describe_planning", 0))
    except EngineError:
        raise
    except Exception:
        return False


async def _stage_draft(llm: AsyncLLM, path: str, running_path: str) -> None:
    """Make every worker read a draft. Raises RuntimeError with the reason if one cannot."""
    await _call_core(llm, "stage_draft", path, running_path)
    delay, max_delay = STAGE_POLL_S
    state: bool | str = False
    try:
        while state is False:
            await asyncio.sleep(delay)
            delay = min(2 * delay, max_delay)
            state = await _call_core(llm, "get_staged")
        if isinstance(state, str):
            raise RuntimeError(f"the draft could not be read: {state}")
    except BaseException:
        with suppress(EngineError):
            await _call_core(llm, "discard_draft")
        raise


async def _call_core(llm: AsyncLLM, method: str, *arguments: object) -> Any:
    """Call a method of the engine process between two steps. Raises EngineDead if the process has
    died."""
    answer = asyncio.ensure_future(llm.engine_core.call_utility_async(method, *arguments))
    try:
        while not answer.done() and not llm.errored:
            await asyncio.wait({answer}, timeout=ERRORED_POLL_S)
        if not answer.done() or isinstance(answer.exception(), EngineDeadError):
            raise EngineDead("The engine has died.")
        return answer.result()
    finally:
        answer.cancel()
