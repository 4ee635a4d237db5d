"""Pythonic calls (Llama 3.2, Llama 4, ToolACE): a Python list of calls is the whole message.

    [get_weather(city="Paris", days=2), get_time()]

Source: the Llama 3.2 and Llama 4 prompt formats of meta-llama/llama-models, and their templates
(vllm-project/vllm keeps copies, examples/tool_chat_template_llama4_pythonic.jinja and
tool_chat_template_llama3.2_pythonic.jinja). There is no marker: a list opens calls only at the
beginning of the content, and only if a name and a parenthesis follow the bracket. Any other bracket
is text. Llama 4 may put the list between the tokens ``<|python_start|>`` and ``<|python_end|>``.

Arguments are Python literals, which become JSON. A literal has a type of its own, so the schema is
not needed. But Llama 4's template quotes every value, and there the schema decides if it allows no
string. Text that is not a literal makes the call malformed and is delivered as written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from dataclasses import dataclass, replace

from eaglegate.text.events import Repair
from eaglegate.text.parsing.arguments import ArgumentsWriter, as_json
from eaglegate.text.parsing.json_calls import JsonCalls
from eaglegate.text.parsing.markers import NAME, Delimiters, Follow
from eaglegate.text.parsing.message import Looking, ParsingContext, ToolFormat, opens
from eaglegate.text.parsing.python_literal import Literal
from eaglegate.text.parsing.reader import Ended, Next, Routine, Until, Want, ignore

_LIST = re.compile(r"\s{0,99}\[\s{0,99}[A-Za-z_][\w.\-]{0,127}\s{0,99}\(")
_LIST_BEGINS = re.compile(r"\s{0,99}(?:\[\s{0,99}(?:[A-Za-z_][\w.\-]{0,127}\s{0,99})?)?\Z")
_BARE = re.compile(r"\s{0,99}[A-Za-z_][\w.\-]{0,127}\s{0,99}\(")
_BARE_BEGINS = re.compile(r"\s{0,99}(?:[A-Za-z_][\w.\-]{0,127}\s{0,99})?\Z")
_JSON = re.compile(r"\s{0,99}(?:\[\s{0,99})?\{")
_JSON_BEGINS = re.compile(r"\s{0,99}(?:\[\s{0,99})?\Z")
_EMPTY = re.compile(r"\s{0,99}\[\s{0,99}\]")
_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True, slots=True)
class Pythonic:
    """Tool format. ``quoted``: the template quotes every value, so the schema decides its type."""

    quoted: bool = False
    start: str = "<|python_start|>"
    end: str = "<|python_end|>"
    bracketed: bool = True
    """True if calls are in a list, else each is on a line between the markers."""
    anywhere: bool = False
    """True if a list that begins with a call of an offered tool may follow other content."""
    marked: bool = False
    """True if calls between the markers may also be written without brackets or as JSON."""

    def format(self) -> ToolFormat:
        openers = (self.start, "[") if self.anywhere else (self.start,)
        lead_chars = () if self.anywhere or not self.bracketed else ("[",)
        head = _fenced_head if self.bracketed else None
        return ToolFormat(openers, self._calls, (self.end,), leads=lead_chars, head=head)

    def _calls(self, opener: str, context: ParsingContext) -> Routine:
        delimiters = context.lexicon.delimiters(self.start, self.end)
        if not self.bracketed:
            call: Follow = {NAME: {"(": None}}
            follow = {**call, "[": call}
            if not context.lexicon.is_text(opener) or (yield from opens(opener, follow, context)):
                yield from self._list(delimiters, context)
            return
        fence = context.out.content.fence
        if opener == "[" and (fence.is_open or fence.is_inline):
            context.out.content.unmark(opener)
            return
        if opener == "[" and self.anywhere:
            names = context.calls.names if context.out.content.written else ()
            head: Follow = {name: {"(": None} for name in names or (NAME,)}
            if (yield from opens(opener, head, context)):
                yield from self._list(delimiters, context, opener)
            return
        if (yield Looking(_LIST, _LIST_BEGINS)) != Looking.YES:
            yield from self._read_others(delimiters, context)
            return
        yield Next(delimiters)
        yield from self._list(delimiters, context)
        if opener == self.start:
            yield Next(context.lexicon.delimiters(self.end), keep=None)

    def _read_others(self, delimiters: Delimiters, context: ParsingContext) -> Routine:
        """Read text that is not a list of calls. It is content, unless markers announced calls."""
        write = context.out.content.write
        if not self.marked:
            yield Next(delimiters, write)
        elif (yield Looking(_BARE, _BARE_BEGINS)) == Looking.YES:
            yield from self._list(delimiters, context)
        elif (yield Looking(_JSON, _JSON_BEGINS)) == Looking.YES:
            yield from JsonCalls(context.calls, delimiters, write).read()
        else:
            is_empty = (yield Looking(_EMPTY, _JSON_BEGINS)) == Looking.YES
            yield Until(delimiters, ignore if is_empty else write)

    def _list(self, delimiters: Delimiters, context: ParsingContext, opener: str = "") -> Routine:
        """Read a list from after its bracket. ``opener`` is the bracket if it may still be text."""
        names = context.lexicon.delimiters("(", "]", self.start, self.end)
        marker = ""
        while not (marker == "]" and self.bracketed) and marker not in delimiters.markers:
            parts: list[str] = []
            try:
                marker = yield Until(names, parts.append)
            except Ended:
                if opener:
                    context.out.content.unmark(opener + "".join(parts))
                raise
            opener = ""
            name = _skip_commas("".join(parts)).rstrip()
            if not self.bracketed and (marker == "]" or name.startswith("[")):
                name = name.removeprefix("[").lstrip()
            if marker == "(" and _NAME.fullmatch(name):
                while name:
                    marker, name = yield from self._call(name, context, delimiters)
            elif name:
                context.calls.doubt()
                context.out.content.write(name + ("" if marker in delimiters.markers else marker))

    def _call(
        self, name: str, context: ParsingContext, delimiters: Delimiters
    ) -> Generator[Want, str, tuple[str, str]]:
        """Read a call. Return the marker after it, and the next call's name if that replaces it."""
        context.calls.begin(name)
        with ArgumentsWriter(context.calls) as arguments:
            marker, next_name = yield from self._arguments(arguments, context, delimiters)
        context.calls.close()
        return marker, next_name

    def _arguments(
        self, arguments: ArgumentsWriter, context: ParsingContext, delimiters: Delimiters
    ) -> Generator[Want, str, tuple[str, str]]:
        keys = context.lexicon.delimiters("=", "(", ")", self.start, self.end)
        while True:
            parts: list[str] = []
            marker = yield Until(keys, parts.append)
            key = _skip_commas("".join(parts))
            if marker == "(" and context.calls.find(key.rstrip()):
                return marker, key.rstrip()  # the closing parenthesis of this call is missing
            if marker not in ("=", "("):
                if key:
                    arguments.verbatim(key)
                if marker in delimiters.markers and (arguments.is_empty or "," in "".join(parts)):
                    context.calls.spoil()
                return marker, ""
            if marker == "=" and _NAME.fullmatch(key.rstrip()):
                yield from self._value(key.rstrip(), arguments, context, delimiters)
            else:
                arguments.verbatim(key + marker)
                yield Literal(context.calls.write, delimiters.tokens)

    def _value(
        self, key: str, arguments: ArgumentsWriter, context: ParsingContext, delimiters: Delimiters
    ) -> Routine:
        if key in arguments.given:
            context.calls.spoil()
            context.calls.repair(Repair.REPEATED_PARAMETER)
            yield Literal(context.calls.keep_raw, delimiters.tokens, context.calls.names)
            return
        if arguments.wraps(key):
            yield from self._read_wrapped(key, arguments, context, delimiters)
            return
        arguments.key(key)
        allowed = arguments.allowed(key)
        if "string" in allowed or not self.quoted:
            names, keys = context.calls.names, arguments.properties
            literal = Literal(context.calls.write, delimiters.tokens, names, keys)
            yield literal
            if literal.is_doubtful:
                context.calls.spoil()
            return
        parts: list[str] = []
        try:
            yield Literal(parts.append, delimiters.tokens, context.calls.names)
        except Ended:
            context.calls.write("".join(parts))
            raise
        context.calls.write(_unquote("".join(parts), allowed))

    def _read_wrapped(
        self, key: str, arguments: ArgumentsWriter, context: ParsingContext, delimiters: Delimiters
    ) -> Routine:
        """Read all arguments from a dictionary under a key that the tool does not have."""
        parts: list[str] = []
        try:
            yield Literal(parts.append, delimiters.tokens, context.calls.names)
        except Ended:
            arguments.key(key)
            context.calls.write("".join(parts))
            raise
        arguments.unwrap(key, "".join(parts))


def _fenced_head(context: ParsingContext) -> Follow:
    name_end: Follow = {"(": None}
    names = context.calls.names
    return {"[": dict.fromkeys(names, name_end)} if names else {}


def _skip_commas(text: str) -> str:
    """Strip separating commas and white space, and a repeated closing parenthesis."""
    text = text.lstrip()
    while text.startswith((",", ")")):
        text = text[1:].lstrip()
    return text


def _unquote(value: str, types: frozenset[str]) -> str:
    """Convert a quoted value to the type that the schema allows."""
    return as_json(json.loads(value), types) if _STRING.fullmatch(value) else value


PYTHONIC = Pythonic().format()
LFM2 = Pythonic(start="<|tool_call_start|>", end="<|tool_call_end|>", marked=True).format()
"""LiquidAI/LFM2-1.2B: a list between two tokens, which text may follow. A prompt can ask for JSON
calls instead."""
OLMO3 = replace(
    Pythonic(start="<function_calls>", end="</function_calls>", bracketed=False).format(),
    ends_thinking=("<function_calls>",),
)
"""allenai/Olmo-3-7B-Instruct: a call on each line, between two tags."""
LLAMA4 = Pythonic(quoted=True, anywhere=True).format()
