"""MiniMax M3: XML calls whose every tag stands behind a token, and whose values nest.

    ]<]minimax[>[<tool_call>
    ]<]minimax[>[<invoke name="create_order">
    ]<]minimax[>[<user>Ann]<]minimax[>[</user>
    ]<]minimax[>[<items>]<]minimax[>[<item>book]<]minimax[>[</item>]<]minimax[>[</items>
    ]<]minimax[>[</invoke>
    ]<]minimax[>[</tool_call>

Source: the parser that vllm-project/vllm has under this name. A parameter is an element of its
name. The elements in it are members of an object, or of a list where the schema says so or all are
called ``item``. A value that can only be a string is text, whatever it contains.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from json.encoder import encode_basestring
from typing import Any

from server.parsing.arguments import ArgumentsWriter, as_json
from server.parsing.lookahead import opens
from server.parsing.markers import FRAGMENT, NAME, Follow
from server.parsing.message import Context, ToolFormat
from server.parsing.output import Framed
from server.parsing.reader import DONE, Ended, Grammar, Sink, Subgrammar, Until, ignore
from server.parsing.schemas import STRING, resolve
from server.parsing.sections import SPACE
from server.parsing.tagged import Closing, Tagged
from server.parsing.tools import ToolSchema

TOKEN = "]<]minimax[>["
_INVOKE = re.compile(r"""<invoke\s+name=["']?([^"'\s]+)["']?\s*\Z""")
_TAGS = {
    token: re.compile(rf"{re.escape(token)}<(/?)([^<>\s]{{1,128}})>") for token in (TOKEN, FRAGMENT)
}
"""By how the token stands in the text: the same characters in other tokens are text."""
_MAX_DEPTH = 64
ANY: dict[str, Any] = {}
"""The schema that allows everything."""


@dataclass(frozen=True, slots=True)
class Elements:
    """``token`` is how the token stands in the text."""

    token: str = TOKEN

    def format(self) -> ToolFormat:
        openers = (f"{self.token}<tool_call>", f"{self.token}<invoke name=")
        return ToolFormat(openers, self._read, (self.token,), closer=f"{self.token}</tool_call>")

    def _read(self, opener: str, context: Context) -> Grammar:
        """Calls up to the end of the section, or of the call that has none."""
        head: Follow = {'"': {NAME: None}, "'": {NAME: None}, NAME: None}
        wrapped = opener.endswith("<tool_call>")
        begins: Follow = {self.token: None} if wrapped else head
        if context.lexicon.is_text(opener) and not (yield from opens(opener, begins, context)):
            return
        stray = Framed(context.out.content.write, lead=SPACE, trail=SPACE)
        tag = "" if wrapped else "<invoke name=" + (yield from self._rest(context))
        while tag != "</tool_call":
            if found := _INVOKE.fullmatch(tag):
                tag = yield from self._call(found[1], context)
            elif wrapped:
                tag = yield from self._tag(context, stray.write)
            else:
                return

    def _tag(self, context: Context, sink: Sink = ignore) -> Subgrammar:
        """The next tag, without its closing angle."""
        yield Until(context.lexicon.stops(self.token), sink, markup=True)
        return (yield from self._rest(context))

    def _rest(self, context: Context) -> Subgrammar:
        parts: list[str] = []
        yield Until(context.lexicon.stops(">"), parts.append)
        return "".join(parts)

    def _call(self, name: str, context: Context) -> Subgrammar:
        """One call: the tag that ended it, or nothing where that was its own."""
        context.calls.begin(name)
        arguments = ArgumentsWriter(context.calls)
        try:
            tag = yield from self._tag(context)
            while tag not in ("</invoke", "</tool_call") and not _INVOKE.fullmatch(tag):
                if not tag.startswith("</"):
                    yield from self._parameter(tag.removeprefix("<"), arguments, context)
                tag = yield from self._tag(context)
        except Ended as ended:
            arguments.truncate(ended.by_model)
            raise
        arguments.close()
        context.calls.close()
        return DONE if tag == "</invoke" else tag

    def _parameter(self, key: str, arguments: ArgumentsWriter, context: Context) -> Grammar:
        """A value up to its own closing tag. Where elements nest, one of the same name may."""
        end, opening = f"{self.token}</{key}>", f"{self.token}<{key}>"
        closing = Closing({end: {f"{self.token}<": None}})
        if arguments.allowed(key) <= STRING or key in arguments.given:
            arguments.begin(key)
            yield Tagged(context.lexicon, closing, arguments.write)
            arguments.end()
            return
        closing = replace(closing, words={**closing.words, opening: None}, nests=(opening,))
        parts: list[str] = []
        try:
            yield Tagged(context.lexicon, replace(closing, forced=(end,)), parts.append)
        except Ended:
            arguments.key(key)
            context.calls.write("".join(parts).strip())
            raise
        arguments.key(key)
        tags = _TAGS[self.token]
        context.calls.write(_convert("".join(parts), key, tags, context))


@dataclass(slots=True)
class _Element:
    name: str = ""
    text: list[str] = field(default_factory=list)
    children: list[_Element] = field(default_factory=list)


def _convert(text: str, key: str, tags: re.Pattern[str], context: Context) -> str:
    """The JSON of a parameter's text."""
    tool = context.calls.tool or ToolSchema("", {})
    return _write(_parse(text, tags), tool.properties.get(key, [ANY])[0], tool)


def _parse(text: str, tags: re.Pattern[str]) -> _Element:
    """The elements in a text. A closing tag that closes nothing is text."""
    stack, start = [_Element()], 0
    for tag in tags.finditer(text):
        if tag[1] and tag[2] == stack[-1].name:
            stack[-1].text.append(text[start : tag.start()])
            stack.pop()
        elif not tag[1] and len(stack) < _MAX_DEPTH:
            stack[-1].text.append(text[start : tag.start()])
            stack[-1].children.append(_Element(tag[2]))
            stack.append(stack[-1].children[-1])
        else:
            continue
        start = tag.end()
    stack[-1].text.append(text[start:])
    return stack[0]


def _write(element: _Element, schema: Any, tool: ToolSchema) -> str:
    """The JSON of an element, typed by its schema."""
    if isinstance(schema, dict) and "$ref" in schema:
        schema = resolve(schema["$ref"], tool.parameters)
    allowed = tool.find_kinds(ANY if schema is None else schema)
    text = "".join(element.text)
    if not element.children:
        empty = not text.strip() and "string" not in allowed
        if empty and allowed & {"array", "object"}:
            return "[]" if "array" in allowed else "{}"
        return as_json(text, allowed)
    listed = all(child.name == "item" for child in element.children)
    if "array" in allowed and (listed or "object" not in allowed):
        items = schema.get("items") if isinstance(schema, dict) else None
        return f"[{', '.join(_write(child, items, tool) for child in element.children)}]"
    return _write_object(element, schema, tool)


def _write_object(element: _Element, schema: Any, tool: ToolSchema) -> str:
    """Members by name; those that share one become a list."""
    members: dict[str, list[str]] = {}
    known, others = tool.find_members(schema)
    for child in element.children:
        written = _write(child, known.get(child.name, [others])[0], tool)
        members.setdefault(child.name, []).append(written)
    if stray := "".join(element.text).strip():
        members.setdefault("$text", []).append(encode_basestring(stray))
    pairs = []
    for name, values in members.items():
        value = values[0] if len(values) == 1 else f"[{', '.join(values)}]"
        pairs.append(f"{encode_basestring(name)}: {value}")
    return f"{{{', '.join(pairs)}}}"


FORMAT = replace(Elements().format(), fragment=TOKEN, fragmented=Elements(FRAGMENT).format())
