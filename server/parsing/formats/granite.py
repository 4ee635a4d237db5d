"""Granite 3.0 to 3.3: a marker and a JSON list of calls.

    <|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]      3.0, 3.2, 3.3
    <tool_call>[{"name": "get_weather", "arguments": {"city": "Paris"}}]        3.1

Source: the chat templates of ibm-granite/granite-3.0-8b-instruct and later ones, which say
"<|tool_call|> followed by a JSON list of tools used". ``<|tool_call|>`` is a special token,
``<tool_call>`` plain text, and then opens calls only if a list or an object follows it. The end of
the list ends the calls; what follows is content.
"""

from __future__ import annotations

from server.parsing.json_calls import JsonCalls
from server.parsing.lookahead import opens
from server.parsing.markers import Follow
from server.parsing.message import Context, ToolFormat
from server.parsing.reader import Grammar

TOKEN, TEXT = "<|tool_call|>", "<tool_call>"


def _calls(opener: str, context: Context) -> Grammar:
    stops = context.lexicon.stops(TOKEN, TEXT)
    content = context.out.content.write
    again: Follow = {"[": {'{"': None}, '{"': None}
    quotes = context.quotes({TOKEN: again, TEXT: again})
    text = context.lexicon.is_text(opener)
    if not text or (yield from opens(opener, {"[": None, "{": None}, context)):
        yield from JsonCalls(context.calls, stops, content, closed=False, quotes=quotes).read()


FORMAT = ToolFormat((TOKEN, TEXT), _calls)
