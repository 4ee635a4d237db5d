"""GLM-4.5, 4.6 and 4.7: the name, then keys and values in tags of their own.

    <tool_call>get_weather
    <arg_key>city</arg_key>
    <arg_value>Paris</arg_value>
    </tool_call>

Source: the chat templates of zai-org/GLM-4.5 and GLM-4.6 (ggml-org/llama.cpp keeps a copy of the
latter, models/templates/GLM-4.6.jinja); GLM-4.7 writes the same without line breaks. Values are
written without framing, strings as they are and others as JSON. All six tags are added tokens.
Where a tokenizer lacks them, ``</arg_value>`` closes only before the next key or the end.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from server.parsing.arguments import ArgumentsWriter
from server.parsing.markers import NAME
from server.parsing.message import Context, ToolFormat
from server.parsing.reader import Ended, Grammar, Until, Want, ignore
from server.parsing.sections import last_name
from server.parsing.tagged import FORCED, Closing, Tagged

CALL, CALL_END = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"
_OUTER = (CALL, CALL_END)
_NAME = re.compile(r"""[^\s"'{}<>()\[\]]+""")
"""What else stands behind the opening tag is no call, and stays content."""


def _calls(opener: str, context: Context) -> Grammar:
    marker = opener
    while marker == CALL:
        marker = yield from _call(context)


def _call(context: Context) -> Generator[Want, str, str]:
    parts: list[str] = []
    stops = context.lexicon.stops("\n", KEY, *_OUTER)
    marker = yield from last_name(stops, parts, context.calls.begin)
    while marker == "\n" and not "".join(parts).strip():
        marker = yield from last_name(stops, parts, context.calls.begin)
    written = "".join(parts).strip()
    name, brace, inline = written.partition("{")
    if not _NAME.fullmatch(name := name.rstrip()):
        context.out.content.write(written)
        return (yield Until(context.lexicon.stops(*_OUTER), ignore)) if marker == "\n" else marker
    context.calls.begin(name)
    arguments = ArgumentsWriter(context.calls)
    try:
        marker = yield from _arguments(marker, brace + inline, arguments, context)
    except Ended as ended:
        arguments.truncate(ended.by_model)
        raise
    arguments.close()
    context.calls.close(spoiled=marker == FORCED)
    if marker == FORCED:
        marker = yield Until(context.lexicon.stops(*_OUTER), ignore)
    return marker


def _arguments(
    marker: str, inline: str, arguments: ArgumentsWriter, context: Context
) -> Generator[Want, str, str]:
    """Keys and values; ``inline`` is what stands before the first."""
    lexicon = context.lexicon
    if marker not in (KEY, *_OUTER):
        marker = yield from arguments.loose(lexicon.stops(KEY, *_OUTER), KEY, inline)
    elif marker != KEY:
        arguments.inline(inline)
    while marker not in _OUTER:
        if marker != KEY:  # behind a value
            marker = yield Until(lexicon.stops(KEY, *_OUTER), ignore)
            continue
        key: list[str] = []
        marker = yield Until(lexicon.stops(KEY_END, VALUE, *_OUTER), key.append)
        if marker == KEY_END:
            marker = yield Until(lexicon.stops(VALUE, KEY, *_OUTER), ignore)
        if marker == VALUE:
            arguments.begin("".join(key).strip())
            marker = yield Tagged(lexicon, _closing(context), arguments.write)
            if marker == FORCED:
                return FORCED
            arguments.end()
    return marker


def _closing(context: Context) -> Closing:
    """A value's own tag; a next key is as good; a section's tag is, where the output agrees."""
    lexicon = context.lexicon
    calls = context.follow({NAME: context.follow(None, KEY, CALL_END)}, CALL)
    ends = context.follow(None, CALL_END)
    key = context.follow({NAME: context.follow(None, KEY_END)}, KEY)
    words = context.follow({**key, **ends}, VALUE_END)
    if not lexicon.is_token(VALUE_END) or context.sound:
        return Closing(words)
    implied, forced = lexicon.sign(KEY), lexicon.sign(CALL_END)
    words |= {implied: key[implied], forced: calls, lexicon.sign(CALL): calls[lexicon.sign(CALL)]}
    return Closing(words, (implied,), (forced,), (lexicon.sign(CALL),))


_INNER = (CALL_END, KEY, KEY_END, VALUE, VALUE_END)
FORMAT = ToolFormat((CALL,), _calls, _INNER, closer=CALL_END)
