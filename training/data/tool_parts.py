"""What every turn that calls a tool is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from training.data.source import Source
from training.data.turn import Call, Tool, ToolTurn
from training.data.values import to_json


def tool(
    name: str, description: str, properties: Mapping[str, Any], optional: Sequence[str] = ()
) -> Tool:
    required = [key for key in properties if key not in optional]
    schema = {"type": "object", "properties": dict(properties), "required": required}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def strings(*names: str) -> dict[str, Any]:
    return {name: {"type": "string"} for name in names}


def turn(
    made: Tool,
    user: str,
    arguments: Sequence[Mapping[str, Any]],
    results: Sequence[Any],
    report: str,
) -> ToolTurn:
    name = made["function"]["name"]
    shown = tuple(item if isinstance(item, str) else to_json(item) for item in results)
    return ToolTurn(made, user, tuple(Call(name, item) for item in arguments), shown, report)


def listed(items: Sequence[str]) -> str:
    return ", ".join(items[:-1]) + " and " + items[-1] if len(items) > 1 else items[0]


def how_many(source: Source, parallel: float) -> int:
    """How many calls one request asks for."""
    return source.pick([2, 2, 3]) if source.chance(parallel) else 1
