"""MiniMax M3: XML calls with a token before every tag, and with nested values.

    ]<]minimax[>[<tool_call>
    ]<]minimax[>[<invoke name="create_order">
    ]<]minimax[>[<user>Ann]<]minimax[>[</user>
    ]<]minimax[>[<items>]<]minimax[>[<item>book]<]minimax[>[</item>]<]minimax[>[</items>
    ]<]minimax[>[</invoke>
    ]<]minimax[>[</tool_call>

Source: the parser that vllm-project/vllm has under this name. A parameter is an element with the
parameter's name. The elements in it are members of an object, or of a list if the schema says so or
if all are called ``item``. A value that can only be a string is text, whatever it contains.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from json.encoder import encode_basestring
from typing import Any

from eaglegate.text.parsing.arguments import ArgumentsWriter, as_json
from eaglegate.text.parsing.json_blocks import SPACE
from eaglegate.text.parsing.markers import FRAGMENT, NAME, Follow, match_beginnings
from eaglegate.text.parsing.message import Ahead, ParsingContext, Skipping, ToolFormat, opens
from eaglegate.text.parsing.output import Framed
from eaglegate.text.parsing.reader import DONE, Ended, Routine, Subroutine, TextSink, Until, ignore
from eaglegate.text.parsing.schemas import STRING, resolve
from eaglegate.text.parsing.tagged import CallValue, Closing
from eaglegate.text.parsing.tools import ToolSchema

TOKEN = "]<]minimax[>["
_INVOKE = re.compile(r"""<invoke\s+name=["']?([^"'\s]+)["']?\s*\Z""")
_PARAMETER = re.compile(r"""parameter\s+name=["']?([^"'\s]+)["']?\s*""")
"""Opening of a parameter in the form of MiniMax M2."""
_LONGEST_NAME = 128
_TAGS = {
    token: re.compile(rf"{re.escape(token)}<(/?)([^<>\s]{{1,{_LONGEST_NAME}}})>")
    for token in (TOKEN, FRAGMENT)
}
"""Patterns of tags by the token's form in the text. With other tokens the characters are text."""
_HEAD: Follow = {'"': {NAME: None}, "'": {NAME: None}, NAME: None}
"""Text after the beginning of a call."""
_OPENED: Follow = {
    NAME: {">": None},
    **{quote: {NAME: {quote: {">": None}}} for quote in ("'", '"')},
}
"""Rest of an opening tag in a value."""
_MAX_DEPTH = 64
_MAX_WORDS = 3
"""Most words between two parameters, besides the first. More words are part of the value."""
ANY: dict[str, Any] = {}
"""Schema that allows everything."""


@dataclass(frozen=True, slots=True)
class Elements:
    """Tool format; ``token`` is the form of the token in the text."""

    token: str = TOKEN

    @property
    def _end(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """Patterns for the end of a section that nothing opened, and for its beginnings."""
        tag = f"{self.token}</tool_call>"
        beginnings = match_beginnings(tag)
        return re.compile(rf"\s{{0,99}}+{re.escape(tag)}"), re.compile(
            rf"\s{{0,99}}+(?:\Z|{beginnings})"
        )

    def format(self) -> ToolFormat:
        openers = (f"{self.token}<tool_call>", f"{self.token}<invoke name=")
        return ToolFormat(openers, self._read, (self.token,), closer=f"{self.token}</tool_call>")

    def _read(self, opener: str, context: ParsingContext) -> Routine:
        """Read calls up to the end of their section, or one call without a section."""
        has_section = opener.endswith("<tool_call>")
        next_words: Follow = {self.token: None} if has_section else _HEAD
        if context.lexicon.is_text(opener) and not (yield from opens(opener, next_words, context)):
            return
        stray = Framed(context.out.content.write, lead=SPACE, trail=SPACE)

        def write(text: str) -> None:
            if text.lstrip().startswith("<"):  # a tag without its token
                context.calls.doubt()
            stray.write(text)

        tag = "" if has_section else "<invoke name=" + (yield from self._rest(context))
        while tag != "</tool_call":
            if match := _INVOKE.fullmatch(tag):
                tag = yield from self._call(match[1], context)
            elif has_section:
                if tag and tag != DONE:  # of a parameter, or broken
                    context.calls.doubt()
                tag = yield from self._tag(context, write)
            else:
                yield Skipping(*self._end)
                return

    def _tag(self, context: ParsingContext, sink: TextSink = ignore) -> Subroutine:
        """Read the next tag, without its closing angle bracket. A token without a tag is dropped.

        Where the model omits a parameter's opening tag, it still writes the token.
        """
        delimiters, verdict = context.lexicon.delimiters, ""
        while verdict != Ahead.YES:
            yield Until(delimiters(self.token), sink, markup=True)
            verdict = yield Ahead({"<": None}, delimiters())
        return (yield from self._rest(context))

    def _rest(self, context: ParsingContext) -> Subroutine:
        parts: list[str] = []
        yield Until(context.lexicon.delimiters(">"), parts.append)
        return "".join(parts)

    def _call(self, name: str, context: ParsingContext) -> Subroutine:
        """Read one call. Return the tag that ended it, or DONE for its own closing tag."""
        context.calls.begin(name)
        with ArgumentsWriter(context.calls) as arguments:
            loose_parts: list[str] = []
            tag = yield from self._tag(context, loose_parts.append)
            while tag not in ("</invoke", "</tool_call") and not _INVOKE.fullmatch(tag):
                if tag.startswith("</"):
                    _take_unopened(tag.removeprefix("</"), "".join(loose_parts), arguments, context)
                else:
                    yield from self._parameter(tag.removeprefix("<"), arguments, context)
                loose_parts.clear()
                tag = yield from self._tag(context, loose_parts.append)
        context.calls.close(is_fragile=tag != "</invoke")
        return DONE if tag == "</invoke" else tag

    def _swallows_call(self, text: str, opening: str, end: str) -> bool:
        """Return True if a value contains its own closing tag and then the end of its call."""
        token = re.escape(self.token)
        match = re.search(rf"{re.escape(end)}|{token}(?!<)", text)
        if match is None or opening in text[: match.start()]:
            return False
        gap, call_end, _ = text[match.end() :].partition(f"{self.token}</invoke>")
        return bool(call_end) and f"{self.token}<invoke " not in gap

    def _find_next(self, key: str, arguments: ArgumentsWriter) -> Follow:
        """Return the text that must follow a value: a tag; after a few words, a plausible tag."""
        names = arguments.properties.keys() - arguments.given - {key}
        tags: Follow = {"/invoke>": None, **{f"{name}>": None for name in names}}
        words: Follow = {f"{self.token}<": tags}
        for _ in range(_MAX_WORDS):
            words = {f"{self.token}<": tags, NAME: words}
        return {f"{self.token}<": {NAME: None}, NAME: words}

    def _closing(self, end: str, next_words: Follow) -> Closing:
        """Return the text that ends a value with the closing tag ``end``."""
        call, call_end = f"{self.token}<invoke name=", f"{self.token}</invoke>"
        section_end = f"{self.token}</tool_call>"
        return Closing(
            {end: next_words, call: _OPENED, call_end: dict.fromkeys((call, section_end))},
            call=call,
            call_ends=(call_end,),
            pairs={end: {call_end: None}},
            nexts={end: next_words},
            frame=(call_end, section_end, f"{self.token}<tool_call>"),
        )

    def _parameter(self, key: str, arguments: ArgumentsWriter, context: ParsingContext) -> Routine:
        """Read a value up to its own closing tag. Nested elements may have the same name."""
        end, opening = f"{self.token}</{key}>", f"{self.token}<{key}>"
        if match := _PARAMETER.fullmatch(key):
            key, end = match[1], f"{self.token}</parameter>"
        closing = self._closing(end, self._find_next(key, arguments))
        if arguments.allowed(key) <= STRING or key in arguments.given:
            arguments.begin(key)
            yield CallValue(context.lexicon, closing, arguments.write, context.calls)
            text = arguments.text
            if text.endswith(self.token) or self._swallows_call(text, opening, end):
                context.calls.spoil()
            arguments.end()
            return
        words = {**closing.words, opening: None}
        closing = replace(closing, words=words, nests=(opening,), unnests=(end,))
        tool = context.calls.tool or ToolSchema("", {})
        value = _Value(self.token, tool.properties.get(key, [ANY])[0], tool)
        try:
            yield CallValue(context.lexicon, closing, value.write, context.calls)
        except Ended:
            arguments.key(key)
            context.calls.write(value.written.strip())
            raise
        arguments.key(key)
        context.calls.write(json_text := value.end())
        if FRAGMENT in json_text or value.is_broken:
            context.calls.spoil()


def _take_unopened(
    key: str, text: str, arguments: ArgumentsWriter, context: ParsingContext
) -> None:
    """Take the text before an unopened closing tag as the parameter with the tag's name."""
    if not text.strip():
        return
    if key in arguments.given or key not in arguments.properties:
        context.calls.spoil()
        return
    if f"<{key}>" in text:  # the opening tag lacks its token
        context.calls.spoil()
    arguments.begin(key)
    arguments.write(text.strip())
    arguments.end()


@dataclass(slots=True)
class _Element:
    """Open element. ``schema`` is None while the kind of the enclosing element is unknown."""

    name: str
    schema: Any
    text: list[str] = field(default_factory=list)
    children: list[tuple[str, _Element | str]] = field(default_factory=list)
    """Children with their names. Closed children with a known schema are JSON."""


class _Value:
    """Value whose elements become JSON one by one, each when it is closed.

    An unopened closing tag is text.
    """

    def __init__(self, token: str, schema: Any, tool: ToolSchema) -> None:
        self._tags = _TAGS[token]
        self._longest_tag = len(token) + _LONGEST_NAME + 3
        self._tool = tool
        self._stack = [_Element("", self._resolve(schema))]
        self._parts: list[str] = []
        self._left = ""
        """Text that may end with the beginning of a tag."""
        self.is_broken = False
        """True if there is text between elements, or an element is not closed."""

    @property
    def written(self) -> str:
        return "".join(self._parts)

    def write(self, text: str) -> None:
        self._parts.append(text)
        text, start = self._left + text, 0
        for tag in self._tags.finditer(text):
            top = self._stack[-1]
            if tag[1] and tag[2] == top.name:
                top.text.append(text[start : tag.start()])
                self._close()
            elif not tag[1] and len(self._stack) < _MAX_DEPTH:
                top.text.append(text[start : tag.start()])
                self._stack.append(_Element(tag[2], self._find_schema(top.schema, tag[2])))
            else:
                continue
            start = tag.end()
        end = max(start, len(text) - self._longest_tag)
        self._stack[-1].text.append(text[start:end])
        self._left = text[end:]

    def end(self) -> str:
        """Return the value as JSON."""
        self._stack[-1].text.append(self._left)
        self.is_broken |= len(self._stack) > 1
        while len(self._stack) > 1:
            self._close()
        return self._as_json(self._stack[0], self._stack[0].schema)

    def _close(self) -> None:
        """Close the innermost element."""
        element = self._stack.pop()
        value = element if element.schema is None else self._as_json(element, element.schema)
        self._stack[-1].children.append((element.name, value))

    def _resolve(self, schema: Any) -> Any:
        if isinstance(schema, dict) and "$ref" in schema:
            schema = resolve(schema["$ref"], self._tool.parameters)
        return ANY if schema is None else schema

    def _find_schema(self, parent: Any, name: str) -> Any:
        """Return the schema of an element inside ``parent``; None if it is not known yet."""
        if parent is None:
            return None
        types = self._tool.find_kinds(parent)
        if "array" not in types:
            return self._member(parent, name)
        item = self._item(parent)
        if "object" not in types:
            return item
        member = self._member(parent, name)
        return item if item is member else None

    def _item(self, schema: Any) -> Any:
        return self._resolve(schema.get("items") if isinstance(schema, dict) else None)

    def _member(self, schema: Any, name: str) -> Any:
        members, default = self._tool.find_members(schema)
        return self._resolve(members.get(name, [default])[0])

    def _as_json(self, element: _Element, schema: Any) -> str:
        types = self._tool.find_kinds(schema)
        text = "".join(element.text)
        if not element.children:
            is_empty = not text.strip() and "string" not in types
            if is_empty and types & {"array", "object"}:
                return "[]" if "array" in types else "{}"
            return as_json(text, types)
        self.is_broken |= bool(text.strip())
        is_list = all(name == "item" for name, _ in element.children)
        if "array" in types and (is_list or "object" not in types):
            item = self._item(schema)
            return f"[{', '.join(self._child(child, item) for _, child in element.children)}]"
        return self._as_object(element, schema, text)

    def _as_object(self, element: _Element, schema: Any, text: str) -> str:
        """Write members by name. Members with the same name become a list."""
        members: dict[str, list[str]] = {}
        for name, child in element.children:
            json_text = self._child(child, self._member(schema, name))
            members.setdefault(name, []).append(json_text)
        if stray := text.strip():
            members.setdefault("$text", []).append(encode_basestring(stray))
        pairs = []
        for name, values in members.items():
            value = values[0] if len(values) == 1 else f"[{', '.join(values)}]"
            pairs.append(f"{encode_basestring(name)}: {value}")
        return f"{{{', '.join(pairs)}}}"

    def _child(self, child: _Element | str, schema: Any) -> str:
        return child if isinstance(child, str) else self._as_json(child, schema)


FORMAT = replace(Elements().format(), fragment=TOKEN, fragmented=Elements(FRAGMENT).format())
