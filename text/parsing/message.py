"""Formats of reasoning and tool calls, and the context their routines read in.

``FRAMES`` of a module in ``text/parsing/formats`` has a frame by the name of a parser: what a
structural tag puts around the arguments of a forced or strict call, as the chat templates named
there write calls. A format without one can offer tools, but cannot force a call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from eaglegate.text.events import Phase
from eaglegate.text.grammars.text_grammar import TextGrammar
from eaglegate.text.parsing.markers import Delimiters, Follow, Lexicon, Quotes, follows
from eaglegate.text.parsing.output import Calls, NewId, Output, random_id
from eaglegate.text.parsing.reader import Ended, Routine, Subroutine, Until, Want

CallRoutine = Callable[[str, "ParsingContext"], Routine]
"""Reads what follows the marker that opened it, up to where content begins again."""
MessageRoutine = Callable[["ParsingContext"], Routine]


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Format of a model's thinking.

    While it thinks, only ``ends`` are structure: a tool call quoted there is thinking.
    ``starts`` that are plain text count only as the first text of the answer.
    """

    starts: tuple[str, ...]
    ends: tuple[str, ...]
    framing: str = "\n"
    """White space the template writes inside the markers, and after the end marker."""
    label: str = ""
    """Label that the model writes behind a start marker, before the thinking."""
    inline: bool = False
    """The thinking is delivered as content, with its markers."""
    channels: MessageRoutine | None = None
    """Reads the whole message, where that is more than stretches between markers."""
    inner: tuple[str, ...] = ()
    """The other markers of such a message."""
    answer: tuple[str, str] | None = None
    """Markers that some models write around the rest of the answer behind their thinking."""
    forgets_end: bool = False
    """The model is known to forget the end marker before a tool call."""
    suffixed: Callable[[str], ReasoningFormat] | None = None
    """Makes the format for tokenizers whose markers end with a suffix."""
    untokened: ReasoningFormat | None = None
    """The format of models whose tokenizers lack the start marker."""
    texts: tuple[str, ...] = ()
    """Special tokens that are text, as in ``ToolFormat``."""
    opening: str = ""
    """The end of a prompt that opens the thinking, where that is more than a start marker."""

    @property
    def openings(self) -> tuple[str, ...]:
        """Ends of prompts that open the thinking."""
        labelled = (start + self.label for start in self.starts if self.label)
        return tuple(filter(None, (self.opening, *self.starts, *labelled)))

    @property
    def markers(self) -> tuple[str, ...]:
        return self.starts + self.ends + self.inner + (self.answer or ())


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """Format of a model's tool calls."""

    openers: tuple[str, ...]
    """Markers that open a call, or a section of calls, in content."""
    calls: CallRoutine
    inner: tuple[str, ...] = ()
    """The other markers, known only between an opener and its end."""
    framing: str = "\n"
    """White space the template writes around calls, and that is no content."""
    closer: str = ""
    """The marker that closes what an opener opened; without one the end of the answer does."""
    fragment: str = ""
    """A token that plain-text markers are written with."""
    fragmented: ToolFormat | None = None
    """The same format for tokenizers that have it: FRAGMENT stands for the token."""
    leads: tuple[str, ...] = ()
    """Characters that open a call, and stay in the text, as the first of the content."""
    new_id: NewId = random_id
    suffixed: Callable[[str], ToolFormat] | None = None
    """The same format for tokenizers whose markers end with a suffix."""
    texts: tuple[str, ...] = ()
    """Special tokens that are text: markers are written with them."""
    channels: MessageRoutine | None = None
    """Reads the whole message, as in ``ReasoningFormat``."""
    parts: tuple[str, ...] = ()
    """Markers of ``inner`` that stand only inside a call: outside, the call before was broken."""
    head: Callable[[ParsingContext], Follow] | None = None
    """Words that calls without a marker begin with."""
    opening: str = ""
    """Opening as in ``ReasoningFormat``, of a format whose ``channels`` read the thinking as
    well.
    """

    @property
    def markers(self) -> tuple[str, ...]:
        return self.openers + self.inner


def no_calls(_opener: str, _context: ParsingContext) -> Routine:
    """Read no calls, in a format whose ``channels`` read them."""
    yield from ()


NO_REASONING = ReasoningFormat((), (), "")
NO_TOOLS = ToolFormat((), no_calls, framing="")


@dataclass(frozen=True, slots=True)
class ParsingContext:
    """Lexicon, output and formats that a routine reads with."""

    lexicon: Lexicon
    out: Output
    tools: ToolFormat
    reasoning: ReasoningFormat
    starts_in: Phase
    sound: bool = False
    """A grammar holds the calls: JSON strings are closed, and marker tokens in them quoted."""

    def remember_quotes(
        self, key: Hashable, closing: Callable[[], Mapping[str, Follow | None]]
    ) -> Quotes:
        """``quotes``, made once for each vocabulary and ``key``."""
        found: Quotes = self.lexicon.remember(
            ("quotes", key, self.sound), lambda: self.quotes(closing())
        )
        return found

    def quotes(self, closing: Mapping[str, Follow | None] = MappingProxyType({})) -> Quotes:
        """Select the marker tokens of ``closing`` that may end a forgotten string."""
        may_end = {} if self.sound else closing
        signs = {self.lexicon.sign(m): f for m, f in may_end.items() if self.lexicon.is_token(m)}
        return Quotes(self.lexicon, signs)

    def rehearse(self) -> ParsingContext:
        """Make a context for a trial reading, which delivers nothing."""
        return replace(self, out=self.out.rehearse())

    def follow(self, then: Follow | None, *markers: str) -> Follow:
        """Any of ``markers``, as token or text, and ``then``."""
        return dict.fromkeys(self.lexicon.words(*markers), then)

    @property
    def calls(self) -> Calls:
        return self.out.calls

    def stray(self, marker: str) -> None:
        """A marker token outside of calls leaves nothing; a part of a call doubts the last one."""
        if marker in self.tools.parts:
            self.calls.doubt()


TagNode = dict[str, Any]
"""A node of a structural tag."""


MAX_WHITESPACE = 8
"""Between two tokens of JSON: without a bound a model can write line breaks until its limit."""


def matching(schema: Any) -> TagNode:
    """JSON that matches ``schema``."""
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MAX_WHITESPACE}


@dataclass(frozen=True, slots=True)
class CallFrame:
    """One call is ``begin`` with NAME filled in, the arguments, ``end``."""

    begin: str
    end: str
    style: str = "json"
    """Style of the arguments, by xgrammar's name for it."""
    section: tuple[str, str] = ("", "")
    """Text around all calls of an answer."""
    separator: str = ""
    """Text between two calls."""
    before_arguments: tuple[TagNode, ...] = ()
    """Tags between ``begin`` and the arguments, where that is no fixed text."""

    text: tuple[str, str] = ('{"input": "', '"}')
    """Text around the input of a custom tool."""

    def call(self, name: str, schema: Any) -> TagNode:
        arguments = matching(schema)
        if self.style != "json":
            arguments = {"type": "json_schema", "json_schema": schema, "style": self.style}
        return self._call(name, arguments)

    def text_call(self, name: str, grammar: TextGrammar) -> TagNode:
        """A call of a custom tool, whose one argument is a text."""
        begin, end = ({"type": "const_string", "value": part} for part in self.text)
        text = {"type": "grammar", "grammar": grammar.ebnf(in_json=self.style == "json")}
        return self._call(name, {"type": "sequence", "elements": [begin, text, end]})

    def _call(self, name: str, arguments: TagNode) -> TagNode:
        content = arguments
        if self.before_arguments:
            content = {"type": "sequence", "elements": [*self.before_arguments, arguments]}
        begin = self.begin.replace("NAME", name)
        return {"type": "tag", "begin": begin, "content": content, "end": self.end}

    @property
    def trigger(self) -> str:
        """The text with which a call, or the section of calls, opens."""
        return self.section[0] or self.begin.partition("NAME")[0]


_NAME = re.compile(r"[\w.:\-]{1,128}")


class Ahead:
    """Whether the text goes on as ``follow`` says: YES or NO, and nothing is taken.

    With ``lexicon`` marker tokens count as their signs, else they are no text that could go on.
    """

    __slots__ = ("_follow", "lexicon", "tokens")
    YES, NO = "yes", "no"

    def __init__(
        self, follow: Follow, delimiters: Delimiters, lexicon: Lexicon | None = None
    ) -> None:
        self._follow = follow
        self.lexicon = lexicon
        self.tokens = delimiters.tokens

    def take(self, text: str, more: bool) -> tuple[str | None, str]:
        verdict = follows(text, 0, self._follow, more) if more or text.strip() else False
        if verdict is None:
            return None, text
        return self.YES if verdict else self.NO, text

    def plain(self, text: str) -> None:
        """A marker token is no text that could go on."""

    def truncate(self, text: str) -> tuple[str | None, str]:
        return self.NO, text


class Looking:
    """Whether the text begins with ``whole``: YES or NO, and nothing is taken.

    ``beginning`` matches what may still become it. A marker in ``tokens`` is sent as such.
    """

    __slots__ = ("_beginning", "_whole", "tokens")
    lexicon: Lexicon | None = None
    YES, NO = Ahead.YES, Ahead.NO

    def __init__(
        self,
        whole: re.Pattern[str],
        beginning: re.Pattern[str],
        tokens: frozenset[str] = frozenset(),
    ) -> None:
        self._whole = whole
        self._beginning = beginning
        self.tokens = tokens

    def take(self, text: str, more: bool) -> tuple[str | None, str]:
        if self._whole.match(text):
            return self.YES, text
        return (None if more and self._beginning.match(text) else self.NO), text

    def plain(self, text: str) -> None:
        """A marker token is no text that could go on."""

    def truncate(self, text: str) -> tuple[str | None, str]:
        return self.NO, text


class Skipping(Looking):
    """Takes ``whole``, where the text begins with it and can no longer become more of it."""

    __slots__ = ()

    def take(self, text: str, more: bool) -> tuple[str | None, str]:
        if more and self._beginning.match(text):
            return None, text
        found = self._whole.match(text)
        return (self.YES, text[found.end() :]) if found else (self.NO, text)


_REST = re.compile(r"\s*[\]},:\"]")
"""Text that no call begins with."""
_REST_BEGINS = re.compile(r"\s*\Z")


def doubt_cut_call(context: ParsingContext) -> Routine:
    """Doubt the last call if the text behind an opening marker is its rest: the marker cut it."""
    if context.calls.num and (yield Looking(_REST, _REST_BEGINS)) == Looking.YES:
        context.calls.doubt()


def opens(opener: str, follow: Follow, context: ParsingContext) -> Generator[Want, str, bool]:
    """Whether a plain-text ``opener`` opens anything: not unless the text goes on as it must."""
    try:
        lexicon = context.lexicon
        opened = (yield Ahead(follow, lexicon.delimiters(), lexicon)) == Ahead.YES
    except Ended:
        context.out.content.unmark(opener)
        raise
    if not opened:
        context.out.content.unmark(opener)
    return opened


def last_name(
    delimiters: Delimiters, parts: list[str], begin: Callable[[str], object]
) -> Subroutine:
    """A name up to a marker. Where the model ends its answer with the name, it is a call."""
    try:
        return (yield Until(delimiters, parts.append))
    except Ended as ended:
        name = "".join(parts).strip()
        if ended.by_model and _NAME.fullmatch(name):
            begin(name)
            raise Ended(by_model=True) from None
        raise
