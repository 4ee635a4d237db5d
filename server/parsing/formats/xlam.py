"""xLAM: a JSON list of calls, bare, in a code fence or behind a marker.

    [{"name": "get_weather", "arguments": {"city": "Paris"}}]

Source: the chat templates of Salesforce/Llama-xLAM-2-8b-fc-r and xLAM-2-3b-fc-r; older models put
the list into a fence, or behind ``[TOOL_CALLS]`` or ``<tool_call>``. A bare or fenced list is one
of calls only where its first object names a tool that is offered.
"""

from __future__ import annotations

from server.parsing.json_blocks import OBJECT, JsonBlock
from server.parsing.json_calls import JsonCalls
from server.parsing.lookahead import opens
from server.parsing.markers import NAME, Follow
from server.parsing.message import Context, ToolFormat
from server.parsing.reader import DONE, Grammar, Next, Until, ignore

LIST, FENCE = "[", "```json"
_MARKED = {
    "<tool_call>": JsonBlock("<tool_call>", "</tool_call>"),
    "[TOOL_CALLS]": JsonBlock("[TOOL_CALLS]"),
}


def _calls(opener: str, context: Context) -> Grammar:
    if opener in _MARKED:
        yield from _MARKED[opener].calls(opener, context)
        return
    names = context.calls.names or (NAME,)
    quoted: Follow = {name: {'"': {",": None}} for name in names}
    first: Follow = {"{": {'"name"': {":": {'"': quoted}}}}
    spelled: Follow = {**first, "TOOL_CALLS]": {"[": first}}
    head: Follow = {"[": first} if opener == FENCE else spelled
    if not (yield from opens(opener, head, context)):
        return
    stops = context.lexicon.stops("```", *_MARKED)
    quotes = context.quotes(dict.fromkeys(_MARKED, OBJECT))
    write = context.out.content.write
    calls = JsonCalls(context.calls, stops, write, closed=False, quotes=quotes)
    yield Until(context.lexicon.stops("{"), ignore)
    if (yield from calls.object()) == DONE:
        yield from calls.read()
    if opener == FENCE:
        yield Next(stops, keep=None)


FORMAT = ToolFormat((*_MARKED, FENCE, LIST), _calls, ("</tool_call>",))
