"""Conversion of a Python literal to JSON while it is being written.

Models quote shell commands with the same kind of quote that the commands contain. Therefore a quote
closes a string only if the text after it continues the literal or the call. Otherwise the quote is
part of the string.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from json.encoder import encode_basestring

from eaglegate.text.parsing.markers import Lexicon
from eaglegate.text.parsing.reader import DONE, TextSink

_WORDS = {"True": "true", "False": "false", "None": "null"}
_WORD = re.compile(r"[A-Za-z0-9_.+\-]+")
_RUN = {quote: re.compile(rf"[^\\{quote[0]}]+") for quote in ('"', "'", '"""', "'''")}
_ESCAPE = re.compile(
    r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|[^xuU0-7])", re.DOTALL
)
_ESCAPES: Mapping[str, str] = dict(zip("\\'\"abfnrtv\n", [*"\\'\"\a\b\f\n\r\t\v", ""], strict=True))
_OCTAL = "01234567"
_ZEROS = re.compile(r"([+\-]?)0+([0-9]+)\Z")
_BLANK, _NAME = r"\s{0,99}+", r"[A-Za-z_][\w.\-]{0,127}+\s{0,9}+"
_MEMBER = re.compile(rf"{_BLANK}[,:\]}})]"), re.compile(rf"{_BLANK}\Z")
_ARGUMENT = (
    re.compile(
        rf"{_BLANK}(?:,{_BLANK}(?:{_NAME}=|[)\]])"
        rf"|\){_BLANK}(?:[\]<]|,{_BLANK}(?:{_NAME}\(|\])|(?<=[\n ]){_NAME}\())"
    ),
    re.compile(rf"{_BLANK}(?:,{_BLANK}(?:{_NAME})?+|\){_BLANK}(?:,{_BLANK})?+(?:{_NAME})?+)?+\Z"),
)
"""Text after a closing quote, in brackets and in a call, each with a pattern for its beginnings."""
_BETWEEN = rf"(?:{_BLANK}(?:[,)]{_BLANK}){{1,4}}+|[ \t]{{0,9}}\n{_BLANK})"
_MAY_BE_BETWEEN = re.compile(rf"{_BLANK}(?:[,)]{_BLANK}){{0,4}}+(?:{_NAME})?+\Z")


@lru_cache(maxsize=256)
def _find_next_call(names: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern for another call after a quote, with doubled or missing punctuation."""
    return re.compile(rf"{_BETWEEN}(?:{'|'.join(map(re.escape, names))}){_BLANK}\(")


_CONFIRMED = re.compile(r"[\"']\s{0,99}[,)]")
_LAST = re.compile(rf"{_BLANK}[,)]?{_BLANK}\Z")
_LONGEST_WORD = 400
"""Length from which a word is neither a number nor a name. It is passed on as it arrives."""
_LONGEST_ESCAPE = len(r"\U0001F600")
_INNER = "\0"
"""Placeholder for a quote inside a string."""
_CLOSES = {"[": "]", "(": "]", "{": "}"}


class Literal:
    """Want for one literal. Ends with DONE before the comma or bracket after the literal.

    Text that is not a literal is passed on unchanged, and the result is then not JSON.
    """

    __slots__ = (
        "_beside",
        "_closers",
        "_comma",
        "_first",
        "_inner",
        "_is_text",
        "_keys",
        "_names",
        "_open",
        "_quote",
        "_sink",
        "_tokens",
        "_verbatim",
        "is_doubtful",
    )
    lexicon: Lexicon | None = None

    def __init__(
        self,
        sink: TextSink,
        tokens: frozenset[str] = frozenset(),
        names: tuple[str, ...] = (),
        keys: Iterable[str] = (),
    ) -> None:
        self._sink = sink
        self._names = names
        """Names of the offered tools. A call of one of them ends the value."""
        self._keys = keys
        """Names of the tool's parameters. After a quote, such a name may begin an argument."""
        self._inner: list[str] = []
        """The string's text from the first quote of its own kind that did not close it."""
        self._closers: list[str] = []
        self._quote = ""
        self._beside = False
        """True if the preceding character of the string is a quote of its kind."""
        self._is_text = False
        """True if that quote belongs to the string."""
        self.is_doubtful = False
        """True if a quote is doubled at the beginning or end of a string."""
        self._comma = False
        self._verbatim = False
        self._tokens = tokens
        self._open = 0
        """Depth of a brace that opens either an object or a set."""
        self._first: list[str] = []
        """Text after that brace, until a colon or comma distinguishes an object from a set."""

    @property
    def tokens(self) -> frozenset[str]:
        """Marker tokens that end the value. In a string a marker token is quoted."""
        return frozenset() if self._quote else self._tokens

    def plain(self, text: str) -> None:
        self._sink(encode_basestring(text)[1:-1] if self._quote else text)

    def take(self, text: str, has_more: bool) -> tuple[str | None, str]:
        out: list[str] = []
        position, size = 0, len(text)
        while position < size:
            step = self._string if self._quote else self._outside
            end = step(text, position, has_more, self._first if self._open else out)
            if self._first and not self._open:
                out += self._first
                self._first = []
            if end == position:
                break
            position = end
        if out:
            self._sink("".join(out))
        is_end = (
            position < size and not self._quote and not self._closers and text[position] in ",)]}"
        )
        return DONE if is_end else None, text[position:]

    def truncate(self, text: str) -> tuple[str | None, str]:
        """Drop an unfinished escape or word. A quote closes the string if the call continued."""
        if not _CONFIRMED.match(text) or self._closers or text[0] != self._quote:
            return None, ""
        self._quote = ""
        self._sink('"')
        return DONE, text[1:]

    def _string(self, text: str, position: int, has_more: bool, out: list[str]) -> int:
        if run := _RUN[self._quote].match(text, position):
            self._beside = self._beside and run[0].isspace()
            if self._inner:
                self._inner.append(run[0])
            out.append(encode_basestring(run[0])[1:-1])
            return run.end()
        if text[position] == self._quote[0]:
            return self._closing(text, position, has_more, out)
        escape = _ESCAPE.match(text, position)
        is_unfinished = escape is None or (escape.end() == len(text) and escape[0][1] in _OCTAL)
        if has_more and is_unfinished and len(text) - position < _LONGEST_ESCAPE:
            return position
        self._beside = False
        out.append(encode_basestring(_unescape(escape[0]) if escape else "\\")[1:-1])
        return escape.end() if escape else position + 1

    def _closing(self, text: str, position: int, has_more: bool, out: list[str]) -> int:
        """Judge a quote: it ends the string if the text after it fits, else it is text."""
        quote = self._quote
        ends = text.startswith(quote, position)
        if ends and len(quote) == 1:
            pattern, beginning = _MEMBER if self._closers else _ARGUMENT
            ends = bool(
                pattern.match(text, position + 1)
                or (not has_more and _LAST.match(text, position + 1))
            )
            if not ends and has_more and beginning.match(text, position + 1):
                return position
            if not ends and self._names and not self._closers:
                ends = _find_next_call(self._names).match(text, position + 1) is not None
                if not ends and has_more and _MAY_BE_BETWEEN.match(text, position + 1):
                    return position
        elif not ends and has_more and len(text) - position < len(quote):
            return position
        self.is_doubtful |= self._beside and len(quote) == 1 and (not ends or self._is_text)
        self._beside, self._is_text = True, not ends
        self._quote = "" if ends else quote
        if ends and self._inner:
            self.is_doubtful |= self._holds_argument()
        elif not ends and self._keys:
            self._inner.append(_INNER)
        out.append('"' if ends else encode_basestring(text[position])[1:-1])
        return position + (len(quote) if ends else 1)

    def _holds_argument(self) -> bool:
        """Return True if the string contains the next argument after damaged text."""
        keys = "|".join(map(re.escape, self._keys))
        text, self._inner = "".join(self._inner), []
        is_odd = text.count(_INNER) % 2 == 1
        if is_odd and text.endswith(f"{_INNER})"):  # the end of the call and a superfluous quote
            return True
        pattern = rf"{_INNER}[^{_INNER}]{{0,80}}\b(?:{keys})(?:\W{{0,3}}|</?[\w|]{{1,40}}>)="
        return re.search(pattern, text) is not None

    def _outside(self, text: str, position: int, has_more: bool, out: list[str]) -> int:
        char = text[position]
        if self._verbatim and not _WORD.match(char):
            self._verbatim = False
        if char.isspace():
            return position + 1
        if char in ",)]}":
            return self._separator(char, position, out)
        if char == ":":
            self._settle("{")
            out.append(": ")
            return position + 1
        if self._comma:
            self._comma = False
            out.append(", ")
        if char in "\"'":
            return self._opening(text, position, has_more, out)
        if char in _CLOSES:
            self._closers.append(_CLOSES[char])
            if char == "{" and not self._open:
                self._open = len(self._closers)
            else:
                out.append("{" if char == "{" else "[")
            return position + 1
        return self._word(text, position, has_more, out)

    def _opening(self, text: str, position: int, has_more: bool, out: list[str]) -> int:
        triple_quote = text[position] * 3
        if has_more and len(text) - position < 3 and triple_quote.startswith(text[position:]):
            return position
        self._quote = triple_quote if text.startswith(triple_quote, position) else text[position]
        self._beside, self._is_text = True, False
        out.append('"')
        return position + len(self._quote)

    def _separator(self, char: str, position: int, out: list[str]) -> int:
        if not self._closers:
            return position
        self._settle("[" if self._first else "{")
        if char == ",":
            self._comma = True
        else:
            self._comma = False
            out.append(self._closers.pop())
        return position + 1

    def _settle(self, bracket: str) -> None:
        """Settle the innermost brace as an object or a set. A set becomes a list."""
        if self._open and self._open == len(self._closers):
            self._first.insert(0, bracket)
            self._closers[-1] = _CLOSES[bracket]
            self._open = 0

    def _word(self, text: str, position: int, has_more: bool, out: list[str]) -> int:
        word = _WORD.match(text, position)
        if word is None:
            out.append(text[position])
            return position + 1
        is_long = self._verbatim or word.end() - position > _LONGEST_WORD
        if has_more and not is_long and word.end() == len(text):
            return position
        self._verbatim = is_long and word.end() == len(text)
        out.append(word[0] if is_long else _WORDS.get(word[0]) or _number(word[0]))
        return word.end()


def _unescape(escape: str) -> str:
    """Decode an escape. An escape unknown to Python is returned unchanged."""
    kind, digits = escape[1], escape[2:]
    if kind in _ESCAPES:
        return _ESCAPES[kind]
    if kind in "xuU" or kind in _OCTAL:
        code = int(digits, 16) if kind in "xuU" else int(escape[1:], 8)
        return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else escape
    return escape


def _number(word: str) -> str:
    """Return a number unchanged if it is JSON, else as Python reads it, else unchanged."""
    if zeros := _ZEROS.match(word):
        word = zeros[1].strip("+") + zeros[2]
    try:
        json.loads(word)
        return word
    except ValueError:
        pass
    try:
        return json.dumps(ast.literal_eval(word), allow_nan=False)
    except (ValueError, SyntaxError, TypeError):
        return word
