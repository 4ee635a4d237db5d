"""Reader that drives a format's routine over pieces of text and marker tokens.

A routine is a generator. It yields a *want*, which says how to take the text that follows and which
markers end it. It is then sent the marker that was found. Text between two markers goes to a sink
as it arrives. Text that may be the beginning of a marker is held back here and nowhere else.

A worked example. A format that writes ``<call>NAME: JSON</call>`` is this routine::

    def calls(opener: str, context: ParsingContext) -> Routine:
        name: list[str] = []
        yield Until(delimiters(":"), name.append)          # text up to the colon goes to ``name``
        context.calls.begin("".join(name))
        yield JsonValue(delimiters("</call>"), context.calls.write_json)
        yield Until(delimiters("</call>"), ignore)
        context.calls.close()

and ``Reader`` drives it. Given the pieces ``f``, ``: {"a"``, ``: 1}</ca`` and ``ll>``

- ``f`` goes to ``name``, as there is no colon so far;
- ``: {"a"`` ends the first want. The reader sends ``":"`` to the generator, which begins the call
  and yields a ``JsonValue``; `` {"a"`` goes to the call as it arrives;
- ``: 1}`` ends the value, and DONE is sent; ``</ca`` may be the beginning of a marker and is held
  back;
- ``ll>`` completes it: ``"</call>"`` is sent, and the generator closes the call.

Any other split of the same text gives the same calls. If the output ends too early, ``Ended`` is
raised at the ``yield``, and the routine finishes the open call or text.

A marker is a token if the tokenizer has one for it; then the same characters written as ordinary
tokens are text. Only markers that the tokenizer lacks are searched for in the text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Protocol

from eaglegate.text.parsing.json_scan import JsonScan
from eaglegate.text.parsing.markers import Delimiters, Lexicon, Quotes, follows

TextSink = Callable[[str], None]
DONE = ""
"""Sent to the routine when its want has ended without a marker."""
_LONGEST_LEFT = 1024
"""Most characters of left-over text taken at once: each want that ends copies the remainder."""


class Want(Protocol):
    """Rule for taking the text that follows."""

    @property
    def lexicon(self) -> Lexicon | None:
        """Lexicon whose signs stand for marker tokens in the text; None if tokens come apart."""
        ...

    @property
    def tokens(self) -> frozenset[str]:
        """Marker tokens that end this want. Any other marker token is text."""
        ...

    def take(self, text: str, has_more: bool) -> tuple[str | None, str]:
        """Take from ``text``. Return what ended the want, or None, and the text left over.

        With ``has_more``, text may be kept back until more arrives. Otherwise all must be taken.
        """
        ...

    def plain(self, text: str) -> None:
        """Take the text of a marker token that does not end this want."""
        ...

    def truncate(self, text: str) -> tuple[str | None, str]:
        """Take text that was kept back when the output was cut off."""
        ...


Routine = Generator[Want, str, None]
Subroutine = Generator[Want, str, str]
"""Part of a routine, which returns the marker that ended it."""


class Ended(Exception):
    """Thrown into a routine when the output ends. ``by_model`` is False if it was cut off."""

    def __init__(self, by_model: bool) -> None:
        self.by_model = by_model


class _Taking(ABC):
    """Want that takes text kept back at a cut like any other text."""

    __slots__ = ()
    lexicon: Lexicon | None = None

    @abstractmethod
    def take(self, text: str, has_more: bool) -> tuple[str | None, str]: ...

    def truncate(self, text: str) -> tuple[str | None, str]:
        return self.take(text, has_more=False)


def ignore(text: str) -> None:
    """Sink that drops text."""


class Until(_Taking):
    """Want for text up to one of ``delimiters``. ``stray`` gets any other marker token.

    With ``markup``, text kept back at a cut is dropped, because it is a part of a marker.
    """

    __slots__ = ("_find", "_markup", "_sink", "_wordless", "plain", "tokens")

    def __init__(
        self,
        delimiters: Delimiters,
        sink: TextSink,
        stray: TextSink | None = None,
        markup: bool = False,
    ) -> None:
        self._markup = markup
        self._find = delimiters.find
        self._sink = sink
        self._wordless = delimiters.pattern is None
        self.plain = stray or sink
        self.tokens = delimiters.tokens

    def take(self, text: str, has_more: bool) -> tuple[str | None, str]:
        if self._wordless:
            self._sink(text)
            return None, ""
        start, end, marker = self._find(text, 0, has_more)
        if start:
            self._sink(text[:start])
        return marker, text[end:]

    def truncate(self, text: str) -> tuple[str | None, str]:
        return (None, "") if self._markup else super().truncate(text)


class Next(_Taking):
    """Want for the next character other than white space, or the marker at that place.

    The sink gets the text taken. A character in ``keep`` is left for the next want; None keeps
    any character. For ``markup`` see ``Until``.
    """

    __slots__ = ("_delimiters", "_keep", "_markup", "_sink", "tokens")

    def __init__(
        self,
        delimiters: Delimiters,
        sink: TextSink = ignore,
        keep: str | None = "",
        markup: bool = False,
    ) -> None:
        self._markup = markup
        self._delimiters = delimiters
        self._sink = sink
        self._keep = keep
        self.tokens = delimiters.tokens

    def take(self, text: str, has_more: bool) -> tuple[str | None, str]:
        body = text.lstrip()
        num_blank = len(text) - len(body)
        if num_blank:
            self._sink(text[:num_blank])
        if not body:
            return None, ""
        start, end, marker = self._delimiters.find(body, 0, has_more)
        if not start:
            return marker, body[end:]
        if self._keep is None or body[0] in self._keep:
            return body[0], body
        self._sink(body[0])
        return body[0], body[1:]

    def plain(self, text: str) -> None:
        """Do nothing: a marker token is not a character."""

    def truncate(self, text: str) -> tuple[str | None, str]:
        return (None, "") if self._markup else super().truncate(text)


class JsonValue(_Taking):
    """Want for one JSON value, which goes to a sink as written. Its strings may contain markers.

    Ends with DONE at the end of the value, or with a marker if the value is unfinished. With
    ``to_marker`` all text up to a marker belongs to the value. A marker token inside a string is
    text unless ``quotes`` says that it may end the string and the text after it confirms that. A
    string with a raw line break is not JSON, so its quotes protect nothing from there on.
    """

    __slots__ = ("_blank", "_find", "_plainly", "_quotes", "_scan", "_sink", "_to_marker", "tokens")

    def __init__(
        self,
        delimiters: Delimiters,
        sink: TextSink,
        to_marker: bool = False,
        quotes: Quotes | None = None,
    ) -> None:
        self._sink = sink
        self._blank = ""
        """White space after the value."""
        self._scan = JsonScan()
        self._to_marker = to_marker
        self._quotes = quotes
        self._plainly = to_marker and delimiters.pattern is None and quotes is None
        self._find = (quotes.add_to(delimiters) if quotes else delimiters).find
        self.tokens = delimiters.tokens

    @property
    def lexicon(self) -> Lexicon | None:  # type: ignore[override]  # it changes with the string
        is_quoting = self._scan.in_string and not self._scan.broken
        return self._quotes.lexicon if self._quotes and is_quoting else None

    def take(self, text: str, has_more: bool) -> tuple[str | None, str]:
        if self._plainly or (text.isascii() and self._scan.is_quoted(text)):
            self._sink(text)
            return None, ""
        value_end, start, end, marker = self._end(text, has_more)
        if value_end:
            self._write(text[:value_end])
        if value_end < start:
            self._write_behind(text[value_end:start])
        return marker, text[end:]

    def _write(self, text: str) -> None:
        self._sink(self._quotes.lexicon.spell(text) if self._quotes else text)

    def _end(self, text: str, has_more: bool) -> tuple[int, int, int, str | None]:
        scan, value_end, offset = self._scan, 0, 0
        closing = self._quotes.closing if self._quotes else {}
        while True:
            start, end, marker = self._find(text, offset, has_more)
            value_end = scan.feed(text, value_end, start)
            if scan.done and not self._to_marker:
                return value_end, value_end, value_end, DONE
            if start == len(text):
                return value_end, start, end, marker
            ends = scan.done or not scan.in_string or scan.broken
            if not ends and marker is not None and marker in closing:
                verdict = follows(text, end, closing[marker], has_more)
                if verdict is None:
                    return value_end, value_end, start, None
                ends = verdict
            if ends:
                return value_end, start, end, self._name(marker)
            offset = start + 1

    def _write_behind(self, text: str) -> None:
        """Write text after a complete value as part of it, if it is more than white space."""
        body = text.rstrip()
        if body:
            self._write(self._blank + body)
            self._blank = ""
        self._blank += text[len(body) :]

    def _name(self, marker: str | None) -> str | None:
        """Return the marker that a sign stands for."""
        return self._quotes.lexicon.spell(marker) if self._quotes and marker else marker

    def plain(self, text: str) -> None:
        self._scan.feed(text)
        self._sink(text)


class Reader:
    """Driver that feeds text and marker tokens to a routine."""

    __slots__ = ("_held", "_routine", "_want")

    def __init__(self, routine: Routine) -> None:
        self._routine = routine
        self._want = next(routine)
        self._held = ""

    def text(self, text: str, has_more: bool = True) -> None:
        """Take the text held back, then ``text``. Without ``has_more``, hold nothing back again."""
        if self._held:
            text = self._held + text
        while text:
            want = self._want
            marker, text = want.take(text, has_more)
            if marker is None:
                break
            self._want = self._routine.send(marker)
            if want.lexicon is not None:
                self._held = ""
                self._take_left(text, want.lexicon)
                if not has_more:
                    self._settle()
                return
        self._held = text

    def marker(self, marker: str) -> None:
        """Take a marker token. Text held back before it cannot be the beginning of a marker."""
        if self._want.lexicon is None:
            self._settle()
        if self._want.lexicon is not None:
            self.text(self._want.lexicon.sign(marker))
        elif marker in self._want.tokens:
            self._want = self._routine.send(marker)
        else:
            self._want.plain(marker)

    def end(self, by_model: bool) -> None:
        """End the output, by raising ``Ended`` in the routine."""
        while self._held and not by_model:
            self._truncate()
        self._settle()
        with suppress(Ended, StopIteration):
            self._routine.throw(Ended(by_model))

    def _settle(self) -> None:
        if self._held:
            self.text("", has_more=False)

    def _truncate(self) -> None:
        want, buffer = self._want, self._held
        marker, remainder = want.truncate(buffer)
        self._held = ""
        if marker is not None:
            self._want = self._routine.send(marker)
            self._take_left(remainder, want.lexicon)

    def _take_left(self, text: str, lexicon: Lexicon | None) -> None:
        """Take the text that a want left over, in which signs stand for tokens."""
        for piece, marker in lexicon.split(text) if lexicon else [(text, "")]:
            for start in range(0, len(piece), _LONGEST_LEFT):
                self.text(piece[start : start + _LONGEST_LEFT])
            if marker:
                self.marker(marker)
