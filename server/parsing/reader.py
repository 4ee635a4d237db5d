"""Drives a format's grammar over pieces of text and marker tokens.

A grammar is a generator. It yields a *want*: how to take the text that follows, and which markers
end it; it is sent the marker that was found. What is written between two markers goes to a sink
as it arrives. Holding back what may be the beginning of a marker happens here and nowhere else.

A marker is a token when the tokenizer has it as one, and then the same characters written as
ordinary tokens are text. Only markers the tokenizer does not have are looked for in the text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Protocol

from server.parsing.json_scan import JsonScan
from server.parsing.markers import Stops

Sink = Callable[[str], None]
DONE = ""
"""Sent to the grammar when what it wanted has ended without a marker."""


class Want(Protocol):
    """How to take what follows."""

    @property
    def tokens(self) -> frozenset[str]:
        """The marker tokens that end it; any other is text here."""
        ...

    def take(self, text: str, more: bool) -> tuple[str | None, str]:
        """Take from ``text``: what ended it (None: nothing yet) and what is left over.

        With ``more`` the rest may be kept back until more text arrives, else all must be taken.
        """
        ...

    def plain(self, text: str) -> None:
        """Take the text of a marker token that ends nothing here."""
        ...

    def cut(self, text: str) -> tuple[str | None, str]:
        """Take what was kept back when the output was cut off."""
        ...


Grammar = Generator[Want, str, None]


class Ended(Exception):
    """Thrown into a grammar where the output ends; ``by_model``: it was not cut off."""

    def __init__(self, by_model: bool) -> None:
        self.by_model = by_model


class _Taking(ABC):
    """Where a cut makes no difference to what is kept back: it is taken."""

    __slots__ = ()

    @abstractmethod
    def take(self, text: str, more: bool) -> tuple[str | None, str]: ...

    def cut(self, text: str) -> tuple[str | None, str]:
        return self.take(text, more=False)


def ignore(text: str) -> None:
    """A sink for what is neither text nor structure."""


class Until(_Taking):
    """Text up to one of ``stops``, to a sink as it comes; ``stray`` gets other marker tokens.

    With ``markup`` the text is not the point: what is kept back at a cut is a piece of a marker.
    """

    __slots__ = ("_find", "_markup", "_sink", "_wordless", "plain", "tokens")

    def __init__(
        self, stops: Stops, sink: Sink, stray: Sink | None = None, markup: bool = False
    ) -> None:
        self._markup = markup
        self._find = stops.find
        self._sink = sink
        self._wordless = stops.pattern is None
        self.plain = stray or sink
        self.tokens = stops.tokens

    def take(self, text: str, more: bool) -> tuple[str | None, str]:
        if self._wordless:
            self._sink(text)
            return None, ""
        cut, after, marker = self._find(text, 0, more)
        if cut:
            self._sink(text[:cut])
        return marker, text[after:]

    def cut(self, text: str) -> tuple[str | None, str]:
        return (None, "") if self._markup else super().cut(text)


class Next(_Taking):
    """The next character that is no white space, or the marker that stands there.

    The sink gets what is taken. A character in ``keep`` is left for the next want; with None any.
    ``markup`` as in ``Until``.
    """

    __slots__ = ("_keep", "_markup", "_sink", "_stops", "tokens")

    def __init__(
        self, stops: Stops, sink: Sink = ignore, keep: str | None = "", markup: bool = False
    ) -> None:
        self._markup = markup
        self._stops = stops
        self._sink = sink
        self._keep = keep
        self.tokens = stops.tokens

    def take(self, text: str, more: bool) -> tuple[str | None, str]:
        rest = text.lstrip()
        blank = len(text) - len(rest)
        if blank:
            self._sink(text[:blank])
        if not rest:
            return None, ""
        cut, after, marker = self._stops.find(rest, 0, more)
        if not cut:
            return marker, rest[after:]
        if self._keep is None or rest[0] in self._keep:
            return rest[0], rest
        self._sink(rest[0])
        return rest[0], rest[1:]

    def plain(self, text: str) -> None:
        """A marker token that ends nothing here is no character either."""

    def cut(self, text: str) -> tuple[str | None, str]:
        return (None, "") if self._markup else super().cut(text)


class JsonValue(_Taking):
    """One JSON value, as written, to a sink. Plain-text markers inside its strings are text.

    Ends with DONE where the value ends, or with a marker where the value is not finished; with
    ``to_marker`` all the text up to a marker belongs to it. A string with a raw line break is no
    JSON: its quotes are no protection any more.
    """

    __slots__ = ("_scan", "_sink", "_stops", "_to_marker", "tokens")

    def __init__(self, stops: Stops, sink: Sink, to_marker: bool = False) -> None:
        self._stops = stops
        self._sink = sink
        self._scan = JsonScan()
        self._to_marker = to_marker
        self.tokens = stops.tokens

    @property
    def quoting(self) -> bool:
        """Whether it stands inside a string."""
        return self._scan.in_string and not self._scan.broken

    def take(self, text: str, more: bool) -> tuple[str | None, str]:
        if self._to_marker and self._stops.pattern is None:
            self._sink(text)
            return None, ""
        taken, after, marker = self._end(text, more)
        if taken:
            self._sink(text[:taken])
        return marker, text[after:]

    def _end(self, text: str, more: bool) -> tuple[int, int, str | None]:
        scan, taken, look = self._scan, 0, 0
        while True:
            cut, after, marker = self._stops.find(text, look, more)
            taken = scan.feed(text, taken, cut)
            if scan.done:
                return (cut, after, marker) if self._to_marker else (taken, taken, DONE)
            if not scan.in_string or scan.broken or cut == len(text):
                return taken, after, marker
            look = cut + 1

    def plain(self, text: str) -> None:
        self._scan.feed(text)
        self._sink(text)


class Reader:
    """Feeds text and marker tokens to a grammar.

    ``sound``: JSON is known to be whole, so that a marker token inside a string of it is quoted.
    Else it ends the string, which the model has forgotten to close.
    """

    __slots__ = ("_grammar", "_held", "_sound", "_want")

    def __init__(self, grammar: Grammar, sound: bool = False) -> None:
        self._grammar = grammar
        self._sound = sound
        self._want = next(grammar)
        self._held = ""

    def text(self, text: str) -> None:
        self._take(self._held + text if self._held else text, True)

    def marker(self, marker: str) -> None:
        """A marker that is a token: what was held back is then no beginning of one."""
        self._settle()
        if marker in self._want.tokens and not self._quoted:
            self._want = self._grammar.send(marker)
        else:
            self._want.plain(marker)

    @property
    def _quoted(self) -> bool:
        return self._sound and isinstance(self._want, JsonValue) and self._want.quoting

    def end(self, by_model: bool) -> None:
        """The output is over; the grammar learns it as an exception."""
        while self._held and not by_model:
            self._cut()
        self._settle()
        with suppress(Ended, StopIteration):
            self._grammar.throw(Ended(by_model))

    def _settle(self) -> None:
        if self._held:
            self._take(self._held, False)

    def _cut(self) -> None:
        marker, rest = self._want.cut(self._held)
        self._held = ""
        if marker is not None:
            self._want = self._grammar.send(marker)
            self._take(rest, True)

    def _take(self, text: str, more: bool) -> None:
        while text:
            marker, text = self._want.take(text, more)
            if marker is None:
                break
            self._want = self._grammar.send(marker)
        self._held = text
