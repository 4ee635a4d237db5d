"""Command-line flags: one per field of a dataclass, and those of ``vllm serve``'s front end.

A flag's name, type, default and help follow from the field, and so do its environment name and its
key in the file (``eaglegate.server.cli.command_line``).

``FLAGS`` are flags of ``vllm serve``'s own HTTP front end that are not settings of this gateway.
Each flag is accepted with a notice that says why it has no effect, or refused at startup if
ignoring it would change what clients get or who may do what. vLLM's engine flags are not among
them. Flags that share a name and a meaning with a setting are in ``server.settings``. A test
compares this table with vLLM's own parser.
"""

from __future__ import annotations

import argparse
import math
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

import orjson

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


def parse_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"must be a finite number; given '{text}'")
    return number


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


SWITCH = "switch"
MANY = "many"
ONE = "one"


@dataclass(frozen=True, slots=True)
class FrontEndFlag:
    """A flag of vLLM's front end. Values in ``harmless`` request nothing, so they have no
    consequences.
    """

    name: str
    why: str
    takes: str = ONE
    refused: bool = False
    honoured: bool = False
    """True if the flag has an effect although no setting has its name."""
    harmless: Collection[Any] = ()
    short: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return "honoured" if self.honoured else "refused" if self.refused else "no effect"

    def has_effect(self, value: Any) -> bool:
        return (
            not self.honoured
            and value is not None
            and value is not False
            and value not in self.harmless
        )


def ignore(name: str, reason: str, takes: str = ONE, **options: Any) -> FrontEndFlag:
    return FrontEndFlag(name, reason, takes, **options)


def refuse(name: str, reason: str, takes: str = ONE, **options: Any) -> FrontEndFlag:
    return FrontEndFlag(name, reason, takes, refused=True, **options)


ONE_PROCESS = "one process serves; put a gateway with --upstream in front of several"
NO_SUPERVISOR = "there is no data-parallel supervisor here"
OWN_LOG = "--log-level selects what is logged"
NO_PROMPTS = "prompts and completions are not logged"
NO_PAGES = "there are no documentation pages; /openapi.json describes the API"
NO_COHERE = "there are no Cohere endpoints here"
TOKENS = "vLLM's token endpoints are not served here; run `vllm serve` for workers"
STAMP = "answers carry no system_fingerprint"
LIMITS = "requests are bounded by --max-body-bytes and the server's own limits on headers"
LORA = "adapters are models of their own names (in process; with --upstream they are the workers')"

FLAGS = (
    refuse("headless", "run `vllm serve --headless` on the other hosts", SWITCH),
    ignore("api_server_count", ONE_PROCESS, harmless=("1",), short=("-asc",)),
    refuse("grpc", "there is no gRPC server here", SWITCH),
    ignore("grpc_port", "there is no gRPC server here"),
    FrontEndFlag("lora_modules", LORA, MANY, honoured=True),
    ignore("trust_request_mm_kwargs", "this is a text engine", SWITCH),
    refuse("response_role", "answers have the role assistant", harmless=("assistant",)),
    refuse("return_tokens_as_token_ids", "clients request it with the field of that name", SWITCH),
    ignore(
        "exclude_tools_when_tool_choice_none",
        "tools are left out of the prompt whenever tool_choice is none",
        SWITCH,
    ),
    refuse(
        "tool_parser_plugin",
        "parsers are the gateway's own, as docs/parsers.md lists them",
        harmless=("",),
    ),
    refuse(
        "tool_strict_level",
        "a request's own `strict` and tool_choice decide what a grammar enforces",
        harmless=("auto",),
    ),
    refuse("tool_server", "there are no hosted tools here"),
    ignore("max_log_len", NO_PROMPTS),
    ignore("enable_log_outputs", NO_PROMPTS, SWITCH),
    ignore("enable_log_deltas", NO_PROMPTS, SWITCH),
    ignore("enable_prompt_tokens_details", "usage always has prompt_tokens_details", SWITCH),
    ignore("enable_per_request_metrics", "answers with one choice have timings", SWITCH),
    ignore("enable_server_load_tracking", "/load and /metrics always show it", SWITCH),
    refuse(
        "enable_force_include_usage",
        "a stream has usage if the client sets stream_options.include_usage",
        SWITCH,
    ),
    ignore("sse_keep_alive_interval", "--keep-alive-s sets it, 15 s by default", harmless=("0",)),
    ignore("cohere_is_reasoning_model", NO_COHERE, SWITCH),
    ignore("cohere_format", NO_COHERE),
    ignore(
        "anthropic_disabled_thinking_effort",
        "thinking of type disabled turns off the template's thinking",
        harmless=("auto",),
    ),
    ignore("log_error_stack", "errors of the gateway are always logged with their stack", SWITCH),
    refuse("tokens_only", TOKENS, SWITCH),
    refuse("enable_scale_out", TOKENS, SWITCH),
    ignore("fingerprint_mode", STAMP, harmless=("none",)),
    ignore("fingerprint_value", STAMP),
    ignore("data_parallel_supervisor_port", NO_SUPERVISOR),
    ignore("dp_supervisor_probe_interval_s", NO_SUPERVISOR),
    ignore("dp_supervisor_probe_timeout_s", NO_SUPERVISOR),
    ignore("dp_supervisor_probe_failure_threshold", NO_SUPERVISOR),
    refuse("uds", "the gateway listens on --host and --port"),
    ignore("uvicorn_log_level", OWN_LOG),
    ignore("disable_uvicorn_access_log", OWN_LOG, SWITCH),
    ignore("disable_access_log_for_endpoints", OWN_LOG),
    refuse("enable_ssl_refresh", "restart the gateway to read a new certificate", SWITCH),
    refuse(
        "ssl_cert_reqs",
        "--ssl-ca-certs alone requires a certificate from every client",
        harmless=("0",),
    ),
    refuse("middleware", "the gateway loads no third-party code", harmless=("",)),
    ignore("enable_request_id_headers", "every answer has x-request-id", SWITCH),
    ignore("disable_fastapi_docs", NO_PAGES, SWITCH),
    ignore("enable_offline_docs", NO_PAGES, SWITCH),
    ignore("h11_max_incomplete_event_size", LIMITS),
    ignore("h11_max_header_count", LIMITS),
    ignore("enable_flash_late_interaction", "this engine generates; it does not rank", SWITCH),
)  # fmt: skip


def add_front_end_flags(parser: argparse.ArgumentParser) -> None:
    """Add every flag of the table that the parser does not have yet."""
    group = parser.add_argument_group("vllm serve")
    parser_options = parser._option_string_actions
    for item in FLAGS:
        if flag(item.name) in parser_options:
            continue
        options: dict[str, Any] = {"dest": item.name, "default": argparse.SUPPRESS}
        options["help"] = f"{item.kind}: {item.why}"
        if item.takes == SWITCH:
            options["action"] = argparse.BooleanOptionalAction
        elif item.takes == MANY:
            options["nargs"] = "+"
        group.add_argument(flag(item.name), *item.short, **options)


def check_front_end_flags(namespace: argparse.Namespace) -> Iterator[str]:
    """Yield a notice for each flag without effect. Raises ConfigError for refused flags."""
    arguments = vars(namespace)
    effective = [item for item in FLAGS if item.has_effect(arguments.get(item.name))]
    stops = [f"{flag(item.name)} is refused: {item.why}" for item in effective if item.refused]
    if stops:
        raise ConfigError("; ".join(stops))
    for item in effective:
        yield f"{flag(item.name)} has no effect: {item.why}"
