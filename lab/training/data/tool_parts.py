"""Parts shared by all turns that call a tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eaglegate.lab.training.data.source import Source
from eaglegate.lab.training.data.turn import Call, Tool, ToolTurn
from eaglegate.lab.training.data.values import fields, format_value, to_json, value


def tool(
    name: str, description: str, properties: Mapping[str, Any], optional_keys: Sequence[str] = ()
) -> Tool:
    required_keys = [key for key in properties if key not in optional_keys]
    schema = {"type": "object", "properties": dict(properties), "required": required_keys}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def strings(*names: str) -> dict[str, Any]:
    return {name: {"type": "string"} for name in names}


def turn(
    called_tool: Tool,
    user: str,
    arguments: Sequence[Mapping[str, Any]],
    results: Sequence[Any],
    report: str,
) -> ToolTurn:
    name = called_tool["function"]["name"]
    result_texts = tuple(item if isinstance(item, str) else to_json(item) for item in results)
    return ToolTurn(
        called_tool, user, tuple(Call(name, item) for item in arguments), result_texts, report
    )


def listed(items: Sequence[str]) -> str:
    return ", ".join(items[:-1]) + " and " + items[-1] if len(items) > 1 else items[0]


def draw_call_count(source: Source, parallel_share: float) -> int:
    """Draw the number of calls for a request."""
    return source.pick([2, 2, 3]) if source.chance(parallel_share) else 1


def outcome(source: Source) -> tuple[Any, str]:
    """Make a tool's result, and the sentence that reports it."""
    draw = source.random.random()
    text = source.phrase(2, 5)
    if draw < 0.1:
        return {"error": text}, f"The tool reported an error: {text}."
    if draw < 0.2:
        return text, f"The result is: {text}."
    result: dict[str, Any] = {}
    if source.chance(0.6):
        result["status"] = source.pick(["ok", "done", "created", "pending", "success"])
    for key, schema in fields(source, source.pick([1, 1, 2]), allows_nesting=False).items():
        result.setdefault(key, value(source, key, schema))
    facts = " and ".join(f"{key} is {format_value(item)}" for key, item in result.items())
    return result, f"Result: {facts}."
