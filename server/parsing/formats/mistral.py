"""Mistral: ``[TOOL_CALLS]`` and a JSON list, or since tokenizer v11 a name and ``[ARGS]``.

    [TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]      before v11
    [TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]...               from v11
    [TOOL_CALLS]get_weather[CALL_ID]123456789[ARGS]{"city": "Paris"}            v11 with an id

Source: mistral-common (mistral_common/tokens/tokenizers/instruct.py: V2, V3, V7, V11, V13), where
all three markers are control tokens. What follows ``[TOOL_CALLS]`` distinguishes the variants,
so one grammar reads all. A v11 call without ``[ARGS]`` has its arguments from the first brace on.
Ids have nine letters or digits, since the templates refuse others in the next prompt.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping

from server.parsing.json_calls import JsonCalls
from server.parsing.markers import NAME, Follow, Quotes
from server.parsing.message import CallFrame, Context, ToolFormat, last_name
from server.parsing.reader import Grammar, JsonValue, Next, Subgrammar, Until

CALL, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_SIGNS = string.ascii_letters + string.digits


def _calls(opener: str, context: Context) -> Grammar:
    content = context.out.content.write
    quotes = context.remember_quotes(CALL, lambda: _find_ends(context))
    marker = opener
    while marker == CALL:
        marker = yield Next(context.lexicon.stops(CALL, ARGUMENTS, CALL_ID), keep=None)
        if marker in ("[", "{"):
            stops = context.lexicon.stops(CALL)
            marker = yield from JsonCalls(
                context.calls, stops, content, closed=False, quotes=quotes
            ).read()
        elif marker != CALL:
            marker = yield from _named(marker, quotes, context)


def _find_ends(context: Context) -> Mapping[str, Follow]:
    """A string is given up for the next call only where a whole beginning of one follows."""
    named: Follow = {'{"': None} | context.follow(None, ARGUMENTS, CALL_ID)
    return {CALL: {"[": {'{"': None}, NAME: named}}


def _named(first: str, quotes: Quotes, context: Context) -> Subgrammar:
    """A name, perhaps an id, and arguments: DONE where those end."""
    name: list[str] = []
    own: list[str] = []
    ends = context.lexicon.stops(ARGUMENTS, CALL_ID, CALL, "{")
    marker = first
    if first not in (ARGUMENTS, CALL_ID):
        marker = yield from last_name(ends, name, context.calls.begin)
    if marker == CALL_ID:
        marker = yield Until(ends, own.append)
    if not "".join(name).strip():
        return marker
    context.calls.begin("".join(name).strip(), "".join(own).strip() or None)
    marker = yield from _arguments(marker, quotes, context)
    context.calls.close()
    return marker


def _arguments(marker: str, quotes: Quotes, context: Context) -> Subgrammar:
    stops = context.lexicon.stops(CALL)
    value = JsonValue(stops, context.calls.write_json, quotes=quotes)
    if marker == "{":
        value.plain(marker)
        return (yield value)
    if marker == ARGUMENTS:
        marker = yield Next(stops, keep=None)
    if marker == "{":
        return (yield value)
    return marker if marker == CALL else (yield Until(stops, context.calls.write_json))


def _new_id() -> str:
    drawn, found = secrets.randbelow(len(_SIGNS) ** 9), ""
    for _ in range(9):
        drawn, at = divmod(drawn, len(_SIGNS))
        found += _SIGNS[at]
    return found


FORMAT = ToolFormat((CALL,), _calls, (ARGUMENTS, CALL_ID), framing="", new_id=_new_id)

FRAMES = {
    "mistral": CallFrame("[TOOL_CALLS]NAME[ARGS]", ""),
}
