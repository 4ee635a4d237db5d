"""The composition root of ``eaglegate serve``, the only module that knows all packages."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import time
from collections.abc import Coroutine, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import uvloop
from starlette.types import ASGIApp

from eaglegate.engine.base import SupportsPlanning
from eaglegate.engine.errors import EngineDead
from eaglegate.engine.machine import find_gpu_monitors
from eaglegate.engine.speculation.policy.policy import (
    PLAIN,
    SPECULATIVE,
    SpeculationPolicy,
    SpeculationRules,
)
from eaglegate.engine.supervision.policy import SupervisionTimeouts
from eaglegate.engine.types import WORKLOADS, EngineInfo
from eaglegate.observability.engine import InstrumentedEngine, SupervisionObserver
from eaglegate.observability.facts import ExchangeEnded, GatewayStarted, ParserChosen
from eaglegate.observability.labels import TelemetrySettings
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.middleware import (
    AccessLog,
    HttpExchange,
    TelemetryMiddleware,
    Tracing,
)
from eaglegate.observability.pages import make_routes
from eaglegate.observability.telemetry import Telemetry
from eaglegate.server.access.admission import Admission, AdmissionLimits
from eaglegate.server.access.cross_origin import CrossOriginPolicy
from eaglegate.server.access.isolation import CacheIsolation, check_names
from eaglegate.server.access.keys import KeyRing
from eaglegate.server.access.memory import MemoryMonitor, find_sources
from eaglegate.server.access.prompt_turns import PromptTurns
from eaglegate.server.apis.responses import route
from eaglegate.server.apis.responses.background import BackgroundRuns
from eaglegate.server.apis.responses.service import maintain_store
from eaglegate.server.apis.shared import encryption
from eaglegate.server.apis.shared.gateway import Controls, Gateway
from eaglegate.server.app import create_app
from eaglegate.server.backends import Backend
from eaglegate.server.backends.line import CommandLine
from eaglegate.server.cli.console import (
    StartupProgress,
    describe_clients,
    describe_exposure,
    format_banner,
    open_log,
)
from eaglegate.server.cli.feature import ActiveFeature, Core, build_features
from eaglegate.server.cli.feature_table import list_routers, load
from eaglegate.server.cli.listener import (
    LAST_WORDS_S,
    Drain,
    SignalHandlers,
    bind_listeners,
    find_admin_port,
    format_url,
    serve,
)
from eaglegate.server.cli.reload import (
    load_encryption_keys,
    load_key_ring,
    read_reloaded,
    warn_ignored_depths,
)
from eaglegate.server.errors import ConfigError
from eaglegate.server.flags import make_part
from eaglegate.server.generation.grammar import ParserFactory
from eaglegate.server.generation.images import PromptImages
from eaglegate.server.generation.model_defaults import check_default_sampling
from eaglegate.server.generation.pipeline import Pipeline
from eaglegate.server.generation.served_model import ServedModel
from eaglegate.server.generation.trials import ConstraintTrials
from eaglegate.server.http.connection import TlsSettings
from eaglegate.server.http.connection_limits import (
    ConnectionLimiter,
    ConnectionLimits,
    raise_file_limit,
)
from eaglegate.server.http.response import StreamTiming
from eaglegate.server.settings import Settings
from eaglegate.server.store.base import Retention, StoreLimits
from eaglegate.server.store.database import StoreError, default_url, sqlite_directory
from eaglegate.server.store.sql import SqlResponseStore

if TYPE_CHECKING:
    from eaglegate.engine.base import Engine
    from eaglegate.engine.fleet.types import WorkerStatus


class ServeCommand:
    """One gateway, from its command line to its exit status.

    The constructor does everything that can fail without an engine: ports, keys, parsers, the
    draft. Raises ConfigError or EngineStartError.
    """

    def __init__(self, line: CommandLine, progress: StartupProgress) -> None:
        settings = line.settings
        self._line = line
        self._settings = settings
        self._progress = progress
        errors = open_log(settings)
        self._gate = ConnectionLimiter(limits(line, raise_file_limit()), self._refuse_connection)
        keys = load_key_ring(settings)
        check_names(settings.shared_prefix_cache, [key.name for key in keys.keys])
        self._tls = make_part(TlsSettings, settings)
        self._tls.check()
        self._listeners = bind_listeners(settings)
        self._operator_url = format_url(self._listeners[-1], self._tls)
        if warning := describe_exposure(settings, keys):
            progress(warning)
        if settings.vllm_parser_fallback:
            progress("note: --vllm-parser-fallback has no effect; 0.4.0 will not accept it")
        make_backend = load(line.backend)
        self._start_s = {"imports": progress.elapsed_s}
        backend: Backend = make_backend(line, progress)
        self._start_s |= backend.start_s
        self._backend = backend
        self._parsers = _make_parsers(backend, settings)
        self._telemetry = Telemetry(
            GROUPS, _make_telemetry_settings(backend, settings), gpus=find_gpu_monitors()
        )
        self._telemetry.name_keys(keys.given_names)
        self._tracing = _open_tracing(settings.otlp_endpoint)
        self._resilient = backend.create_engine(
            make_part(SupervisionTimeouts, settings), SupervisionObserver(self._telemetry)
        )
        self._policy = SpeculationPolicy(
            SpeculationRules(depth=settings.fixed_depth, key_depths=keys.depths)
        )
        self._admission = Admission(make_part(AdmissionLimits, settings), classes=keys.classes)
        self._watch()
        self._gateway = self._new_gateway(keys)
        self._features = self._build_features()
        self._engine: Engine = InstrumentedEngine(self._resilient, self._telemetry)
        for feature in self._features:
            self._engine = feature.wrap(self._engine)
        self._runs = BackgroundRuns()
        access_log = AccessLog(settings.log_level, errors, settings.log_format)

        def record(exchange: HttpExchange) -> None:
            access_log(exchange)
            self._telemetry.facts.publish(ExchangeEnded(exchange))

        keep_bodies = any(feature.keeps_bodies for feature in self._features)
        self._app = TelemetryMiddleware(
            self._make_app(), record, self._tracing, keep_bodies=keep_bodies
        )

    def _build_features(self) -> list[ActiveFeature]:
        core = Core(
            self._settings,
            self._backend,
            self._resilient,
            self._telemetry,
            self._policy,
            self._admission,
            self._gateway,
            self._progress,
            self._operator_url,
        )
        return build_features(core, self._line.features)

    def _make_app(self) -> ASGIApp:
        routers = [route.router(self._gateway, self._runs), *list_routers(self._gateway)]
        return create_app(self._gateway, make_routes(self._telemetry), routers)

    def _watch(self) -> None:
        """Connect telemetry to its sources other than requests."""
        telemetry, backend = self._telemetry, self._backend
        for parser in self._parsers.describe():
            telemetry.facts.publish(ParserChosen(*parser))
        telemetry.watch_drafts(backend.drafts)
        telemetry.scope.workers = self._list_workers
        telemetry.scope.process = self._read_usage
        telemetry.scope.admission = lambda: self._admission

    def _list_workers(self) -> Iterable[WorkerStatus]:
        fleet = self._backend.fleet
        return () if fleet is None else fleet.list_status()

    def run(self) -> int:
        """Serve until a signal to stop. Return 1 if requests were lost at shutdown."""
        return 1 if uvloop.run(self._run()) else 0

    def _new_gateway(self, keys: KeyRing) -> Gateway:
        settings = self._settings
        gateway = Gateway(
            models=(*self._backend.names, *self._backend.adapters),
            created=int(time.time()),
            settings=settings,
            timing=make_part(StreamTiming, settings),
            keys=keys,
            admin_port=find_admin_port(self._listeners),
            cross_origin=make_part(CrossOriginPolicy, settings).for_machine(settings.host),
            memory=MemoryMonitor(find_sources(settings.memory_limit)),
            workers=self._list_workers,
            losses=lambda: self._resilient.losses,
            observer=self._telemetry,
            store=_open_store(settings, self._progress),
            cipher=_open_cipher(settings, self._progress),
        )
        engine = self._resilient
        gateway.controls = Controls(
            self._reload,
            engine.set_depth,
            self._backend.drafts,
            engine.capability(SupportsPlanning),
            engine.release_drafts,
        )
        return gateway

    def _refuse_connection(self) -> None:
        self._telemetry.record_refusal("", "too_many_connections")

    def _read_usage(self) -> dict[str, float]:
        memory = self._gateway.memory
        return {
            "connections": self._gate.total,
            "connection_limit": self._gate.limits.connections,
            "memory_bytes": memory.used,
            "memory_limit_bytes": memory.limit,
            "memory_shedding": memory.shedding,
        }

    async def _run(self) -> int:
        drain = Drain(self._gateway, self._admission, self._settings.drain_s, self._engine.aclose)
        hooks = SignalHandlers(drain, self._reload)
        tasks = [asyncio.create_task(work) for work in self._list_work()]
        try:
            return await serve(
                self._app,
                self._listeners,
                self._supervise(),
                hooks,
                self._tls,
                self._gate,
            )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._aclose()

    def _list_work(self) -> Iterator[Coroutine[Any, Any, None]]:
        """List the work that goes on beside the requests until the gateway stops."""
        yield self._gateway.memory.run()
        yield maintain_store(self._gateway.store, self._runs)
        for feature in self._features:
            yield feature.run()

    async def _supervise(self) -> None:
        await self._start()
        probe = self._backend.probe
        warming = None if probe is None else asyncio.create_task(probe.warm_up())
        try:
            raise EngineDead(await self._resilient.wait_failed())
        finally:
            if warming is not None:
                warming.cancel()

    async def _start(self) -> None:
        info = self._backend.describe(await self._engine.start())
        check_default_sampling(info.default_sampling)
        served_model = _describe_model(
            self._gateway, info, self._parsers, self._settings, self._backend
        )
        warn_ignored_depths(self._policy.rules, served_model)
        probe = self._backend.probe
        pipeline = Pipeline(
            self._engine,
            info,
            self._backend.renderer,
            self._parsers,
            served_model,
            self._policy,
            self._admission,
            PromptTurns(lambda: self._resilient.step_tokens),
            PromptTurns(lambda: self._resilient.step_tokens),
            CacheIsolation(frozenset(self._settings.shared_prefix_cache)),
            None if probe is None else ConstraintTrials(probe),
            self._open_images(info),
        )
        for feature in self._features:
            feature.start(info)
        self._gateway.open(pipeline)
        self._gateway.memory.settle()
        _freeze()
        url = format_url(self._listeners[0], self._tls)
        operator = self._operator_url
        name, seconds = self._gateway.models[0], self._progress.elapsed_s
        info = self._record_start(info, seconds)
        keys = self._gateway.keys
        clients = describe_clients(keys)
        banner = format_banner(
            url, operator, name, info, self._parsers, seconds, clients, bool(keys)
        )
        self._progress.announce(banner, url, operator)

    def _open_images(self, info: EngineInfo) -> PromptImages | None:
        """Return the reader of images; None if the model reads text only."""
        if info.image_input is None:
            return None
        from eaglegate.text.media.fetch import ImageFetcher
        from eaglegate.text.media.reader import ImageReader
        from eaglegate.text.media.source import ImageLimits

        settings = self._settings
        fetcher = ImageFetcher(settings.media_hosts) if settings.media_hosts else None
        reader = ImageReader(make_part(ImageLimits, settings), fetcher)
        placeholder = info.image_input.placeholder
        return PromptImages(self._engine, reader, placeholder, settings.engine_wait_s)

    def _record_start(self, info: EngineInfo, seconds: float) -> EngineInfo:
        """Add the gateway's parts to those of the engine's start, and publish them."""
        parts = {**self._start_s, **info.start_s}
        parts["gateway"] = max(0.0, seconds - sum(parts.values()))
        self._telemetry.facts.publish(GatewayStarted(parts))
        return replace(info, start_s=parts)

    async def _reload(self) -> dict[str, Any]:
        """Reload keys and limits without interrupting requests. Raises ConfigError."""
        reloaded_settings = await asyncio.to_thread(read_reloaded, self._line.argv)
        names = {key.name for key in self._gateway.keys.keys}
        changes = reloaded_settings.apply(self._gateway, self._admission, self._policy)
        self._telemetry.name_keys(self._gateway.keys.given_names)
        removed_names = names - {key.name for key in self._gateway.keys.keys}
        planner = self._resilient.capability(SupportsPlanning)
        if removed_names and planner is not None:
            await planner.forget_tenants(sorted(removed_names))
        return changes

    async def _aclose(self) -> None:
        self._gateway.stop()
        await self._engine.aclose()
        await self._backend.aclose()
        pipeline = self._gateway.pipeline
        if pipeline is not None and pipeline.images is not None:
            await pipeline.images.reader.aclose()
        await self._tracing.aclose()
        for feature in self._features:
            await feature.aclose()
        if self._gateway.store is not None:
            await self._runs.finish(LAST_WORDS_S)
            await self._gateway.store.aclose()
        for child in multiprocessing.active_children():
            child.kill()


def _open_tracing(endpoint: str | None) -> Tracing:
    """Create the tracing. Raises ConfigError."""
    if endpoint is None:
        return Tracing()
    try:
        from eaglegate.observability.tracing import OpenTelemetry
    except ImportError as error:
        raise ConfigError(
            f"--otlp-endpoint needs {error.name}: pip install '.[otel]' in eaglegate's checkout"
        ) from error
    return OpenTelemetry.for_endpoint(endpoint)


def limits(line: CommandLine, files: int) -> ConnectionLimits:
    settings = line.settings
    return ConnectionLimits.of(
        files,
        outgoing=settings.max_running if line.remote else 0,
        connections=settings.max_connections,
        per_client=settings.max_connections_per_client,
        proxies=settings.forwarded_allow_ips,
    )


def store_limits(settings: Settings) -> StoreLimits:
    """Return the limits of the store. A conversation may be at most as large as a request body."""
    limits = StoreLimits()
    return replace(limits, bytes=min(limits.bytes, settings.max_body_bytes))


def _open_store(settings: Settings, progress: StartupProgress) -> SqlResponseStore | None:
    """Open the response store, if configured. Raises ConfigError."""
    if settings.responses_store == "none":
        return None
    retention = make_part(Retention, settings)
    limits = store_limits(settings)
    try:
        url = settings.responses_store
        return SqlResponseStore(default_url() if url == "auto" else url, retention, limits)
    except StoreError as error:
        if settings.responses_store != "auto":
            raise ConfigError(f"--responses-store: {error}") from error
        progress(f"note: responses are kept in memory only: {error}")
        return SqlResponseStore("sqlite://", retention, limits)


def _open_cipher(settings: Settings, progress: StartupProgress) -> encryption.ReasoningCipher:
    """Create the cipher for reasoning. Raises ConfigError for configured keys that cannot be
    used.
    """
    if keys := load_encryption_keys(settings):
        return encryption.ReasoningCipher(keys)
    store = settings.responses_store
    directory = sqlite_directory(default_url() if store == "auto" else store)
    try:
        if directory is not None:
            return encryption.ReasoningCipher(encryption.load_or_make_keys(directory))
        reason = "no SQLite store has a folder for the key"
    except OSError as error:
        reason = f"no key can be stored: {error}"
    progress(f"note: encrypted reasoning is readable only until this process ends: {reason}")
    return encryption.ReasoningCipher.ephemeral()


def _make_telemetry_settings(backend: Backend, settings: Settings) -> TelemetrySettings:
    return TelemetrySettings(
        models=(*backend.names, *backend.adapters),
        lanes=(SPECULATIVE, PLAIN),
        workloads=(*WORKLOADS, *settings.workloads),
    )


def _make_parsers(backend: Backend, settings: Settings) -> ParserFactory:
    return ParserFactory(
        backend.vocabulary,
        settings.tool_call_parser,
        backend.reasoning_parser,
        settings.repair_tool_calls,
    )


def _describe_model(
    gateway: Gateway, info: EngineInfo, parsers: ParserFactory, settings: Settings, backend: Backend
) -> ServedModel:
    field, images = settings.reasoning_field, info.image_input
    if images is not None and images.max_images > settings.max_images:
        images = replace(images, max_images=settings.max_images)
    return ServedModel(
        models=gateway.models,
        adapters=frozenset(backend.adapters),
        depth=info.speculation.depth,
        depth_per_request=info.speculation.per_request,
        tools=parsers.tool_parser is not None,
        template_kwargs=settings.default_chat_template_kwargs,
        trusts_templates=settings.trust_request_chat_template,
        workloads=(*WORKLOADS, *settings.workloads),
        sampling=info.default_sampling,
        spec_metrics=backend.spec_metrics,
        reasoning_fields=("reasoning", "reasoning_content") if field == "both" else (field,),
        vocab_size=info.vocab_size,
        thinking_budget=info.thinking_budget,
        replaces_media=settings.history_media == "placeholder",
        images=images,
    )


def _freeze() -> None:
    """Freeze the objects created at startup, so that the collector need not walk a million of them.

    A few megabytes of garbage among them also stay, because finding them would take half a second.
    """
    gc.freeze()
    gc.enable()
