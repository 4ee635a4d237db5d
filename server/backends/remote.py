"""Workers that run elsewhere; this process has the tokenizer and the chat template alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from engine.base import Engine
from engine.errors import EngineStartError
from engine.remote import Access, LocalModel, Upstream, remote_engine
from engine.rendering import ModelFiles, TemplateRenderer, UnfitModel
from engine.types import EngineInfo
from server.commandline import CommandLine, ModelArguments, refuse_unknown_parsers
from server.config import ConfigError, Settings
from server.parsers import Vocabulary

CHECK_S = 3.0
"""`eaglegate check` waits this long for a worker."""


class RemoteBackend:
    """See ``server.backends.Backend``."""

    def __init__(self, line: CommandLine, progress: Callable[[str], None]) -> None:
        settings, arguments = line.settings, line.model
        assert arguments is not None
        refuse_unknown_parsers(settings, arguments)
        self._progress = progress
        self._upstreams = upstreams(settings)
        self._access = access(settings)
        progress("reading the tokenizer and the chat template")
        files = model_files(arguments)
        self.renderer = _renderer(files, settings)
        self.vocabulary = Vocabulary.from_directory(files.tokenizer_json)
        self.reasoning_parser = settings.reasoning_parser
        self.spec_metrics = arguments.per_request_spec_decode_metrics
        self.facts = {
            "model": files.name,
            "tokenizer": str(files.tokenizer_json),
            "context": f"{arguments.max_model_len or files.max_model_len or 'unknown'} tokens",
        }
        self.names = settings.served_model_name or (files.name,)
        self._model = LocalModel(
            name=self.names[0],
            codec=self.renderer,
            vocab_size=files.vocab_size or self.renderer.vocab_size,
            max_model_len=arguments.max_model_len or files.max_model_len,
            default_sampling=files.default_sampling,
        )

    def new_engine(self) -> Engine:
        (upstream,) = self._upstreams
        return remote_engine(upstream, self._model, self._access, self._progress)

    def described(self, info: EngineInfo) -> EngineInfo:
        details = {**info.details, "workers": ", ".join(map(str, self._upstreams))}
        return replace(info, model=self.names[0], details=details)

    async def ask_workers(self) -> dict[str, EngineInfo | EngineStartError]:
        """What each says of itself, without waiting for those that are loading."""
        access = replace(self._access, start_s=CHECK_S)
        engines = [remote_engine(one, self._model, access) for one in self._upstreams]
        answers = await asyncio.gather(*map(_answer, engines))
        return dict(zip(map(str, self._upstreams), answers, strict=True))

    async def aclose(self) -> None:
        """Nothing of its own runs."""


async def _answer(engine: Engine) -> EngineInfo | EngineStartError:
    try:
        return await engine.start()
    except EngineStartError as error:
        return error
    finally:
        await engine.aclose()


def upstreams(settings: Settings) -> tuple[Upstream, ...]:
    """Raises ConfigError."""
    given = [one for one in (settings.upstream or "").split(",") if one.strip()]
    try:
        return tuple(map(Upstream.parse, given))
    except ValueError as error:
        raise ConfigError(f"--upstream: {error}") from error


def access(settings: Settings) -> Access:
    return Access(
        key=settings.upstream_key,
        connect_s=settings.upstream_connect_s,
        first_token_s=settings.upstream_first_token_s,
        idle_s=settings.upstream_idle_s,
        start_s=settings.upstream_start_s,
        connections=2 * settings.max_running,
    )


def model_files(arguments: ModelArguments) -> ModelFiles:
    """Raises ConfigError."""
    try:
        return ModelFiles.find(arguments.model, arguments.revision, arguments.tokenizer)
    except UnfitModel as error:
        raise ConfigError(
            f"{arguments.model}: a gateway in front of workers makes the prompts itself and "
            f"cannot make this model's: {error}"
        ) from error


def _renderer(files: ModelFiles, settings: Settings) -> TemplateRenderer:
    """Raises ConfigError."""
    try:
        return TemplateRenderer(files, settings.chat_template)
    except (ValueError, OSError) as error:
        raise ConfigError(f"--chat-template: {error}") from error
