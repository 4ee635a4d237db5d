"""Gemma 4 and FunctionGemma: calls with bare keys, and strings between tokens of their own.

    <|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>
    <start_function_call>call:get_weather{city:<escape>Paris<escape>,days:2}<end_function_call>

Source: the chat template of google/gemma-4 models as vllm-project/vllm documents it
(vllm/parser/gemma4.py), and for google/functiongemma-270m-it its parser of that name. Objects and
lists nest; words that are no JSON become strings. A string ends only where a comma, a colon or a
bracket follows its closing token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from json.encoder import encode_basestring

from server.parsing.arguments import as_json
from server.parsing.lookahead import last_name
from server.parsing.markers import Follow
from server.parsing.message import Context, ToolFormat
from server.parsing.output import Calls
from server.parsing.reader import Grammar, Subgrammar, Until
from server.parsing.schemas import TYPES
from server.parsing.tagged import FORCED, Closing, Tagged

_CLOSES = {"{": "}", "[": "]"}
_SCALARS = TYPES - {"object", "array"}


@dataclass(frozen=True, slots=True)
class BareKeys:
    """The tokens of one format."""

    call: str
    call_end: str
    quote: str

    def format(self) -> ToolFormat:
        return ToolFormat(
            (self.call,), self._read, (self.call_end, self.quote), "\n", self.call_end
        )

    def _read(self, opener: str, context: Context) -> Grammar:
        marker = opener
        while marker == self.call:
            marker = yield from self._call(context)

    def _call(self, context: Context) -> Subgrammar:
        stops, calls = context.lexicon.stops, context.calls
        header: list[str] = []

        def begin(written: str) -> None:
            if name := written.strip().removeprefix("call:").strip():
                calls.begin(name)

        marker = yield from last_name(stops("{", self.call, self.call_end), header, begin)
        begin("".join(header))
        if not calls.open:
            return marker
        forced = False
        if marker == "{":
            value = _Value(calls)
            value.text("{")
            ends = stops(self.quote, self.call, self.call_end)
            while (marker := (yield Until(ends, value.text))) == self.quote:
                write, end = value.string()
                forced = (yield Tagged(context.lexicon, self._closing(context), write)) == FORCED
                end()
        calls.close(spoiled=forced)
        return marker

    def _closing(self, context: Context) -> Closing:
        """A string ends at its own token, or where the call is over and the output agrees."""
        after: Follow = dict.fromkeys(",:}]")
        words = context.follow(after, self.quote)
        if context.sound or not context.lexicon.is_token(self.call_end):
            return Closing(words)
        end = context.lexicon.sign(self.call_end)
        again = context.follow({"call:": None}, self.call)
        return Closing({**words, end: again}, forced=(end,))


class _Value:
    """Writes the JSON of an object, character by character outside of strings."""

    def __init__(self, calls: Calls) -> None:
        self._write = calls.write
        self._closers: list[str] = []
        self._names: list[bool] = []
        """Whether each open bracket waits for a key."""
        self._word: list[str] = []
        self._is_first = True

    def text(self, text: str) -> None:
        for char in text:
            self._take(char)

    def string(self) -> tuple[Callable[[str], None], Callable[[], None]]:
        """A sink for the text of a string, and what to do at its end."""
        if self._names and self._names[-1]:
            return self._word.append, lambda: None
        self._separate()
        self._write('"')
        return self._escape, lambda: self._write('"')

    def _escape(self, text: str) -> None:
        self._write(encode_basestring(text)[1:-1])

    def _take(self, char: str) -> None:
        if char in _CLOSES and not "".join(self._word).strip():
            self._separate()
            self._write(char)
            self._closers.append(_CLOSES[char])
            self._names.append(char == "{")
            self._is_first = True
        elif not self._closers:
            return
        elif char == ":" and self._names[-1]:
            self._separate()
            self._write(encode_basestring("".join(self._word).strip()) + ": ")
            self._word.clear()
            self._names[-1], self._is_first = False, True
        elif char in ",}]":
            self._finish_value(char)
        else:
            self._word.append(char)

    def _finish_value(self, char: str) -> None:
        word = "".join(self._word).strip()
        self._word.clear()
        if word:
            self._separate()
            self._write(as_json(word, _SCALARS))
        self._is_first = self._is_first and not word
        if char == ",":
            self._names[-1] = self._closers[-1] == "}"
            return
        self._write(self._closers.pop())
        self._names.pop()
        self._is_first = False

    def _separate(self) -> None:
        """A comma between two members; none behind a key or an opening bracket."""
        if not self._is_first:
            self._write(", ")
        self._is_first = False


FORMAT = BareKeys("<|tool_call>", "<tool_call|>", '<|"|>').format()
FUNCTION = BareKeys("<start_function_call>", "<end_function_call>", "<escape>").format()
"""google/functiongemma-270m-it."""
