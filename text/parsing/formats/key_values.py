"""Keys and values in separate tags after a name: GLM, Hunyuan, K2 Horizon, Solar, Laguna.

    <tool_call>get_weather                                                          GLM-4.5, 4.6
    <arg_key>city</arg_key>
    <arg_value>Paris</arg_value>
    </tool_call>
    <tool_calls><tool_call>get_weather<tool_sep><arg_key>...</tool_call></tool_calls>         Hy3
    <ifm|tool_calls><ifm|tool_call>get_weather                                          K2 Horizon
    <ifm|arg_key>city</ifm|arg_key><ifm|arg_type>string</ifm|arg_type><ifm|arg_value>...
    <|tool_call:start|>get_weather                                                     Solar Open 2
    <|tool_arg:start|>city<|tool_arg:value|>Paris<|tool_arg:end|><|tool_call:end|>

Sources: the chat templates of zai-org/GLM-4.5 and GLM-4.6 (ggml-org/llama.cpp keeps a copy of the
latter, models/templates/GLM-4.6.jinja); GLM-4.7 and poolside's Laguna write the same without line
breaks. The parsers that vllm-project/vllm has for hy_v3, hy_v4, k2_horizon and solar_open2 describe
the others. Values are written without framing, strings as plain text and other values as JSON. All
tags are added tokens. If a tokenizer lacks them, a value's end tag counts only before the next key
or the end of the call. Hunyuan's checkpoints add a suffix to their tags (``<tool_call:6124c78e>``).
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import astuple, dataclass, replace
from functools import cache, cached_property

from eaglegate.text.parsing.arguments import ArgumentsWriter
from eaglegate.text.parsing.json_blocks import SPACE
from eaglegate.text.parsing.json_calls import JsonCalls
from eaglegate.text.parsing.markers import NAME, Follow
from eaglegate.text.parsing.message import (
    Ahead,
    CallFrame,
    ParsingContext,
    ToolFormat,
    last_name,
    opens,
)
from eaglegate.text.parsing.output import Calls, Framed
from eaglegate.text.parsing.reader import Next, Routine, Subroutine, Until, Want, ignore
from eaglegate.text.parsing.schemas import ALIASES, TYPES
from eaglegate.text.parsing.tagged import FORCED, CallValue, Closing
from eaglegate.text.parsing.value_text import has_own_tags, holds_next

_NAME = re.compile(r"""[^\s"'{}<>()\[\]]+""")
"""Name of a function. Any other text after the opening tag is content, not a call."""


@dataclass(frozen=True)
class KeyValues:
    """Tags of one format. An empty tag does not exist."""

    call: str = "<tool_call>"
    call_end: str = "</tool_call>"
    key: str = "<arg_key>"
    key_end: str = "</arg_key>"
    value: str = "<arg_value>"
    value_end: str = "</arg_value>"
    section: str = ""
    section_end: str = ""
    separator: str = ""
    """Tag after the name."""
    kind: str = ""
    kind_end: str = ""
    """Tags around the type of a value, after its key."""

    @cached_property
    def outer(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.call, self.call_end, self.section, self.section_end)))

    def format(self) -> ToolFormat:
        openers = tuple(filter(None, (self.section, self.call)))
        inner_markers = tuple(tag for tag in astuple(self) if tag and tag not in openers)
        ends = self.call_end, self.section_end
        parts = tuple(tag for tag in inner_markers if tag not in ends)
        closer = self.section_end or self.call_end
        return ToolFormat(openers, self._read, inner_markers, parts=parts, closer=closer)

    def suffixed(self, suffix: str) -> KeyValues:
        return KeyValues(*(f"{tag[:-1]}{suffix}>" if tag else "" for tag in astuple(self)))

    def _read(self, opener: str, context: ParsingContext) -> Routine:
        """Read one call, or a section of calls. Other text in a section is content."""
        stray = Framed(context.out.content.write, lead=SPACE, trail=SPACE)
        delimiters = context.lexicon.delimiters(*self.outer)
        next_words: Follow = {NAME: None, "{": None} if opener == self.call else {self.call: None}
        if context.lexicon.is_text(opener) and not (yield from opens(opener, next_words, context)):
            return
        marker = opener
        while marker != self.section_end:
            if marker == self.call:
                marker = yield from self._call(context)
            elif opener == self.call:
                return
            else:
                marker = yield Until(delimiters, stray.write, stray=context.stray, markup=True)

    def _call(self, context: ParsingContext) -> Subroutine:
        parts: list[str] = []
        words = filter(None, ("\n", self.key, self.key_end, self.value_end, self.separator))
        delimiters = context.lexicon.delimiters(*words, *self.outer)
        first = yield Next(delimiters, keep=None, markup=True)
        if first == "{":
            return (yield from self._json(context))
        if first in delimiters.markers:
            return (yield from self._pass("", first, context))
        marker = yield from last_name(delimiters, parts, context.calls.begin)
        header = "".join(parts).strip()
        key = ""
        if marker == self.key_end and marker:
            header, key = _split_key(header, context.calls)
        name, brace, inline = header.partition("{")
        if not _NAME.fullmatch(name := name.rstrip()):
            return (yield from self._pass(header, marker, context))
        context.calls.begin(name)
        if marker == self.call and self.key_end and (yield from self._is_key_next(context)):
            marker = self.key
        with ArgumentsWriter(context.calls) as arguments:
            marker = yield from self._arguments(marker, brace + inline, arguments, context, key)
        context.calls.close(is_spoiled=marker == FORCED)
        if marker == FORCED:
            marker = yield Until(context.lexicon.delimiters(*self.outer), ignore)
        return marker

    def _is_key_next(self, context: ParsingContext) -> Generator[Want, str, bool]:
        """Return True if the model repeated the opening token instead of the first key's."""
        lexicon = context.lexicon
        head: Follow = {NAME: context.follow(None, self.key_end)}
        return (yield Ahead(head, lexicon.delimiters(), lexicon)) == Ahead.YES

    def _pass(self, text: str, marker: str, context: ParsingContext) -> Subroutine:
        """Pass text without a name on as content, because it is not a call."""
        context.out.content.write(text)
        if marker in context.tools.parts:
            context.calls.doubt()
        if marker in self.outer:
            return marker
        return (yield Until(context.lexicon.delimiters(*self.outer), ignore))

    def _json(self, context: ParsingContext) -> Subroutine:
        """Read JSON instead of keys and values: K2 Horizon writes it on demand, GLM sometimes."""
        ends = self._follow(context)
        delimiters = context.lexicon.delimiters(*self.outer)
        calls = JsonCalls(
            context.calls, delimiters, context.out.content.write, quotes=context.quotes(ends)
        )
        return (yield from calls.read())

    def _follow(self, context: ParsingContext) -> dict[str, Follow | None]:
        """List the text that must follow the end of a call inside an unclosed value."""
        next_call: Follow = context.follow({"{": None, NAME: None}, self.call)
        section_end: Follow = context.follow({}, self.section_end) if self.section_end else {}
        return {self.call_end: {**next_call, **section_end}}

    def _arguments(
        self,
        marker: str,
        inline: str,
        arguments: ArgumentsWriter,
        context: ParsingContext,
        first: str = "",
    ) -> Subroutine:
        """Read keys and values. ``inline`` precedes the first key, which ``first`` may be."""
        delimiters = context.lexicon.delimiters(self.key, *self.outer)
        if not first and marker not in (self.key, *self.outer):
            marker = yield from arguments.loose(delimiters, self.key, prefix=inline)
        elif not first and marker != self.key:
            arguments.inline(inline)
        while marker not in self.outer:
            if marker != self.key and not first:  # after a value
                marker = yield Until(delimiters, arguments.distrust)
                continue
            key, kind, loose, marker = yield from self._head(context, first)
            first = ""
            if marker == self.value_end and loose.strip():
                arguments.begin(key, _allow(kind, key, arguments))
                arguments.write(loose.removeprefix("\n"))
                arguments.end()
            elif marker == self.value:
                arguments.begin(key, _allow(kind, key, arguments))
                closing = self._closing(context)
                marker = yield CallValue(context.lexicon, closing, arguments.write, context.calls)
                if marker == FORCED:
                    return FORCED
                is_closed = marker == self.value_end
                text = arguments.text
                tags = tuple(filter(None, (self.value, self.key_end + self.value, self.kind_end)))
                is_doubled = text.replace("\n", "").startswith(tags)
                lacks_tag = bool(self.key) and holds_next(text, self.key, self.value_end)
                if (
                    is_doubled
                    or lacks_tag
                    or has_own_tags(text, self.value, self.value_end, is_closed)
                ):
                    context.calls.spoil()
                arguments.end()
            else:
                context.calls.spoil()
        return marker

    def _head(
        self, context: ParsingContext, first: str = ""
    ) -> Generator[Want, str, tuple[str, str, str, str]]:
        """Read a key. Return it, the type or "", text before the next marker, and the marker.

        Models omit or repeat tokens. Of two keys the second counts, and text between a key and the
        end of its value is the value.
        """
        delimiters, keys, kind_parts, loose_parts = (
            context.lexicon.delimiters,
            [first],
            list[str](),
            list[str](),
        )
        tags = tuple(filter(None, (self.key_end, self.value)))
        marker = self.key_end if first else self.key
        while marker == self.key and marker:
            if (name := "".join(keys).strip()) and not _NAME.fullmatch(name):
                context.calls.spoil()
            keys.clear()
            marker = yield Until(delimiters(self.key, *tags, *self.outer), keys.append)
        kinds = tuple(filter(None, (self.kind, self.kind_end)))
        ends = delimiters(*tags, self.value_end, self.key, *kinds, *self.outer)
        while marker in (self.key_end, *kinds) and marker:
            marker = yield Until(
                ends, kind_parts.append if marker == self.kind else loose_parts.append
            )
        return "".join(keys).strip(), "".join(kind_parts), "".join(loose_parts), marker

    def _closing(self, context: ParsingContext) -> Closing:
        key = self, context.sound
        closing: Closing = context.lexicon.remember(key, lambda: self._find_closing(context))
        return closing

    def _find_closing(self, context: ParsingContext) -> Closing:
        """Return the tags that may end a value: its own, the next key's, the end of the call."""
        lexicon = context.lexicon
        markers = filter(None, (self.key, self.call_end, self.separator, self.section_end))
        # Models omit the token before a call's first key.
        head = context.follow(None, *markers)
        if self.key_end:
            value_head = context.follow(None, self.key_end)
            head |= {**value_head, NAME: value_head}
        calls = context.follow({NAME: head}, self.call)
        section_end = context.follow({}, self.section_end) if self.section_end else {}
        ends = context.follow(None, self.call_end)
        # Without a value's tag behind it, a key is quoted.
        key_ends = context.follow(None, *filter(None, (self.value, self.kind)))
        if self.key_end:
            key_ends = context.follow(key_ends, self.key_end)
        key = context.follow({NAME: key_ends}, self.key)
        words = context.follow({**key, **ends, **calls, **section_end}, self.value_end)
        # A grammar wrote the call, so no tag is missing. Otherwise what opens the next value or
        # call ends this one as well, and ends of calls may be quoted.
        if context.sound:
            return Closing(words)
        opening, key_words, call_ends = (
            lexicon.words(tag) for tag in (self.call, self.key, self.call_end)
        )
        return Closing(
            {**words, **key, **context.follow({**calls, **section_end}, self.call_end), **calls},
            key_words,
            call_ends,
            call=opening[0],
            call_ends=call_ends,
            parameter=key_words[0],
            pairs=dict.fromkeys(words, ends),
            nexts=dict.fromkeys(words, key),
            frame=lexicon.words(*filter(None, (self.call_end, self.section, self.section_end))),
        )


def _split_key(header: str, calls: Calls) -> tuple[str, str]:
    """Split a tool's name from a parameter's name, if the tag between them is missing."""
    for name in calls.names:
        tool, key = calls.find(name), header.removeprefix(name)
        if tool is not None and key != header and key.strip() in tool.properties:
            return name, key.strip()
    return header, ""


def _allow(kind: str, key: str, arguments: ArgumentsWriter) -> frozenset[str] | None:
    """Return the type that the model names, if the schema does not have the parameter."""
    type_name = kind.partition("[")[0].strip().lower()
    type_name = ALIASES.get(type_name, type_name)
    return (
        frozenset([type_name]) if type_name in TYPES and key not in arguments.properties else None
    )


_HY_V4 = KeyValues(section="<tool_calls>", section_end="</tool_calls>")
_HY_V3 = replace(_HY_V4, separator="<tool_sep>")


@cache
def _suffix(tags: KeyValues, suffix: str) -> ToolFormat:
    return tags.suffixed(suffix).format()


FORMAT = KeyValues().format()
HY_V3 = replace(_HY_V3.format(), suffixed=lambda suffix: _suffix(_HY_V3, suffix))
HY_V4 = replace(_HY_V4.format(), suffixed=lambda suffix: _suffix(_HY_V4, suffix))
"""Hy4: no separator."""
K2_HORIZON = KeyValues(
    call="<ifm|tool_call>",
    call_end="</ifm|tool_call>",
    key="<ifm|arg_key>",
    key_end="</ifm|arg_key>",
    value="<ifm|arg_value>",
    value_end="</ifm|arg_value>",
    section="<ifm|tool_calls>",
    section_end="</ifm|tool_calls>",
    kind="<ifm|arg_type>",
    kind_end="</ifm|arg_type>",
).format()
IQUEST_Q1 = KeyValues(call="<iquest_tool_call>", call_end="</iquest_tool_call>").format()
"""IQuest-Q1: only the tags of the call are tokens."""
SOLAR_OPEN2 = KeyValues(
    call="<|tool_call:start|>",
    call_end="<|tool_call:end|>",
    key="<|tool_arg:start|>",
    key_end="",
    value="<|tool_arg:value|>",
    value_end="<|tool_arg:end|>",
).format()

_GLM47_FRAME = CallFrame(
    "<tool_call>NAME",
    "</tool_call>",
    style="glm_xml",
    text=("<arg_key>input</arg_key><arg_value>", "</arg_value>"),
)
FRAMES = {
    "glm45": CallFrame(
        "<tool_call>NAME\n",
        "\n</tool_call>",
        style="glm_xml",
        separator="\n",
        text=("<arg_key>input</arg_key>\n<arg_value>", "</arg_value>"),
    ),
    "glm47": _GLM47_FRAME,
    "poolside_v1": _GLM47_FRAME,
}
