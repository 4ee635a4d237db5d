"""Backend that runs vLLM in this process and its children."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from eaglegate.engine.advisories import Advisory, describe, list_advisories, refuse_advisories
from eaglegate.engine.errors import EngineStartError
from eaglegate.engine.logs import LineFormat, adopt_vllm, pass_line, wrap_line
from eaglegate.engine.machine import inspect_machine
from eaglegate.engine.preflight import EnginePlan, make_plan, preflight
from eaglegate.engine.speculation.drafts.files import DraftPlan, DraftStore
from eaglegate.engine.speculation.drafts.lossy import add_lossy, find_lossy, refuse_lossy
from eaglegate.engine.speculation.drafts.swap import DraftManager
from eaglegate.engine.supervision.policy import RecoveryObserver, SupervisionTimeouts
from eaglegate.engine.supervision.supervisor import SupervisedEngine
from eaglegate.engine.types import EngineInfo
from eaglegate.engine.vllm_backend.arguments import make_engine_config
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.grammar_probe import GrammarProbe
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from eaglegate.engine.vllm_backend.start_failure import summarize_error
from eaglegate.engine.vllm_backend.warm_up import StepCosts
from eaglegate.engine.vllm_contract import get_vllm_version, read_draft_depth
from eaglegate.engine.vllm_parts import Promise, find_broken_promises
from eaglegate.server.backends.adapters import read_adapters
from eaglegate.server.backends.line import Arguments, CommandLine, read_engine_arguments
from eaglegate.server.backends.plan import find_excess_depth, refuse_unknown_parsers
from eaglegate.server.errors import ConfigError
from eaglegate.server.settings import Settings
from eaglegate.text.parsing.vocabulary import Vocabulary

if TYPE_CHECKING:
    from eaglegate.engine.speculation.drafts.inspection import SpeculationReport


class InProcessBackend:
    """Backend with vLLM in this process. See ``eaglegate.server.backends.Backend``."""

    def __init__(self, line: CommandLine, progress: Callable[[str], None]) -> None:
        settings, start = line.settings, time.monotonic()
        self.fleet = None
        self._costs = StepCosts()
        self._progress = progress
        self._echo = _choose_echo(settings)
        self._planning = "auto" if settings.depth == "auto" else "off"
        self._timing_s = settings.step_timing_s
        interval_ms = settings.stream_interval_ms
        self._stream_interval_s = None if interval_ms is None else interval_ms / 1000
        self._arguments = arguments = read_engine_arguments(
            line.namespace, settings.depth, line.features
        )
        refuse_unknown_parsers(settings, arguments)
        modules = getattr(line.namespace, "lora_modules", ())
        self.adapters = read_adapters(modules, bool(arguments.enable_lora), self.names)
        self._draft = _run_preflight(arguments, self.adapters, settings, progress)
        self.drafts = _open_drafts(arguments, settings.draft_store)
        progress("making vLLM's configuration of the model")
        try:
            config = make_engine_config(arguments)
            self._advisories = _find_advisories(config, settings, progress)
            configuration_end = time.monotonic()
            progress("reading the tokenizer and the chat template")
            self.renderer = VllmRenderer(
                config,
                settings.chat_template,
                settings.chat_template_content_format,
                parse_special=settings.special_tokens_in_messages == "parse",
            )
        except OSError as error:
            raise ConfigError(f"--chat-template: {error}") from error
        except ValueError as error:
            message = f"vLLM refuses this configuration: {summarize_error(error)}"
            raise ConfigError(message) from error
        self.vocabulary = Vocabulary.from_transformers(self.renderer.tokenizer)
        self.reasoning_parser = arguments.reasoning_parser or settings.reasoning_parser
        self.spec_metrics: str = arguments.per_request_spec_decode_metrics
        self.probe = GrammarProbe(
            arguments.tokenizer or arguments.model, arguments.trust_remote_code
        )
        self.start_s = {
            "configuration": configuration_end - start,
            "tokenizer": time.monotonic() - configuration_end,
        }

    @property
    def names(self) -> tuple[str, ...]:
        names = self._arguments.served_model_name
        if not names:
            return (self._arguments.model,)
        return (names,) if isinstance(names, str) else tuple(names)

    def create_engine(
        self, timeouts: SupervisionTimeouts, observer: RecoveryObserver
    ) -> SupervisedEngine:
        engine = SupervisedEngine(self.make_engine, timeouts, observer)
        if self.drafts is not None:
            self.drafts.attach(engine)
        return engine

    def make_engine(self) -> VllmEngine:
        """Create an engine with the promoted draft."""
        arguments = self._arguments
        if self.drafts is not None:
            arguments = copy(arguments)
            speculation = {**arguments.speculative_config, "model": self.drafts.choose_path()}
            arguments.speculative_config = speculation
        return VllmEngine(
            arguments,
            self._progress,
            self._echo,
            self.adapters,
            self._planning,
            self._stream_interval_s,
            self._costs,
            self._timing_s,
        )

    def describe(self, info: EngineInfo) -> EngineInfo:
        """Add the advisories, and the method and summary found by the draft inspection."""
        info = replace(info, advisories=self._advisories)
        if self._draft is None:
            return info
        longest = info.speculation.lookup
        lookups = f", lookups of up to {longest} tokens" if longest else ""
        summary = add_lossy(self._draft.summary + lookups, info.speculation.lossy or ())
        speculation = replace(info.speculation, method=self._draft.method, summary=summary)
        return replace(info, speculation=speculation)

    async def aclose(self) -> None:
        await self.probe.aclose()


def _find_advisories(
    config: object, settings: Settings, progress: Callable[[str], None]
) -> tuple[Advisory, ...]:
    """Report the advisories for vLLM's configuration. Raises EngineStartError if they prevent the
    start."""
    advisories = list_advisories(describe(config, get_vllm_version()))
    if advisories and settings.strict_advisories:
        raise EngineStartError(refuse_advisories(advisories))
    for advisory in advisories:
        progress(f"WARNING: {advisory}")
    return advisories


def _choose_echo(settings: Settings) -> LineFormat | None:
    """Return the format of log lines from the engine's processes; None if they log nothing."""
    adopt_vllm(settings.log_format)
    if settings.log_level != "debug":
        return None
    return wrap_line if settings.log_format == "json" else pass_line


def _make_plan(arguments: Arguments, adapters: Mapping[str, str] | None = None) -> EnginePlan:
    """Make a plan with the draft's own depth, where vLLM's is greater."""
    plan = make_plan(arguments, adapters)
    depth = read_draft_depth(arguments.additional_config, 0)
    if not depth:
        return plan
    speculation = {**(plan.speculative_config or {}), "num_speculative_tokens": depth}
    return replace(plan, speculative_config=speculation)


def _open_drafts(arguments: Arguments, store: str | None) -> DraftManager | None:
    """Return the draft manager; None without a draft that can be exchanged. Raises
    EngineStartError."""
    plan = _make_plan(arguments)
    if Promise.EXCHANGE in find_broken_promises():
        return None
    if not isinstance((plan.speculative_config or {}).get("model"), str):
        return None
    drafts = DraftManager(
        DraftPlan(
            plan.model,
            plan.speculative_config or {},
            tensor_parallel_size=plan.tensor_parallel_size,
            max_model_len=plan.max_model_len,
        ),
        DraftStore(store),
    )
    try:
        drafts.open()
    except OSError as error:
        raise EngineStartError(f"--draft-store {store} cannot be used: {error}") from error
    return drafts


def _run_preflight(
    arguments: Arguments,
    adapters: Mapping[str, str],
    settings: Settings,
    progress: Callable[[str], None],
) -> SpeculationReport | None:
    """Report on the draft. Raises EngineStartError for problems that would stop the engine."""
    plan = _make_plan(arguments, adapters)
    lossy = find_lossy(plan.speculative_config)
    if lossy and settings.require_lossless:
        raise EngineStartError(refuse_lossy(lossy))
    report = preflight(plan, inspect_machine())
    if report.draft is not None:
        progress(f"draft: {report.draft.summary}")
        for finding in report.draft.warnings:
            progress(f"draft: {finding}")
    for remark in report.remarks:
        progress(f"note: {remark}")
    excess = find_excess_depth(settings.fixed_depth, plan.speculative_config)
    obstacles = [*report.obstacles, *excess]
    if obstacles and settings.preflight:
        raise EngineStartError("; ".join(obstacles) + " (--no-preflight starts anyway)")
    return report.draft
