"""Llama 3.1, 3.2, 3.3 and 4 with JSON calls: the whole message is the call.

    {"name": "get_weather", "parameters": {"city": "Paris"}}

Source: meta-llama/llama-models prompt formats and the chat template of Llama-3.1 (vllm-project/vllm
keeps a copy, examples/tool_chat_template_llama3.1_json.jinja). Several calls are separated by
``; ``. A ``<|python_tag|>`` token may stand before them. There is no other marker, so that an
object is a call only where it opens the content (or follows a call), and only if it has a name and
parameters (or arguments) and no key that a call has not; another object is content, let go as soon
as its first other key shows it. Code behind ``<|python_tag|>`` is content too.
"""

from __future__ import annotations

from server.parsing.json_calls import JsonCalls
from server.parsing.message import Context, ToolFormat
from server.parsing.reader import Grammar

PYTHON = "<|python_tag|>"


def _calls(opener: str, context: Context) -> Grammar:
    stops = context.lexicon.stops(PYTHON)
    content = context.out.content.write
    quotes = context.quotes({PYTHON: {'{"': None}})
    certain = opener == PYTHON
    yield from JsonCalls(context.calls, stops, content, certain, False, quotes=quotes).read()


FORMAT = ToolFormat((PYTHON,), _calls, leads=("{",))
