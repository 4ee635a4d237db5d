"""Kimi K2: a section of calls, each ``functions.NAME:INDEX`` and JSON, all markers tokens.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0
    <|tool_call_argument_begin|>{"city": "Beijing"}<|tool_call_end|><|tool_calls_section_end|>

Source: MoonshotAI/Kimi-K2 docs/tool_call_guidance.md ("Manually Parsing Tool Calls") and the chat
templates of Kimi-K2-Instruct and Kimi-K2-Thinking, which write no white space around the markers.
The header is the model's own call id and is passed on, because the next prompt must repeat it.
"""

from __future__ import annotations

import re

from server.parsing.json_blocks import Sections
from server.parsing.output import Calls

_HEADER = re.compile(r"(?:functions\.)?(?P<name>.+?)(?P<index>:\d+)?\Z", re.DOTALL)

_INDEX = re.compile(r"[:._]?[0-9]+\Z")


def _begin(calls: Calls, header: str) -> bool:
    found = _HEADER.match(header)
    if found is None:
        return False
    name = found["name"]
    if calls.names and not calls.find(name):
        name = _find_offered(header, calls) or name
    own = found["index"] and header not in calls.ids
    calls.begin(name, header if own else f"functions.{name}:{calls.num}")
    return True


def _find_offered(header: str, calls: Calls) -> str:
    """The tool that a drifted header means: clients write ids without dots and colons."""
    bare = header.removeprefix("functions").lstrip("._")
    for name in (bare, _INDEX.sub("", bare), _INDEX.sub("", header)):
        if calls.find(name):
            return name
    return ""


FORMAT = Sections(
    section="<|tool_calls_section_begin|>",
    section_end="<|tool_calls_section_end|>",
    call="<|tool_call_begin|>",
    separator="<|tool_call_argument_begin|>",
    call_end="<|tool_call_end|>",
    begin=_begin,
).format()
