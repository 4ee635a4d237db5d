"""The command line of ``serve`` and ``check``: the engine's flags and the gateway's own."""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import orjson

from eaglegate.engine.bounded_yaml import InvalidYaml, read_yaml
from eaglegate.engine.vllm_contract import find_vllm
from eaglegate.engine.vllm_parts import examine_installed
from eaglegate.server.backends.line import CommandLine, ModelArguments
from eaglegate.server.cli.feature_table import list_settings_classes, load, read_features
from eaglegate.server.errors import ConfigError
from eaglegate.server.flags import (
    ENV_PREFIX,
    add_arguments,
    add_front_end_flags,
    check_front_end_flags,
    flag,
    read_into,
)
from eaglegate.server.settings import Settings, read_settings

ALIASES = {"VLLM_API_KEY": "api_key"}
"""Environment names of other programs with the same meaning."""
TRUTH = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(
    ("0", "false", "no", "off"), False
)
"""Values of a switch in the environment, or quoted in the file."""
SERVICE_LINK = re.compile(r"service_(host|port)(_\w+)?|port_\d+_(tcp|udp|sctp)(_\w+)?")


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every setting of a gateway."""
    kinds: tuple[type, ...] = (Settings, *list_settings_classes())
    for kind in kinds:
        add_arguments(parser, kind)


def gather_arguments(
    parser: argparse.ArgumentParser, argv: Sequence[str], environ: Mapping[str, str]
) -> list[str]:
    """Merge file, environment and command line into one argument list.

    The command line takes precedence over the environment, and the environment over the file.
    ``--config`` itself is left out, since vLLM's parser would read the file again. Raises
    ConfigError for an unreadable file and for names that no flag has.
    """
    path, words = _split_config(argv, environ)
    flags = {
        option.removeprefix("--").replace("-", "_"): action
        for option, action in parser._option_string_actions.items()
        if option.startswith("--")
    }
    names = _list_names(argv)
    if argv and not argv[0].startswith("-"):
        names.add("model_tag")
    environment = _read_environment(environ, flags)
    arguments = {**(_read_file_arguments(Path(path), flags) if path else {}), **environment}
    defaults = (given for name, given in arguments.items() if name not in names)
    return [*chain.from_iterable(defaults), *words]


def _list_given_names(argv: Sequence[str], environ: Mapping[str, str]) -> set[str]:
    """Return the names of all given settings, before any parser knows which exist."""
    path, _ = _split_config(argv, environ)
    names = {name.replace("-", "_") for name in (_read_file(Path(path)) if path else ())}
    return (
        _list_names(argv)
        | names
        | {key.removeprefix(ENV_PREFIX).lower() for key in environ if key.startswith(ENV_PREFIX)}
    )


def _list_names(argv: Sequence[str]) -> set[str]:
    """Return the names of the flags in a command line. Negated switches also count under their own
    name.
    """
    flags = {arg[2:].partition("=")[0].replace("-", "_") for arg in argv if arg.startswith("--")}
    return flags | {name.removeprefix("no_") for name in flags}


def _split_config(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[str | None, list[str]]:
    """Return the path of the file, if there is one, and the command line without it."""
    path, rest, words = None, [], iter(argv)
    for word in words:
        if word == "--config":
            path = next(words, None)
        elif word.startswith("--config="):
            path = word.partition("=")[2]
        else:
            rest.append(word)
    return path or environ.get(ENV_PREFIX + "CONFIG"), rest


def _read_file(path: Path) -> dict[str, Any]:
    try:
        content = read_yaml(path) or {}
    except (OSError, InvalidYaml) as error:
        raise ConfigError(f"--config {path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path} must map flags to values, as in port: 8000")
    return {str(key): value for key, value in content.items()}


def _read_file_arguments(path: Path, flags: Mapping[str, argparse.Action]) -> dict[str, list[str]]:
    """Return the arguments in the file by flag name. Raises ConfigError."""
    out: dict[str, list[str]] = {}
    for key, value in _read_file(path).items():
        name = key.replace("-", "_")
        if name != "model_tag" and name not in flags:
            raise ConfigError(f"--config {path}: there is no flag --{key}{_suggest(name, flags)}")
        if name == "model_tag":
            out[name] = [str(value)]
        else:
            out[name] = _to_arguments(name, value, flags[name], f"--config {path}: {key}")
    return out


def _read_environment(
    environ: Mapping[str, str], flags: Mapping[str, argparse.Action]
) -> dict[str, list[str]]:
    """Return the arguments in the environment by flag name. Raises ConfigError.

    An empty value counts as not given.
    """
    out: dict[str, list[str]] = {}
    for key, value in environ.items():
        is_setting = key.startswith(ENV_PREFIX) or key in ALIASES
        name = ALIASES.get(key, key.removeprefix(ENV_PREFIX).lower())
        if not is_setting or name == "config" or not value or _is_service_link(name, value):
            continue
        if name not in flags:
            raise ConfigError(
                f"{key}: there is no flag {flag(name)}{_suggest(name, flags, ENV_PREFIX)}"
            )
        action = flags[name]
        values = value.split(",") if action.nargs in ("+", "*") else value
        out[name] = _to_arguments(name, values, action, key)
    return out


def _is_service_link(name: str, value: str) -> bool:
    """Return True for a variable that Kubernetes sets for a Service named eaglegate, such as
    EAGLEGATE_PORT=tcp://...
    """
    return bool(SERVICE_LINK.fullmatch(name)) or (name == "port" and "://" in value)


def _suggest(name: str, flags: Mapping[str, argparse.Action], environment: str = "") -> str:
    matches = difflib.get_close_matches(name, flags, n=1)
    if not matches:
        return ""
    suggestion = environment + matches[0].upper() if environment else matches[0].replace("_", "-")
    return f"; did you mean {suggestion}?"


def _parse_switch(value: Any, source: str) -> bool:
    """Parse a boolean. Raises ConfigError."""
    word = str(value).strip().lower()
    if word not in TRUTH:
        raise ConfigError(f"{source} must be one of {', '.join(TRUTH)}; given '{value}'")
    return TRUTH[word]


def _to_arguments(name: str, value: Any, action: argparse.Action, source: str) -> list[str]:
    """Return the words of one flag. Raises ConfigError for a value that the flag cannot have."""
    if value is None:
        return []
    if action.nargs == 0 or isinstance(value, bool):
        if _parse_switch(value, source):
            return [flag(name)]
        negation = "--no-" + name.replace("_", "-")
        return [negation] if negation in action.option_strings else []
    if isinstance(value, dict):
        return [flag(name), _to_json(value, source)]
    if isinstance(value, list):
        if action.nargs not in ("+", "*"):
            raise ConfigError(f"{source} takes one value; given {_to_json(value, source)}")
        return [flag(name), *map(str, value)]
    return [flag(name), str(value)]


def _to_json(value: Any, source: str) -> str:
    """Raises ConfigError for values of YAML that JSON lacks."""
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        raise ConfigError(f"{source} cannot be written as JSON: {error}") from None


USAGE = "eaglegate {} [MODEL] [options]"
HELP = frozenset({"-h", "--help"})
NO_VLLM = (
    "vLLM is not installed: pip install '.[cpu]' or '.[cuda]' in eaglegate's checkout, or name "
    "servers that generate with --upstream URL"
)
DEMO_TOOL_PARSER = "hermes"
"""Tool-call format of the built-in demo. Its reasoning format is an engine flag."""


VLLM = "eaglegate.server.backends.in_process:InProcessBackend"
BACKENDS: Mapping[str, str] = {
    "upstream upstream_file upstream_dns": "eaglegate.server.backends.remote:RemoteBackend",
}
"""Backends that replace vLLM in this process, by the settings that select them."""


def find_backend(names: Collection[str]) -> tuple[str, str] | None:
    """Return the flag that selects a backend, and the backend's class path; None for vLLM."""
    for spellings, place in BACKENDS.items():
        if not set(spellings.split()).isdisjoint(names):
            return flag(spellings.split()[0]), place
    return None


def read_command_line(
    command: str,
    argv: list[str],
    progress: Callable[[str], None],
    extra_settings: type | None = None,
) -> CommandLine:
    """Read the command line. Raises ConfigError.

    ``extra_settings`` is a class of settings that only this command has.
    """
    names = _list_given_names(argv, os.environ)
    if backend := find_backend(names):
        return _read_without_vllm(command, argv, progress, *backend)
    if not HELP.isdisjoint(argv):
        _show_help(command, extra_settings)
    if find_vllm() is None:
        raise ConfigError(NO_VLLM)
    examination = examine_installed()
    refusal = examination.refusal if examination is not None else None
    if refusal and "allow_untested_vllm" not in names:  # its import may fail
        raise ConfigError(refusal)
    progress("loading vLLM")
    from eaglegate.engine.vllm_backend.arguments import EngineParser, add_engine_arguments

    parser = EngineParser(
        prog=f"eaglegate {command}", usage=USAGE.format(command), allow_abbrev=False
    )
    add_engine_arguments(parser)
    if extra_settings is not None:
        add_arguments(parser, extra_settings)
    add_settings(parser)
    add_front_end_flags(parser)
    namespace = parser.parse_args(gather_arguments(parser, argv, os.environ))
    for notice in check_front_end_flags(namespace):
        progress(f"note: {notice}")
    model = getattr(namespace, "model_tag", None) or getattr(namespace, "model", None)
    settings = read_settings(namespace)
    if refusal and not settings.allow_untested_vllm:
        raise ConfigError(refusal)
    if model is None and settings.tool_call_parser is None:
        settings = replace(settings, tool_call_parser=DEMO_TOOL_PARSER)
    if settings.depth is None:
        settings = replace(settings, depth="auto")
    features = read_features(namespace)
    return CommandLine(namespace, settings, model is None, argv, VLLM, features)


def _show_help(command: str, extra_settings: type | None) -> NoReturn:
    """Show the gateway's own options, without vLLM, whose import takes seconds."""
    parser = argparse.ArgumentParser(
        prog=f"eaglegate {command}",
        usage=USAGE.format(command),
        description="MODEL is a folder or a hub name; without one, the built-in demo is served.",
        epilog="Every option can also be set in the environment (EAGLEGATE_MAX_RUNNING=64) or in "
        "the file of --config (max-running: 64). Every engine flag of `vllm serve` works unchanged "
        "(docs/flags.md): --help=all shows them, too, --help=max-model-len one of them.",
    )
    if extra_settings is not None:
        add_arguments(parser, extra_settings)
    add_settings(parser)
    parser.parse_args(["--help"])
    raise AssertionError("argparse exits after help")


def _read_without_vllm(
    command: str, argv: list[str], progress: Callable[[str], None], option: str, place: str
) -> CommandLine:
    kind: type[ModelArguments] = load(place).arguments
    parser = argparse.ArgumentParser(
        prog=f"eaglegate {command}",
        description="MODEL is a folder or a hub name; its tokenizer and chat template are read.",
        epilog=f"vLLM's flags belong to the workers; `--help` without {option} shows them.",
        allow_abbrev=False,
    )
    parser.add_argument("model_tag", nargs="?", default=None, metavar="MODEL")
    add_settings(parser)
    add_arguments(parser, kind)
    add_front_end_flags(parser)
    usage = f"{option} {parser._option_string_actions[option].metavar}"
    parser.usage = f"eaglegate {command} MODEL {usage} [options]"
    dashed_args = [_replace_underscores(arg) for arg in gather_arguments(parser, argv, os.environ)]
    namespace, unknown = parser.parse_known_args(dashed_args)
    if unknown:
        raise ConfigError(
            f"{' '.join(unknown)}: with {option} this process runs no vLLM; give its flags to the "
            f"workers (`eaglegate serve {usage} --help` shows the gateway's flags)"
        )
    for notice in check_front_end_flags(namespace):
        progress(f"note: {notice}")
    if getattr(namespace, "lora_modules", None):
        raise ConfigError(f"--lora-modules: with {option}, adapters are set where the model runs")
    arguments = read_into(kind, namespace)
    name = namespace.model_tag or arguments.model
    if not name:
        raise ConfigError(
            f"{option} needs the model, too: the gateway renders and parses with its tokenizer "
            f"and chat template. eaglegate {command} MODEL {usage}, with MODEL the folder or hub "
            "name of the served model"
        )
    settings = read_settings(namespace)
    if settings.require_lossless:
        raise ConfigError(
            f"--require-lossless: with {option}, speculation is set where the model runs, and "
            "cannot be checked here; give the flag to the gateways that are workers"
        )
    model = replace(arguments, model=name)
    features = read_features(namespace)
    return CommandLine(namespace, settings, False, argv, place, features, model)


def _replace_underscores(argument: str) -> str:
    """Replace underscores in a flag by dashes, since vLLM's parser accepts both."""
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else argument


def read_again(argv: list[str]) -> CommandLine:
    """Read the command line of a running gateway again, without exiting for a wrong flag. Raises
    ConfigError.
    """
    try:
        return read_command_line("serve", argv, lambda _: None)
    except SystemExit:  # argparse has printed the error to standard error
        raise ConfigError("a flag has an invalid value; the log says which") from None
