"""Llama 3.1, 3.2, 3.3 and 4 with JSON calls: the whole message is the call.

    {"name": "get_weather", "parameters": {"city": "Paris"}}

Source: meta-llama/llama-models prompt formats and the chat template of Llama-3.1 (vllm-project/vllm
keeps a copy, examples/tool_chat_template_llama3.1_json.jinja). Several calls are separated by
``; ``. A ``<|python_tag|>`` token may stand before them. There is no other marker, so that an
object is a call only where it opens the content (or follows a call), and only if it has a name and
parameters (or arguments) and no key that a call has not; another object is content, let go as soon
as its first other key shows it. Code behind ``<|python_tag|>`` is content too. Llama 4's templates
write content before a call: there an object with the name of an offered tool is a call anywhere.
"""

from __future__ import annotations

from server.parsing.json_calls import JsonCalls
from server.parsing.lookahead import opens
from server.parsing.markers import NAME, Follow
from server.parsing.message import Context, ToolFormat
from server.parsing.reader import DONE, Grammar

PYTHON = "<|python_tag|>"


def _calls(opener: str, context: Context) -> Grammar:
    stops = context.lexicon.stops(PYTHON)
    content = context.out.content.write
    quotes = context.quotes({PYTHON: {'{"': None}})
    certain = opener == PYTHON
    yield from JsonCalls(context.calls, stops, content, certain, False, quotes=quotes).read()


def _calls_anywhere(opener: str, context: Context) -> Grammar:
    """Llama 4: an object behind other content, where it begins as a call of an offered tool."""
    if opener == PYTHON:
        yield from _calls(opener, context)
        return
    content = context.out.content
    if not content.written:
        content.unmark("")
    elif content.fence.is_open:
        content.unmark(opener)
        return
    elif not (yield from opens(opener, _head(context), context)):
        return
    quotes = context.quotes({PYTHON: {'{"': None}})
    stops = context.lexicon.stops(PYTHON)
    form = JsonCalls(context.calls, stops, content.write, False, False, quotes=quotes)
    if (yield from form.object()) == DONE:
        yield from form.read()


def _head(context: Context) -> Follow:
    arguments: Follow = {'"parameters"': {":": None}, '"arguments"': {":": None}}
    named: Follow = {'"': {",": arguments}}
    names = context.calls.names or (NAME,)
    quoted: Follow = dict.fromkeys(names, named)
    return {'"name"': {":": {'"': quoted}}}


def _fenced_head(context: Context) -> Follow:
    return {"{": _head(context)} if context.calls.names else {}


FORMAT = ToolFormat((PYTHON,), _calls, leads=("{",), head=_fenced_head)
LLAMA4 = ToolFormat((PYTHON, "{"), _calls_anywhere, head=_fenced_head)
