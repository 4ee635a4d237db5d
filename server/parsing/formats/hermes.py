"""Hermes and Qwen 2.5 / Qwen 3: JSON between ``<tool_call>`` and ``</tool_call>``.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

Source: the chat templates of NousResearch/Hermes-2-Pro and Qwen/Qwen3, which put a line break
before each ``<tool_call>`` that content or another call precedes, and around the JSON; those are
framing. Qwen has both markers as added tokens. Where a tokenizer has not, the marker is plain
text: it opens a call only if a brace follows it, and closes one only outside a JSON string.
"""

from __future__ import annotations

from server.parsing.json_calls import JsonCalls
from server.parsing.message import Context, ToolFormat
from server.parsing.reader import Grammar
from server.parsing.tagged import opens

CALL, CALL_END = "<tool_call>", "</tool_call>"


def _calls(opener: str, context: Context) -> Grammar:
    stops = context.lexicon.stops(CALL, CALL_END)
    content = context.out.content.write
    again = context.follow({'{"': None}, CALL)
    quotes = context.quotes({CALL_END: again, CALL: {'{"': None}})
    marker = opener
    while marker == CALL:
        if context.lexicon.is_text(CALL) and not (yield from opens(CALL, {"{": None}, context)):
            return
        marker = yield from JsonCalls(context.calls, stops, content, quotes=quotes).read()


FORMAT = ToolFormat((CALL,), _calls, (CALL_END,), closer=CALL_END)
