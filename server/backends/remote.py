"""Backend with remote workers. This process has only the tokenizer and the chat template."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from eaglegate.engine.base import Engine
from eaglegate.engine.errors import EngineStartError, redact
from eaglegate.engine.fleet.discovery import (
    DiscoveryError,
    DnsSource,
    FileSource,
    StaticSource,
    WorkerSource,
)
from eaglegate.engine.fleet.fleet import Fleet
from eaglegate.engine.fleet.types import FindingKind, FleetSettings, WorkerFinding
from eaglegate.engine.fleet.worker import WorkerReport
from eaglegate.engine.remote.protocols import parse_upstream, remote_engine
from eaglegate.engine.remote.upstream import ConnectionSettings, LocalModel, Upstream
from eaglegate.engine.speculation.drafts.inspection.configs import read_target
from eaglegate.engine.speculation.drafts.inspection.recurrent import is_recurrent
from eaglegate.engine.supervision.policy import RecoveryObserver, SupervisionTimeouts
from eaglegate.engine.types import EngineInfo
from eaglegate.server.backends.line import CommandLine, ModelArguments
from eaglegate.server.backends.plan import refuse_unknown_parsers
from eaglegate.server.backends.worker_probe import WorkerProbe
from eaglegate.server.errors import ConfigError
from eaglegate.server.flags import make_part
from eaglegate.server.generation.grammar import ParserFactory
from eaglegate.server.settings import Settings
from eaglegate.text.media.image import find_placeholder
from eaglegate.text.parsing.vocabulary import Vocabulary
from eaglegate.text.rendering.renderer import ModelFiles, TemplateRenderer, UnsupportedModel

PROBE_S = 3.0
"""Seconds after which a worker that is not ready is skipped. It is probed again later, or by the
next `check`.
"""


class RenderingBackend:
    """Backend without vLLM, complete except for its engine, which ``create_engine`` makes."""

    arguments: type[ModelArguments] = ModelArguments
    """Arguments class, with the backend's own flags if it has any. ``line.model`` has their
    values.
    """

    def __init__(self, line: CommandLine, progress: Callable[[str], None]) -> None:
        settings, arguments = line.settings, line.model
        assert arguments is not None
        refuse_unknown_parsers(settings, arguments)
        start = time.monotonic()
        progress("reading the tokenizer and the chat template")
        with _name_model(arguments.model):
            files = ModelFiles.find(arguments.model, arguments.revision, arguments.tokenizer)
            self.renderer = _create_renderer(files, settings)
        self.vocabulary = Vocabulary.from_directory(files.tokenizer_json)
        self.start_s = {"tokenizer": time.monotonic() - start}
        self.reasoning_parser = settings.reasoning_parser
        self.probe = None
        self.drafts = None
        self.fleet: Fleet | None = None
        self.spec_metrics = arguments.per_request_spec_decode_metrics
        self.facts = {
            "model": files.name,
            "tokenizer": str(files.tokenizer_json),
            "context": f"{arguments.max_model_len or files.max_model_len or 'unknown'} tokens",
        }
        self.names = settings.served_model_name or (files.name,)
        self.adapters: dict[str, str] = {}
        self.model = LocalModel(
            name=self.names[0],
            codec=self.renderer,
            vocab_size=files.vocab_size or self.renderer.vocab_size,
            max_model_len=arguments.max_model_len or files.max_model_len,
            default_sampling=files.default_sampling,
            placeholder=find_placeholder(files.config),
            recurrent=is_recurrent(read_target(files.config).config),
        )

    def describe(self, info: EngineInfo) -> EngineInfo:
        return replace(info, model=self.names[0])

    async def ask_workers(self) -> dict[str, WorkerReport | EngineStartError]:
        """Query each worker for ``eaglegate check``."""
        return {}

    async def aclose(self) -> None:
        """Do nothing, since nothing was started."""


class RemoteBackend(RenderingBackend):
    """Backend with remote workers. See ``eaglegate.server.backends.Backend``."""

    def __init__(self, line: CommandLine, progress: Callable[[str], None]) -> None:
        settings = line.settings
        self._progress = progress
        self._addresses = AddressBook()
        self._sources = build_sources(settings, self._addresses.register)
        self._access = make_part(
            ConnectionSettings,
            settings,
            start_s=PROBE_S,
            connections=2 * settings.max_running,
            strict_advisories=settings.strict_advisories,
        )
        self._fleet_settings = make_part(FleetSettings, settings)
        super().__init__(line, progress)
        self._worker_probe = self._make_probe(settings)

    def _make_probe(self, settings: Settings) -> WorkerProbe | None:
        if not settings.upstream_probe_s:
            return None
        parsers = ParserFactory(self.vocabulary, settings.tool_call_parser, self.reasoning_parser)
        kwargs = settings.default_chat_template_kwargs
        return WorkerProbe(self.renderer, parsers, settings.upstream_probe_s, kwargs)

    async def _inspect(self, engine: Engine, info: EngineInfo) -> Sequence[WorkerFinding]:
        """See ``eaglegate.engine.fleet.worker.InspectWorker``."""
        advice = [WorkerFinding(FindingKind.ADVISORY, str(row)) for row in info.advisories]
        probe = self._worker_probe
        return advice if probe is None else [*advice, *await probe(engine, info)]

    def create_engine(self, timeouts: SupervisionTimeouts, observer: RecoveryObserver) -> Fleet:
        self._progress("waiting for a serving worker")
        self.fleet = Fleet(
            self._create_engine,
            self._sources,
            timeouts,
            self._fleet_settings,
            observer,
            self._inspect,
        )
        return self.fleet

    def _create_engine(self, address: str) -> Engine:
        return remote_engine(self._addresses[address], self.model, self._access)

    def describe(self, info: EngineInfo) -> EngineInfo:
        workers = () if self.fleet is None else self.fleet.list_status()
        names = [
            f"{worker.name} ({worker.version})" if worker.version else worker.name
            for worker in workers
        ]
        details = {**info.details, "workers": ", ".join(names)}
        return replace(super().describe(info), details=details)

    async def ask_workers(self) -> dict[str, WorkerReport | EngineStartError]:
        """Query the workers without waiting for those that are still loading."""
        with _name_flag("workers"):
            name_sets = [await source.read() for source in self._sources]
        names = sorted(frozenset[str]().union(*name_sets))
        answers = await asyncio.gather(*map(self._ask, names))
        return dict(zip(names, answers, strict=True))

    async def _ask(self, name: str) -> WorkerReport | EngineStartError:
        engine = self._create_engine(name)
        try:
            info = await engine.start()
            findings = await self._inspect(engine, info)
            return WorkerReport(info, tuple(findings))
        except EngineStartError as error:
            return error
        finally:
            await engine.aclose()


class AddressBook:
    """Workers by name. A name is an address without credentials, which are only stored here."""

    def __init__(self) -> None:
        self._upstreams: dict[str, Upstream] = {}

    def register(self, address: str) -> str:
        """Register an address, and return its canonical form, the worker's name. Raises
        ValueError.
        """
        upstream = parse_upstream(address)
        self._upstreams[str(upstream)] = upstream
        return str(upstream)

    def __getitem__(self, name: str) -> Upstream:
        """Return the worker's address. An address found by DNS has no credentials."""
        return self._upstreams.get(name) or parse_upstream(name)


def build_sources(settings: Settings, register: Callable[[str], str]) -> list[WorkerSource]:
    """Return all configured sources, whose workers form one fleet. Raises ConfigError."""
    out: list[WorkerSource] = []
    addresses = [address for address in (settings.upstream or "").split(",") if address.strip()]
    if addresses:
        with _name_flag("--upstream"):
            out.append(StaticSource(map(register, addresses)))
    if settings.upstream_file:
        with _name_flag("--upstream-file"):
            file_source = FileSource(Path(settings.upstream_file), register)
            file_source.read_now()
            out.append(file_source)
    if settings.upstream_dns:
        with _name_flag("--upstream-dns"):
            out.append(DnsSource(_refuse_credentials(settings.upstream_dns)))
    if not out:
        raise ConfigError("--upstream names no worker")
    return out


def _refuse_credentials(name: str) -> str:
    """Return the name. Raises ValueError if it contains credentials."""
    if "@" in name:
        raise ValueError(
            "a DNS name carries no credentials: give --upstream-key for all its workers"
        )
    return name


@contextmanager
def _name_flag(flag: str) -> Iterator[None]:
    """Convert errors in the block to ConfigErrors that name the flag."""
    try:
        yield
    except (ValueError, DiscoveryError) as error:
        raise ConfigError(redact(f"{flag}: {error}")) from None


@contextmanager
def _name_model(model: str) -> Iterator[None]:
    """Convert errors about the model's files to ConfigErrors that name the model."""
    try:
        yield
    except UnsupportedModel as error:
        raise ConfigError(
            f"{model}: a gateway with workers renders the prompts itself, and cannot do so for "
            f"this model: {error}"
        ) from error


def _create_renderer(files: ModelFiles, settings: Settings) -> TemplateRenderer:
    """Create the renderer. Raises ConfigError."""
    if settings.chat_template_content_format != "auto":
        raise ConfigError(
            f"--chat-template-content-format {settings.chat_template_content_format}: with workers "
            "the format is detected from the template; leave it out"
        )
    try:
        parse_special = settings.special_tokens_in_messages == "parse"
        return TemplateRenderer(files, settings.chat_template, parse_special)
    except (ValueError, OSError) as error:
        raise ConfigError(f"--chat-template: {error}") from error
