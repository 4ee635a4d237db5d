"""Command-line flags: one per field of a dataclass, and those of ``vllm serve``'s front end.

A flag's name, type, default and help follow from the field, and so do its environment name and its
key in the file (``eaglegate.server.cli.command_line``).

The flags of ``vllm serve``'s own HTTP front end that are not settings of this gateway are accepted
with a notice, or refused at startup if ignoring them would change what clients get or who may do
what. A test compares them with vLLM's own parser.
"""

from __future__ import annotations

import argparse
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any

import orjson

from eaglegate.engine.flag_numbers import parse_number
from eaglegate.server.errors import ConfigError

ENV_PREFIX = "EAGLEGATE_"

Kind = typing.TypeVar("Kind")


def setting(default: Any, help: str, **metadata: Any) -> Any:
    """Return a dataclass field with help; ``short`` and ``metavar`` are passed to argparse."""
    metadata = {"help": help, **metadata}
    if isinstance(default, dict):
        return field(default_factory=lambda: default, metadata=metadata)
    return field(default=default, metadata=metadata)


def setting_of(kind: type, name: str, help: str, **metadata: Any) -> Any:
    """Return a setting for the field ``name`` of ``kind``, with that field's default. See
    ``make_part``.
    """
    default = next(item.default for item in fields(kind) if item.name == name)
    return setting(default, help, of=(kind, name), **metadata)


def make_part(kind: type[Kind], settings: Any, **values: Any) -> Kind:
    """Create a ``kind`` from the settings that are its fields; ``values`` are its other fields."""
    members = {
        item.metadata["of"][1]: getattr(settings, item.name)
        for item in fields(settings)
        if item.metadata.get("of", (None,))[0] is kind
    }
    return kind(**members | values)


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


class Heading(str):
    """Heading in ``--help`` for the settings that follow it in a dataclass.

    It is declared as a class variable between fields: ``KEYS: ClassVar = Heading("API keys")``.
    """


def list_settings(kind: type) -> Iterator[tuple[str, Field[Any]]]:
    """Yield the fields of ``kind``, each with its heading."""
    items = {item.name: item for item in fields(kind)}
    heading = "gateway"
    for name in kind.__annotations__:
        if name in items:
            yield heading, items[name]
        elif isinstance(value := getattr(kind, name), Heading):
            heading = value


def add_arguments(parser: argparse.ArgumentParser, kind: type) -> None:
    """Add one flag per field of ``kind``. Flags that the parser already has are left unchanged."""
    options = parser._option_string_actions
    groups = {group.title: group for group in parser._action_groups}
    hints = typing.get_type_hints(kind)
    for heading, item in list_settings(kind):
        if flag(item.name) in options:
            continue
        if heading not in groups:
            groups[heading] = parser.add_argument_group(str(heading))
        _add_flag(groups[heading], item.name, hints[item.name], item.default, item.metadata)
    if "--config" not in options:
        parser.add_argument("--config", metavar="FILE", help="YAML file of flags and their values")


def _add_flag(group: Any, name: str, hint: Any, default: Any, metadata: Mapping[str, Any]) -> None:
    suffix = (
        f" (default: {_show(default)})" if default not in (None, (), "", False, MISSING) else ""
    )
    options: dict[str, Any] = {
        "dest": name,
        "default": argparse.SUPPRESS,
        "help": f"{metadata['help']}{suffix}".replace("%", "%%"),
    }
    origin = typing.get_origin(hint)
    if metadata.get("choices"):
        options["choices"] = metadata["choices"]
    elif hint is not bool:
        options["metavar"] = metadata.get("metavar") or name_value(name)
    if hint is bool:
        options["action"] = argparse.BooleanOptionalAction
    elif origin is tuple:
        options |= {"nargs": "+", "action": "extend"}
    elif origin is dict:
        options |= {"type": parse_json_object, "metavar": "JSON"}
    else:
        kind = _strip_optional(hint)
        parse = PARSERS.get(hint) or PARSERS.get(kind, kind)
        options["type"] = str.lower if metadata.get("choices") else parse
    group.add_argument(flag(name), **options)


def _show(default: Any) -> str:
    if isinstance(default, tuple):
        return " ".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) else str(default)


UNITS = {"s": "SECONDS", "ms": "MS"}


def name_value(name: str) -> str:
    """Return the last word of a flag's name as its value in help: ``--api-key-file FILE``."""
    last_word = re.split("[-_]", name)[-1]
    return UNITS.get(last_word, last_word.upper())


def _strip_optional(hint: Any) -> Any:
    """Return the type in an optional: str for str | None."""
    inner = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    return inner[0] if inner else hint


def parse_whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number; given '{text}'") from None


def parse_optional_text(text: str) -> str:
    if not text:  # an unset variable of a shell
        raise argparse.ArgumentTypeError("must not be empty; leave the flag out")
    return text


PARSERS: Mapping[Any, Callable[[str], Any]] = {
    int: parse_whole,
    float: parse_number,
    str | None: parse_optional_text,
}


def parse_json_object(text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error.msg}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value


def read_into(kind: type[Kind], namespace: argparse.Namespace) -> Kind:
    """Create a ``kind`` from the given arguments."""
    arguments = vars(namespace)
    values: dict[str, Any] = {
        item.name: tuple(arguments[item.name])
        if isinstance(arguments[item.name], list)
        else arguments[item.name]
        for item in fields(kind)  # type: ignore[arg-type]
        if arguments.get(item.name) is not None
    }
    return kind(**values)


REFUSED: Mapping[str, str] = {
    "headless": "run `vllm serve --headless` on the other hosts",
    "grpc": "there is no gRPC server here",
    "response_role": "answers have the role assistant",
    "return_tokens_as_token_ids": "clients request it with the field of that name",
    "tool_parser_plugin": "parsers are the gateway's own, as docs/parsers.md lists them",
    "tool_strict_level": "a request's own `strict` and tool_choice decide what a grammar enforces",
    "tool_server": "there are no hosted tools here",
    "enable_force_include_usage": "clients set stream_options.include_usage",
    "tokens_only": "run `vllm serve` for workers, which have token endpoints",
    "enable_scale_out": "run `vllm serve` for workers, which have token endpoints",
    "uds": "the gateway listens on --host and --port",
    "enable_ssl_refresh": "restart the gateway to read a new certificate",
    "ssl_cert_reqs": "--ssl-ca-certs alone requires a certificate from every client",
    "middleware": "the gateway loads no third-party code",
}
"""Flags that would change what clients get or who may do what, with the reason."""
IGNORED = (
    "api_server_count", "grpc_port", "trust_request_mm_kwargs",
    "exclude_tools_when_tool_choice_none", "max_log_len", "enable_log_outputs",
    "enable_log_deltas", "enable_prompt_tokens_details", "enable_per_request_metrics",
    "enable_server_load_tracking", "sse_keep_alive_interval", "cohere_is_reasoning_model",
    "cohere_format", "anthropic_disabled_thinking_effort", "log_error_stack", "fingerprint_mode",
    "fingerprint_value", "data_parallel_supervisor_port", "dp_supervisor_probe_interval_s",
    "dp_supervisor_probe_timeout_s", "dp_supervisor_probe_failure_threshold", "uvicorn_log_level",
    "disable_uvicorn_access_log", "disable_access_log_for_endpoints", "enable_request_id_headers",
    "disable_fastapi_docs", "enable_offline_docs", "h11_max_incomplete_event_size",
    "h11_max_header_count", "enable_flash_late_interaction",
)  # fmt: skip
"""Flags without an effect here. docs/flags.md has the reasons."""
VALUED = frozenset({
    "response_role", "tool_parser_plugin", "tool_strict_level", "tool_server", "uds",
    "ssl_cert_reqs", "middleware", "api_server_count", "grpc_port", "max_log_len",
    "sse_keep_alive_interval", "cohere_format", "anthropic_disabled_thinking_effort",
    "fingerprint_mode", "fingerprint_value", "data_parallel_supervisor_port",
    "dp_supervisor_probe_interval_s", "dp_supervisor_probe_timeout_s",
    "dp_supervisor_probe_failure_threshold", "uvicorn_log_level",
    "disable_access_log_for_endpoints", "h11_max_incomplete_event_size", "h11_max_header_count",
})  # fmt: skip
"""Flags that take a value. All others are switches."""
DEFAULTS: Mapping[str, str] = {
    "response_role": "assistant", "tool_parser_plugin": "", "tool_strict_level": "auto",
    "ssl_cert_reqs": "0", "middleware": "", "api_server_count": "1",
    "sse_keep_alive_interval": "0", "anthropic_disabled_thinking_effort": "auto",
    "fingerprint_mode": "none",
}  # fmt: skip
"""Values that ask for nothing."""
SHORT = {"api_server_count": ("-asc",)}


def add_front_end_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of vLLM's front end that the parser does not have yet."""
    group = parser.add_argument_group("vllm serve")
    parser_options = parser._option_string_actions
    group.add_argument("--lora-modules", nargs="+", default=argparse.SUPPRESS, help="name=folder")
    for name in (*REFUSED, *IGNORED):
        if flag(name) in parser_options:
            continue
        options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS}
        options["help"] = f"refused: {REFUSED[name]}" if name in REFUSED else "no effect"
        if name not in VALUED:
            options["action"] = argparse.BooleanOptionalAction
        group.add_argument(flag(name), *SHORT.get(name, ()), **options)


def check_front_end_flags(namespace: argparse.Namespace) -> Iterator[str]:
    """Yield a notice for each flag without effect. Raises ConfigError for refused flags."""
    arguments = vars(namespace)
    names = [
        name
        for name in (*REFUSED, *IGNORED)
        if arguments.get(name) not in (None, False, DEFAULTS.get(name))
    ]
    stops = [f"{flag(name)} is refused: {REFUSED[name]}" for name in names if name in REFUSED]
    if stops:
        raise ConfigError("; ".join(stops))
    for name in names:
        yield f"{flag(name)} has no effect here (docs/flags.md)"
