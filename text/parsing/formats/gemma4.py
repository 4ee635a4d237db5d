"""Gemma 4 and FunctionGemma: calls with bare keys, and strings between tokens of their own.

    <|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>
    <start_function_call>call:get_weather{city:<escape>Paris<escape>,days:2}<end_function_call>

Source: the chat template of google/gemma-4 models as vllm-project/vllm documents it
(vllm/parser/gemma4.py), and for google/functiongemma-270m-it vLLM's parser of that name. Objects
and lists nest, and words that are not JSON become strings. A string ends only if a comma, a colon,
a bracket or the next key follows its closing token. If the model omits the first token, ``call:``
and the name of an offered tool still open a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from json.encoder import encode_basestring

from eaglegate.text.events import Repair
from eaglegate.text.parsing.arguments import as_json, repeats_member
from eaglegate.text.parsing.markers import NAME, Delimiters, Follow, Lexicon
from eaglegate.text.parsing.message import Ahead, ParsingContext, ToolFormat, last_name, opens
from eaglegate.text.parsing.output import Calls
from eaglegate.text.parsing.reader import DONE, Ended, Routine, Subroutine, TextSink, Until
from eaglegate.text.parsing.schemas import STRING, TYPES
from eaglegate.text.parsing.tagged import FORCED, Closing, Tagged

_CLOSES = {"{": "}", "[": "]"}
_SCALARS = TYPES - {"object", "array"}
_BRACE: Follow = {"{": None}
_NO_NAME = re.compile(r"[\s,{}\[\]()<>\"']")
_SWALLOWED = re.compile(r"[,{]\s{0,99}[\w.\-]{1,128}\s{0,99}:")
"""Key after a comma or a brace."""
BARE = "call:"
"""Text before a tool's name. Without the token before it, it opens only calls of offered tools."""


@dataclass(frozen=True, slots=True)
class BareKeys:
    """Tokens of one format."""

    call: str
    call_end: str
    quote: str

    def format(self) -> ToolFormat:
        return ToolFormat(
            (self.call, BARE), self._read, (self.call_end, self.quote), "\n", self.call_end
        )

    def _read(self, opener: str, context: ParsingContext) -> Routine:
        if opener == BARE:
            content = context.out.content
            in_word = content.tail[-1:].strip() or content.fence.is_inline
            names = () if in_word else context.calls.names
            if (yield from opens(opener, dict.fromkeys(names, _BRACE), context)):
                yield from self._call(context)
            return
        delimiters = context.lexicon.delimiters(self.call, self.call_end)
        marker = self.call
        while marker == self.call:
            marker = yield from self._call(context)
            if marker == DONE:
                tail: list[str] = []
                marker = yield Until(delimiters, tail.append, markup=True)
                if "".join(tail).strip(" \n})"):
                    context.calls.doubt()

    def _call(self, context: ParsingContext) -> Subroutine:
        """Read one call. Return the marker that ended it, or DONE after its last bracket."""
        delimiters, calls = context.lexicon.delimiters, context.calls
        header: list[str] = []

        def begin(text: str) -> None:
            name = text.strip().lstrip(":").removeprefix(BARE).strip()
            if name and not _NO_NAME.search(name):
                name_tail = name.rpartition(":")[2] if ":" in name else ""
                calls.begin(name_tail if calls.find(name_tail) and not calls.find(name) else name)

        marker = yield from last_name(delimiters("{", "(", self.call, self.call_end), header, begin)
        begin("".join(header))
        if not calls.open:
            if "".join(header).strip():
                calls.doubt()
            if marker == self.call_end:
                context.out.content.write("".join(header))
            return marker
        members = Members(calls, in_parentheses=marker == "(")
        if marker in ("{", "("):
            try:
                marker = yield from self._members(members, context)
            except Ended as error:
                if error.by_model and members.is_behind_value:
                    members.finish()
                raise
        members.finish()
        return marker

    def _members(self, members: Members, context: ParsingContext) -> Subroutine:
        members.take("{")
        ends = context.lexicon.delimiters(self.quote, self.call, self.call_end)
        while (marker := (yield _Outside(ends, members))) == self.quote:
            if members.is_in_word and context.calls.repairing:
                next_words = dict.fromkeys(",}]") | context.follow(None, self.call_end)
                is_closing = yield Ahead(next_words, context.lexicon.delimiters(), context.lexicon)
                if is_closing == Ahead.YES:
                    members.close_word()
                    continue
            write, end = members.string()
            closing = self._closing(context, members.in_parentheses)
            if (yield Tagged(context.lexicon, closing, write)) == FORCED:
                context.calls.spoil()
            end()
            text = members.text
            if self.quote in text and _is_broken(text, self.quote):
                context.calls.spoil()
        return marker

    def _closing(self, context: ParsingContext, in_parentheses: bool) -> Closing:
        closing: Closing = context.lexicon.remember(
            (self, context.sound, in_parentheses),
            lambda: self._find_closing(context, in_parentheses),
        )
        return closing

    def _find_closing(self, context: ParsingContext, in_parentheses: bool) -> Closing:
        """Return the ends of a string: its own token, or the end of the call before valid text."""
        next_words: Follow = dict.fromkeys(",:}]") | context.follow(None, self.call_end)
        if in_parentheses:
            next_words[")"] = context.follow(None, self.call_end, self.call)
        value: Follow = dict.fromkeys([*"[{-0123456789", "true", "false", "null"])
        value |= context.follow(None, self.quote)
        next_words[NAME] = {":": value, "=": value}
        words = context.follow(next_words, self.quote)
        if context.sound or not context.lexicon.is_token(self.call_end):
            return Closing(words)
        end = context.lexicon.sign(self.call_end)
        next_call = context.follow({BARE: None}, self.call)
        return Closing({**words, end: next_call}, forced=(end,))


class _Outside:
    """Want for text outside strings. Ends with DONE after the last bracket, or with a marker."""

    __slots__ = ("_delimiters", "_members", "tokens")
    lexicon: Lexicon | None = None

    def __init__(self, delimiters: Delimiters, members: Members) -> None:
        self._delimiters = delimiters
        self._members = members
        self.tokens = delimiters.tokens

    def take(self, text: str, has_more: bool) -> tuple[str | None, str]:
        start, end, marker = self._delimiters.find(text, 0, has_more)
        num_chars = self._members.take(text[:start])
        if self._members.ended:
            return DONE, text[num_chars:]
        return marker, text[end:]

    def plain(self, text: str) -> None:
        self._members.take(text)

    def truncate(self, _text: str) -> tuple[str | None, str]:
        """Drop a part of a marker."""
        return None, ""


class Members:
    """Writer of an object's JSON, character by character outside strings. It closes the call.

    A missing comma, a missing value and missing brackets at the end are filled in. Parentheses
    around the members and ``=`` after a key are accepted. A key without a value makes the call
    malformed.
    """

    def __init__(self, calls: Calls, in_parentheses: bool = False) -> None:
        self._calls = calls
        self.in_parentheses = in_parentheses
        self._num_parentheses = 0
        """Number of open parentheses inside a word."""
        self._write = calls.write
        self._closers: list[str] = []
        self._is_first: list[bool] = []
        self._takes: Callable[[str], None] = self._take_value
        self._word: list[str] = []
        self._text: list[str] = []
        self._quote = ""
        """Quote that opened the current string."""
        self._escaped = self._may_end = False
        self._key = ""
        self._keys: set[str] = set()
        """Parameters so far."""
        self._repeats = False
        """True if a parameter was given twice."""
        self.ended = False

    def take(self, text: str) -> int:
        """Take characters up to the last bracket. Return their number."""
        for index, char in enumerate(text):
            if self.ended:
                return index
            if self._may_end:
                self._end_quotes(char)
            if self._quote:
                self._take_quoted(char)
            elif self.in_parentheses and char in "()":
                self._take_parenthesis(char)
            elif char in "\"'`" and self._takes != self._take_next and self._is_blank:
                self._word, self._quote = [char], char
            else:
                self._takes(char)
        return len(text)

    def _take_parenthesis(self, char: str) -> None:
        """Take a parenthesis, which closes the members or belongs to a word."""
        if char == "(" or self._num_parentheses:
            self._num_parentheses += 1 if char == "(" else -1
            self._takes(char)
            return
        while not self.ended:
            self._takes("}" if self._closers[-1:] == ["}"] else "]")

    @property
    def is_behind_value(self) -> bool:
        """True after a value, where the model may end the call."""
        return self._takes == self._take_next

    @property
    def _is_blank(self) -> bool:
        return not self._word or not any(map(str.strip, self._word))

    @property
    def is_in_word(self) -> bool:
        """True if a value without quotes has begun."""
        return not self._is_blank and self._takes == self._take_value

    def close_word(self) -> None:
        """Write the current word as a string whose opening quote is missing."""
        word = self._take_word()
        write, end = self.string()
        write(word)
        end()

    def _take_word(self) -> str:
        word, self._word = "".join(self._word).strip(), []
        return word

    def string(self) -> tuple[TextSink, Callable[[], None]]:
        """Begin a string. Return a sink for its text, and a function to call at its end."""
        parts: list[str] = []
        if self._takes == self._take_next:
            self._expect_member()
        elif not self._is_blank:
            self._calls.spoil()
        if self._takes == self._take_key:
            return parts.append, lambda: self._set_word("".join(parts))
        self._separate_item()
        self._text = []
        self._word, self._takes = [], self._take_next
        allowed_values = self._allowed
        if "string" not in allowed_values:
            return parts.append, lambda: self._write_typed("".join(parts), allowed_values)
        self._write('"')
        return self._escape, lambda: self._write('"')

    def finish(self) -> None:
        """Close the brackets that are open at the end of the call."""
        if self.ended or not self._calls.open:
            return
        if self._takes == self._take_value and self._closers:
            self._finish_word()
        elif self._takes == self._take_key and not self._is_blank:
            self._calls.spoil()
        if len(self._closers) > 1:
            self._calls.spoil()
        self._write("".join(reversed(self._closers)))
        self._end(is_fragile=True)

    @property
    def _allowed(self) -> frozenset[str]:
        """Allowed types of the current member, if it is a parameter."""
        tool = self._calls.tool
        is_parameter = len(self._closers) == 1 and self._calls.repairing
        return tool.kinds(self._key) if is_parameter and tool is not None else STRING

    @property
    def text(self) -> str:
        """Text of the last string."""
        return "".join(self._text)

    def _escape(self, text: str) -> None:
        self._text.append(text)
        self._write(encode_basestring(text)[1:-1])

    def _set_word(self, text: str) -> None:
        self._word = [encode_basestring(text)]

    def _write_typed(self, text: str, types: frozenset[str]) -> None:
        """Write a string as another type, because the schema allows no string."""
        json_text = as_json(text, types)
        if not json_text.startswith('"'):
            self._calls.repair(Repair.QUOTED_VALUE)
            self._calls.keep_raw(text)
        self._write(json_text)

    def _take_quoted(self, char: str) -> None:
        """Take a character of a quoted string, as in JSON or Python."""
        self._word.append(char)
        self._may_end = char == self._quote and not self._escaped
        self._escaped = char == "\\" and not self._escaped
        if self._may_end and char == '"':
            self._quote, self._may_end = "", False

    def _end_quotes(self, char: str) -> None:
        """End a string after a single quote, unless the quote is an apostrophe."""
        self._may_end = False
        if char in ",:]} \n" or (char == ")" and self.in_parentheses):
            self._quote = ""

    def _take_key(self, char: str) -> None:
        if char == ":" or (char == "=" and not self._is_blank):
            self._separate()
            self._key = _unquote(self._take_word())
            if len(self._closers) == 1:
                self._repeats |= self._key in self._keys
                self._keys.add(self._key)
            self._write(encode_basestring(self._key) + ": ")
            self._takes = self._take_value
        elif char in ",}]":
            if not self._is_blank:
                self._calls.spoil()
            self._word = []
            if char != ",":
                self._close(char)
        elif not (char == "{" and self.in_parentheses and self._is_blank):
            self._word.append(char)

    def _take_value(self, char: str) -> None:
        if char in _CLOSES and self._is_blank:
            self._separate_item()
            self._write(char)
            self._closers.append(_CLOSES[char])
            self._is_first.append(True)
            self._word = []
            self._expect_member()
        elif char in ",}]":
            self._finish_word()
            self._take_next(char)
        else:
            self._word.append(char)

    def _take_next(self, char: str) -> None:
        """Take a character after a value."""
        if char == ",":
            self._expect_member()
        elif char in "}]":
            self._close(char)
        elif not char.isspace():
            self._expect_member()
            if self._takes == self._take_value and char not in _CLOSES:
                self._calls.spoil()
            self._takes(char)

    def _expect_member(self) -> None:
        self._takes = self._take_key if self._closers[-1] == "}" else self._take_value

    def _finish_word(self) -> None:
        word, is_item = self._take_word(), self._closers[-1] == "]"
        self._takes = self._take_next
        if word or not is_item:
            self._separate_item()
            is_quoted = word.startswith(('"', "'", "`"))
            self._write(as_json(_unquote(word), STRING) if is_quoted else as_json(word, _SCALARS))

    def _close(self, bracket: str) -> None:
        closer = self._closers.pop()
        if closer != bracket:
            self._calls.spoil()
        self._write(closer)
        self._is_first.pop()
        self._word, self._takes = [], self._take_next
        if not self._closers:
            self._end()

    def _end(self, is_fragile: bool = False) -> None:
        self.ended = True
        if self._repeats and repeats_member(self._calls.arguments):
            self._calls.spoil()
        self._calls.close(is_fragile=is_fragile)

    def _separate_item(self) -> None:
        if self._closers and self._closers[-1] == "]":
            self._separate()

    def _separate(self) -> None:
        """Write a comma between two members."""
        if not self._is_first[-1]:
            self._write(", ")
        self._is_first[-1] = False


def _is_broken(text: str, quote: str) -> bool:
    """Return True if a string contains its closing token, doubled or followed by keys."""
    at_edge = text.startswith(quote) or text.endswith(quote)
    return at_edge or _SWALLOWED.search(text, text.find(quote)) is not None


def _unquote(word: str) -> str:
    """Remove the quotes from a key or value, if it has any."""
    quote = word[:1]
    if not quote or quote not in "\"'`" or (quote != '"' and word[-1:] != quote):
        return word
    if quote != '"':
        body = word[1:-1].replace(f"\\{quote}", quote).replace('\\"', '"').replace('"', '\\"')
        word = f'"{body}"'
    try:
        return str(json.loads(word, strict=False))
    except ValueError:
        return word.strip('"')


FORMAT = BareKeys("<|tool_call>", "<tool_call|>", '<|"|>').format()
FUNCTION = BareKeys("<start_function_call>", "<end_function_call>", "<escape>").format()
"""google/functiongemma-270m-it."""
