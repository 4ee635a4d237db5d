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


def _begin(calls: Calls, header: str) -> bool:
    found = _HEADER.match(header)
    if found is None:
        return False
    own = found["index"] and header not in calls.ids
    calls.begin(found["name"], header if own else f"functions.{found['name']}:{calls.num}")
    return True


FORMAT = Sections(
    section="<|tool_calls_section_begin|>",
    section_end="<|tool_calls_section_end|>",
    call="<|tool_call_begin|>",
    separator="<|tool_call_argument_begin|>",
    call_end="<|tool_call_end|>",
    begin=_begin,
).format()
