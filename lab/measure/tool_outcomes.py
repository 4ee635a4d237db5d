"""Outcomes of an answer's tool calls, named as in ``text.events.Outcome``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from eaglegate.lab.measure.stream import RequestResult, ToolCall
from eaglegate.text.events import Outcome
from eaglegate.text.parsing.tools import ToolSchema

BAD = frozenset(
    {Outcome.SCHEMA_MISMATCH, Outcome.MALFORMED, Outcome.TRUNCATED, Outcome.UNKNOWN_TOOL}
)
FREE_TEXT = object()
"""Schema of a custom tool, whose input is text."""


def judge_calls(result: RequestResult, tools: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Count calls by outcome. The last call of an answer that hit its limit is truncated."""
    schemas = dict(map(_read_tool, tools))
    counts: Counter[str] = Counter()
    last_number = len(result.tool_calls) - 1
    for number, call in enumerate(result.tool_calls):
        is_cut_off = (
            result.finish in ("length", "max_tokens", "incomplete") and number == last_number
        )
        counts[_judge(call, schemas, is_cut_off=is_cut_off).value] += 1
    return dict(counts)


def is_valid(calls: Mapping[str, int]) -> bool:
    return not any(calls.get(outcome.value) for outcome in BAD)


def _read_tool(tool: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name and schema of a tool in the format of any of the APIs."""
    if tool.get("type") == "custom":
        return str((tool.get("custom") or tool).get("name", "")), FREE_TEXT
    function = tool.get("function") or tool
    schema = function.get("parameters") or function.get("input_schema")
    return str(function.get("name", "")), schema


def _judge(call: ToolCall, schemas: Mapping[str, Any], *, is_cut_off: bool) -> Outcome:
    if call.name not in schemas:
        return Outcome.TRUNCATED if is_cut_off and not call.name else Outcome.UNKNOWN_TOOL
    if schemas[call.name] is FREE_TEXT:
        return Outcome.VALID
    try:
        arguments = orjson.loads(call.arguments or "{}")
    except orjson.JSONDecodeError:
        return Outcome.TRUNCATED if is_cut_off else Outcome.MALFORMED
    if not isinstance(arguments, dict):
        return Outcome.MALFORMED
    outcome = ToolSchema(call.name, schemas[call.name] or {}).judge(arguments)
    return Outcome.VALID if outcome is Outcome.UNCHECKED else outcome
