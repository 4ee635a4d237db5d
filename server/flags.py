"""Settings as command-line flags: one field of a dataclass is one flag.

Its name, type, default and help follow from the field, and so do its environment name and its key
in the file (``server.cli.command_line``).
"""

from __future__ import annotations

import argparse
import typing
from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from typing import Any

import orjson

ENV_PREFIX = "EAGLEGATE_"

Kind = typing.TypeVar("Kind")


def setting(default: Any, help: str, **metadata: Any) -> Any:
    """A field with its help; ``short`` and ``metavar`` go to argparse."""
    metadata = {"help": help, **metadata}
    if isinstance(default, dict):
        return field(default_factory=lambda: default, metadata=metadata)
    return field(default=default, metadata=metadata)


def setting_of(kind: type, name: str, help: str, **metadata: Any) -> Any:
    """A setting that is the field ``name`` of ``kind``: it has its default (``make_part``)."""
    default = next(item.default for item in fields(kind) if item.name == name)
    return setting(default, help, of=(kind, name), **metadata)


def make_part(kind: type[Kind], settings: Any, **values: Any) -> Kind:
    """``kind`` with the fields that are settings; ``values`` are those of its others."""
    own = {
        item.metadata["of"][1]: getattr(settings, item.name)
        for item in fields(settings)
        if item.metadata.get("of", (None,))[0] is kind
    }
    return kind(**own | values)


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def add_arguments(parser: argparse.ArgumentParser, kind: type) -> None:
    """Add one flag per field of ``kind``; flags the parser has already are left as they are."""
    group = parser.add_argument_group("gateway")
    taken = parser._option_string_actions
    hints = typing.get_type_hints(kind)
    for item in fields(kind):
        if flag(item.name) not in taken:
            _add_flag(group, item.name, hints[item.name], item.default, item.metadata)
    if "--config" not in taken:
        group.add_argument("--config", metavar="FILE", help="YAML file of flags and their values")


def _add_flag(group: Any, name: str, hint: Any, default: Any, metadata: Mapping[str, Any]) -> None:
    shown = f" (default: {default})" if default not in (None, (), MISSING) else ""
    options: dict[str, Any] = {
        "dest": name,
        "default": argparse.SUPPRESS,
        "help": f"{metadata['help']}{shown} [{ENV_PREFIX}{name.upper()}]".replace("%", "%%"),
    }
    if metadata.get("choices"):
        options["choices"] = metadata["choices"]
    origin = typing.get_origin(hint)
    if hint is bool:
        options["action"] = argparse.BooleanOptionalAction
    elif origin is tuple:
        options["nargs"] = "+"
    elif origin is dict:
        options |= {"type": _parse_json_object, "metavar": "JSON"}
    else:
        options |= {"type": _strip_optional(hint), "metavar": metadata.get("metavar", name.upper())}
    group.add_argument(flag(name), **options)


def _strip_optional(hint: Any) -> Any:
    """str | None -> str"""
    inner = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    return inner[0] if inner else hint


def _parse_json_object(text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error.msg}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value


def read_into(kind: type[Kind], namespace: argparse.Namespace) -> Kind:
    """The fields of ``kind``, as far as they are given."""
    given = vars(namespace)
    values: dict[str, Any] = {
        item.name: tuple(given[item.name])
        if isinstance(given[item.name], list)
        else given[item.name]
        for item in fields(kind)  # type: ignore[arg-type]
        if given.get(item.name) is not None
    }
    return kind(**values)
