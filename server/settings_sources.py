"""Where settings come from: a file, the environment and the command line, as one argument list.

What is given counts in this order: flag, environment (``EAGLEGATE_`` + name), ``--config`` file. A
name that no flag has, and a switch that is neither on nor off, is an error.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import yaml

from server.settings import ENV_PREFIX, ConfigError, flag

ALIASES = {"VLLM_API_KEY": "api_key"}
"""Names from elsewhere that mean the same."""
TRUTH = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(
    ("0", "false", "no", "off"), False
)
"""How a switch is set in the environment, or in quotes in the file."""
SERVICE_LINK = re.compile(r"service_(host|port)(_\w+)?|port_\d+_(tcp|udp|sctp)(_\w+)?")


def gather(
    parser: argparse.ArgumentParser, argv: Sequence[str], environ: Mapping[str, str]
) -> list[str]:
    """File, environment and command line as one argument list; what comes later wins.

    Raises ConfigError for a file that cannot be read and for names no flag has.
    """
    path = _config_path(argv) or environ.get(ENV_PREFIX + "CONFIG")
    known = _flags(parser)
    return [
        *(_from_file(Path(path), known) if path else ()),
        *_from_environment(environ, known),
        *argv,
    ]


def names_given(argv: Sequence[str], environ: Mapping[str, str]) -> set[str]:
    """Every setting that is given somewhere, before any parser knows which there are."""
    path = _config_path(argv) or environ.get(ENV_PREFIX + "CONFIG")
    flags = (arg[2:].partition("=")[0] for arg in argv if arg.startswith("--"))
    names = {name.replace("-", "_") for name in (*flags, *(_content(Path(path)) if path else ()))}
    return names | {
        key.removeprefix(ENV_PREFIX).lower() for key in environ if key.startswith(ENV_PREFIX)
    }


def _config_path(argv: Sequence[str]) -> str | None:
    for at, arg in enumerate(argv):
        if arg == "--config":
            return argv[at + 1] if at + 1 < len(argv) else None
        if arg.startswith("--config="):
            return arg.partition("=")[2]
    return None


def _flags(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {
        option.removeprefix("--").replace("-", "_"): action
        for option, action in parser._option_string_actions.items()
        if option.startswith("--")
    }


def _content(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path} must hold names and values")
    return {str(key): value for key, value in content.items()}


def _from_file(path: Path, known: Mapping[str, argparse.Action]) -> list[str]:
    out: list[str] = []
    for key, value in _content(path).items():
        name = key.replace("-", "_")
        if name != "model_tag" and name not in known:
            raise ConfigError(f"--config {path}: there is no flag --{key}")
        if name == "model_tag":
            out.append(str(value))
        else:
            out += _as_arguments(name, value, known[name], f"--config {path}: {key}")
    return out


def _from_environment(
    environ: Mapping[str, str], known: Mapping[str, argparse.Action]
) -> list[str]:
    """An empty value counts as not given. Raises ConfigError."""
    out: list[str] = []
    for key, value in environ.items():
        ours = key.startswith(ENV_PREFIX) or key in ALIASES
        name = ALIASES.get(key, key.removeprefix(ENV_PREFIX).lower())
        if not ours or name == "config" or not value or _is_service_link(name, value):
            continue
        if name not in known:
            raise ConfigError(f"{key}: there is no flag {flag(name)}{_similar(name, known)}")
        action = known[name]
        parsed = value.split(",") if action.nargs in ("+", "*") else value
        out += _as_arguments(name, parsed, action, key)
    return out


def _is_service_link(name: str, value: str) -> bool:
    """Kubernetes sets EAGLEGATE_PORT=tcp://... and others for a Service named eaglegate."""
    return bool(SERVICE_LINK.fullmatch(name)) or (name == "port" and "://" in value)


def _similar(name: str, known: Mapping[str, argparse.Action]) -> str:
    found = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {ENV_PREFIX}{found[0].upper()}?" if found else ""


def _truth(value: Any, where: str) -> bool:
    """Raises ConfigError for what is neither yes nor no."""
    word = str(value).strip().lower()
    if word not in TRUTH:
        raise ConfigError(f"{where} must be one of {', '.join(TRUTH)}; given '{value}'")
    return TRUTH[word]


def _as_arguments(name: str, value: Any, action: argparse.Action, where: str) -> list[str]:
    if value is None:
        return []
    if action.nargs == 0 or isinstance(value, bool):
        if _truth(value, where):
            return [flag(name)]
        off = "--no-" + name.replace("_", "-")
        return [off] if off in action.option_strings else []
    if isinstance(value, dict):
        return [flag(name), orjson.dumps(value).decode()]
    if isinstance(value, list):
        return [flag(name), *map(str, value)]
    return [flag(name), str(value)]
