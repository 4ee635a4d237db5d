"""``eaglegate prove``: check an engine with its draft against the same engine without one.

The arguments are those of ``serve``. No port is opened: requests go to the engines directly. See
docs/prove.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from copy import copy
from dataclasses import replace
from pathlib import Path

import uvloop

from eaglegate.engine.errors import EngineDead, EngineError, EngineStartError
from eaglegate.engine.machine import inspect_machine
from eaglegate.engine.vllm_backend.position_noise import draw_noise
from eaglegate.lab.measure.bench_command import stop_on_sigterm
from eaglegate.lab.prove.checks import CHECKS, Check
from eaglegate.lab.prove.engine_lane import SHORT_FLAGS, Lane, Say
from eaglegate.lab.prove.lane import PromptTokens
from eaglegate.lab.prove.report import START, ProofReport, describe_proof
from eaglegate.lab.prove.settings import ProveSettings
from eaglegate.lab.prove.trial import (
    FULL,
    OPENINGS,
    QUICK,
    Evidence,
    ProofOutcome,
    Size,
    Trial,
    record_reference,
)
from eaglegate.server.backends.in_process import InProcessBackend
from eaglegate.server.backends.line import CommandLine
from eaglegate.server.cli.console import save_engine_log
from eaglegate.server.errors import ConfigError
from eaglegate.server.flags import read_into

QUESTIONS = Path(__file__).parents[2] / "lab" / "measure" / "data" / "chat.jsonl"
CHECK_LIMIT_S = 1800.0
"""Time limit of a check, in seconds."""


def prove(line: CommandLine, say: Say) -> int:
    """Run all checks and return the exit status. Raises ConfigError."""
    options = read_into(ProveSettings, line.namespace)
    if line.settings.log_level != "debug":  # engines are killed on purpose
        logging.getLogger("eaglegate.engine").setLevel(logging.CRITICAL)
    size = QUICK if options.quick else FULL
    checks = [check for check in CHECKS if size.loads or not check.measures_speed]
    exclusions = [check for check in CHECKS if check not in checks]
    run = describe_proof(line.argv, inspect_machine())
    report = ProofReport.open(run, Path(options.out), checks, exclusions)
    stop_on_sigterm()
    try:
        uvloop.run(Proof(line, size, say, report).run(checks, options.time_limit))
    except KeyboardInterrupt:
        report.stop("the run was interrupted")
    print(report.render_text())
    print(f"{options.out}/prove.html and {options.out}/prove.json can be attached to a bug report.")
    return report.status


class Proof:
    """One run of checks."""

    def __init__(self, line: CommandLine, size: Size, say: Say, report: ProofReport) -> None:
        settings = line.settings
        self._plans = settings.depth in (None, "auto")
        self._line = _set_up(line, self._plans)
        self._size = size
        self._say = say
        self._report = report
        self._side_by_side = line.demo and inspect_machine().platform == "cpu"
        """True if both engines fit on the machine and comparing them in turns pays."""

    async def run(self, checks: Sequence[Check], limit_s: float) -> None:
        """Record what checks find, within ``limit_s`` seconds; 0 is no limit."""
        try:
            async with asyncio.timeout(limit_s or None) as clock:
                await self._run_all(checks)
        except TimeoutError:
            if not clock.expired():
                raise
            self._report.stop(f"the {limit_s:g} s of --time-limit were over")

    async def _run_all(self, checks: Sequence[Check]) -> None:
        start = time.perf_counter()
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            try:
                trial = await self._start(stack, Path(folder))
            except EngineStartError as error:
                failure = Evidence(ProofOutcome.FAILED, f"An engine did not start: {error}")
                self._report.record(START, failure, time.perf_counter() - start)
                self._report.stop("an engine did not start")
                if path := save_engine_log(error):
                    self._say(f"the engine's log: {path}")
                return
            summary = trial.lane.info.speculation.summary
            sentence = f"It starts without a draft, and with one: {summary}."
            success = Evidence(ProofOutcome.PASSED, sentence)
            self._report.record(START, success, time.perf_counter() - start)
            for check in checks:
                await self._run(check, trial)

    async def _start(self, stack: AsyncExitStack, folder: Path) -> Trial:
        """Start the engines and return the trial. Raises EngineStartError."""
        lane = Lane(self._line, self._say)
        if not lane.backend.has_draft:
            raise ConfigError("prove compares an engine with its draft: give --speculative-config")
        prompts = render_prompts(lane.backend, self._size.prompts)
        baseline = Lane(_drop_draft(self._line), self._say)
        self._say("the engine without a draft")
        async with AsyncExitStack() as plain_stack:
            plain_stack.push_async_callback(baseline.aclose)
            await baseline.start()
            self._say("texts without a draft")
            reference = await record_reference(
                baseline, prompts, self._size, measure=not self._side_by_side
            )
            execution = await baseline.describe_execution()
            if self._side_by_side:
                stack.push_async_exit(plain_stack.pop_all())
        self._say("the engine with its draft")
        stack.push_async_callback(lane.aclose)
        await lane.start()
        return Trial(
            lane,
            self._size,
            prompts,
            [encode(lane.backend, text) for text in OPENINGS],
            reference,
            folder,
            noise=draw_noise,
            baseline=baseline if self._side_by_side else None,
            is_planned=self._plans,
            raw_logprobs=lane.backend.reports_raw_logprobs,
            dtype=execution.dtype if execution else "auto",
        )

    async def _run(self, check: Check, trial: Trial) -> None:
        self._say(f"check: {check.name}")
        start = time.perf_counter()
        finding = await run_check(check, trial)
        self._report.record(check.name, finding, time.perf_counter() - start)
        self._say(f"{check.name}: {finding.outcome}")


async def run_check(check: Check, trial: Trial) -> Evidence:
    """Run a check. It fails if the engine fails, and is unsure if the check itself fails."""
    try:
        async with asyncio.timeout(CHECK_LIMIT_S):
            return await check.run(trial)
    except (EngineDead, EngineError) as error:
        return Evidence(ProofOutcome.FAILED, f"The engine failed: {error}")
    except TimeoutError:
        return Evidence(ProofOutcome.UNSURE, f"The check was not done in {CHECK_LIMIT_S:.0f} s.")
    except Exception as error:
        return Evidence(
            ProofOutcome.UNSURE, f"The check itself failed: {type(error).__name__}: {error}"
        )


def _set_up(line: CommandLine, plans: bool) -> CommandLine:
    """Return the engine's command line as in ``serve``, with vLLM's report of graph modes."""
    namespace = copy(line.namespace)
    namespace.cudagraph_metrics = True
    depth = "auto" if plans else line.settings.depth
    return replace(
        line,
        namespace=namespace,
        settings=replace(line.settings, depth=depth, draft_store=None),
    )


def _drop_draft(line: CommandLine) -> CommandLine:
    namespace = argparse.Namespace(**vars(line.namespace))
    namespace.speculative_config = None
    for name in ("per_request_spec_decode_metrics", *SHORT_FLAGS):
        vars(namespace).pop(name, None)
    return replace(line, namespace=namespace, settings=replace(line.settings, depth=None))


def render_prompts(backend: InProcessBackend, count: int) -> list[PromptTokens]:
    """Render questions from our chat set, as plain text without a chat template."""
    sessions = [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    selection = [sessions[number * len(sessions) // count] for number in range(count)]
    return [_render(backend, session["steps"][0]) for session in selection]


def _render(backend: InProcessBackend, messages: Sequence[dict[str, str]]) -> PromptTokens:
    try:
        return tuple(backend.renderer.render_chat(messages, None))
    except ValueError:
        return encode(backend, messages[-1]["content"])


def encode(backend: InProcessBackend, text: str) -> PromptTokens:
    return tuple(backend.renderer.encode(text, add_special_tokens=True))
