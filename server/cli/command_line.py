"""The command line of ``serve`` and ``check``, read: the engine's flags and the gateway's own."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from server.cli.front_end_flags import add_front_end_flags, examine
from server.settings import ConfigError, Settings, add_arguments, read_into, setting, settings_from
from server.settings_sources import gather, names_given

if TYPE_CHECKING:
    from server.cli.check import Wanted

Arguments = Any
"""vLLM's AsyncEngineArgs; the name stays in engine/vllm_backend."""

DEMO_TOOL_PARSER = "hermes"
"""The format of the built-in demo; its reasoning format is an engine flag and set there."""


UPSTREAMS = ("upstream", "upstream_file", "upstream_dns")
"""Each of these settings names workers; with one of them there is no engine in this process."""


@dataclass(frozen=True, slots=True)
class ModelArguments:
    """What a gateway in front of workers must know of the model; names as in ``vllm serve``."""

    model: str = setting("", "folder or hub name of the model the workers serve")
    tokenizer: str | None = setting(None, "folder or hub name of its tokenizer, if elsewhere")
    revision: str | None = setting(None, "branch, tag or commit on the hub")
    max_model_len: int | None = setting(None, "longest sequence; the workers may allow less")
    per_request_spec_decode_metrics: str = setting(
        "none",
        "how much of its speculation every answer carries",
        choices=("none", "summary", "detailed"),
    )


@dataclass(frozen=True, slots=True)
class CommandLine:
    """``argv`` is as it was given, to be read again."""

    namespace: argparse.Namespace
    settings: Settings
    demo: bool
    """No model was named."""
    argv: list[str]
    model: ModelArguments | None = None
    """With workers: the engine's flags are theirs."""

    @property
    def remote(self) -> bool:
        return self.model is not None


def read(command: str, argv: list[str], progress: Callable[[str], None]) -> CommandLine:
    """Raises ConfigError."""
    if not names_given(argv, os.environ).isdisjoint(UPSTREAMS):
        return _read_remote(command, argv, progress)
    progress("loading vLLM")
    from engine.vllm_backend.arguments import add_engine_arguments, engine_parser

    parser = engine_parser(
        prog=f"eaglegate {command}",
        usage=f"eaglegate {command} [MODEL] [options]",
        description="MODEL is a folder or a hub name; without one, the built-in demo.",
        epilog="Every engine flag of `vllm serve` works here unchanged (docs/flags.md). "
        "--help=ModelConfig shows one group, --help=max-model-len one flag, --help=all everything.",
    )
    add_engine_arguments(parser)
    add_arguments(parser)
    add_front_end_flags(parser)
    namespace = parser.parse_args(gather(parser, argv, os.environ))
    for notice in examine(namespace):
        progress(f"note: {notice}")
    named = getattr(namespace, "model_tag", None) or getattr(namespace, "model", None)
    settings = settings_from(namespace)
    if named is None and settings.tool_call_parser is None:
        settings = replace(settings, tool_call_parser=DEMO_TOOL_PARSER)
    return CommandLine(namespace, settings, demo=named is None, argv=argv)


def _read_remote(command: str, argv: list[str], progress: Callable[[str], None]) -> CommandLine:
    parser = argparse.ArgumentParser(
        prog=f"eaglegate {command}",
        usage=f"eaglegate {command} MODEL --upstream URL[,URL...] [options]",
        description="MODEL is a folder or a hub name; its tokenizer and chat template are read.",
        epilog="An engine's flags are for the workers; `--help` without --upstream shows them.",
        allow_abbrev=False,
    )
    parser.add_argument("model_tag", nargs="?", default=None, metavar="MODEL")
    add_arguments(parser)
    add_arguments(parser, ModelArguments)
    add_front_end_flags(parser)
    dashed = [_dashed(arg) for arg in gather(parser, argv, os.environ)]
    namespace, unknown = parser.parse_known_args(dashed)
    if unknown:
        raise ConfigError(
            f"{' '.join(unknown)}: with workers there is no engine here; flags of an engine are "
            "for them (`eaglegate serve --upstream URL --help` shows those of the gateway)"
        )
    for notice in examine(namespace):
        progress(f"note: {notice}")
    if getattr(namespace, "lora_modules", None):
        raise ConfigError("--lora-modules: with workers, adapters are theirs to serve")
    arguments = read_into(ModelArguments, namespace)
    named = namespace.model_tag or arguments.model
    if not named:
        raise ConfigError(
            "--upstream needs the model, too: the gateway renders and parses with its tokenizer "
            f"and chat template. eaglegate {command} MODEL --upstream URL, with MODEL the folder "
            "or hub name of what the workers serve"
        )
    model = replace(arguments, model=named)
    return CommandLine(namespace, settings_from(namespace), demo=False, argv=argv, model=model)


def _dashed(argument: str) -> str:
    """vLLM's parser takes underscores in flags, so this one does."""
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else argument


def read_again(argv: list[str]) -> CommandLine:
    """The same for a gateway that serves, which a wrong flag must not end. Raises ConfigError."""
    try:
        return read("serve", argv, lambda _: None)
    except SystemExit:  # argparse has said on standard error what is wrong
        raise ConfigError("a flag has a value that it cannot have; the log says which") from None


def engine_arguments_of(namespace: argparse.Namespace) -> Arguments:
    from engine.vllm_backend.arguments import engine_arguments

    try:
        return engine_arguments(namespace)
    except (ValueError, TypeError) as error:
        raise ConfigError(str(error)) from error


def wanted(settings: Settings, source: Any) -> Wanted:
    from server.cli.check import Wanted
    from server.parsing.registry import reasoning_format, tool_format

    reasoning = getattr(source, "reasoning_parser", None) or settings.reasoning_parser
    parsers = {
        "tool calls": (settings.tool_call_parser, tool_format),
        "reasoning": (reasoning or None, reasoning_format),
    }
    return Wanted(settings.host, settings.port, parsers)


def refuse_unknown_parsers(settings: Settings, source: Any) -> None:
    from server.cli.check import resolve_parsers

    _, unknown = resolve_parsers(wanted(settings, source))
    if unknown:
        raise ConfigError("; ".join(unknown))
