"""Formats of reasoning and tool calls, and the context that their routines read in.

``FRAMES`` in a module of ``text/parsing/formats`` maps a parser's name to a frame: the text that a
structural tag puts around the arguments of a forced or strict call. It follows the chat templates
named there. A format without a frame can offer tools but cannot force a call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from eaglegate.text.events import Phase
from eaglegate.text.parsing.markers import Delimiters, Follow, Lexicon, Quotes, follows
from eaglegate.text.parsing.output import Calls, NewId, Output, random_id
from eaglegate.text.parsing.reader import Ended, Routine, Subroutine, Until, Want

if TYPE_CHECKING:
    from eaglegate.text.grammars.text_grammar import TextGrammar

CallRoutine = Callable[[str, "ParsingContext"], Routine]
"""Reads calls from after their opening marker up to where content begins again."""
MessageRoutine = Callable[["ParsingContext"], Routine]


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Format of a model's thinking.

    While the model thinks, only ``ends`` are structure: a tool call quoted there is thinking.
    Plain-text ``starts`` count only as the first text of the answer.
    """

    starts: tuple[str, ...]
    ends: tuple[str, ...]
    framing: str = "\n"
    """White space that the template writes inside the markers and after the end marker."""
    label: str = ""
    """Label that the model writes between a start marker and the thinking."""
    inline: bool = False
    """True if the thinking is delivered as content, with its markers."""
    channels: MessageRoutine | None = None
    """Reads the whole message, if it is more than text between markers."""
    inner: tuple[str, ...] = ()
    """Other markers of such a message."""
    answer: tuple[str, str] | None = None
    """Markers that some models write around the answer after their thinking."""
    forgets_end: bool = False
    """True if the model is known to omit the end marker before a tool call."""
    suffixed: Callable[[str], ReasoningFormat] | None = None
    """Makes the format for tokenizers whose markers end with a suffix."""
    untokened: ReasoningFormat | None = None
    """Format of models whose tokenizers lack the start marker."""
    texts: tuple[str, ...] = ()
    """Special tokens that are text, as in ``ToolFormat``."""
    opening: str = ""
    """End of a prompt that opens the thinking, if it is more than a start marker."""

    @property
    def openings(self) -> tuple[str, ...]:
        """Ends of prompts that open the thinking."""
        labels = (start + self.label for start in self.starts if self.label)
        return tuple(filter(None, (self.opening, *self.starts, *labels)))

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
    """Other markers, known only between an opener and its end."""
    framing: str = "\n"
    """White space that the template writes around calls. It is not content."""
    closer: str = ""
    """Marker that closes a call or section. Without one the end of the answer does."""
    fragment: str = ""
    """Token that plain-text markers are written with."""
    fragmented: ToolFormat | None = None
    """The format for tokenizers that have this token: FRAGMENT stands for it."""
    leads: tuple[str, ...] = ()
    """First characters of the content that open a call and remain in the text."""
    new_id: NewId = random_id
    suffixed: Callable[[str], ToolFormat] | None = None
    """Makes the format for tokenizers whose markers end with a suffix."""
    texts: tuple[str, ...] = ()
    """Special tokens that are treated as text, because markers are written with them."""
    channels: MessageRoutine | None = None
    """Reads the whole message, as in ``ReasoningFormat``."""
    ends_thinking: tuple[str, ...] = ()
    """Plain-text openers that may end thinking whose end the model forgets, as tokens do."""
    parts: tuple[str, ...] = ()
    """Markers of ``inner`` that occur only inside a call. Outside, the call before was broken."""
    head: Callable[[ParsingContext], Follow] | None = None
    """Returns the words that calls without a marker begin with."""
    opening: str = ""
    """As in ``ReasoningFormat``, for a format whose ``channels`` read the thinking as well."""

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
    """Lexicon, output and formats that a routine works with."""

    lexicon: Lexicon
    out: Output
    tools: ToolFormat
    reasoning: ReasoningFormat
    starts_in: Phase
    sound: bool = False
    """True if a grammar constrains calls, so that strings are closed and may quote tokens."""

    def remember_quotes(
        self, key: Hashable, closing: Callable[[], Mapping[str, Follow | None]]
    ) -> Quotes:
        """Return ``quotes``, made once for each vocabulary and ``key``."""
        quotes: Quotes = self.lexicon.remember(
            ("quotes", key, self.sound), lambda: self.quotes(closing())
        )
        return quotes

    def quotes(self, closing: Mapping[str, Follow | None] = MappingProxyType({})) -> Quotes:
        """Select the marker tokens of ``closing`` that may end an unclosed string."""
        may_end = {} if self.sound else closing
        signs = {self.lexicon.sign(m): f for m, f in may_end.items() if self.lexicon.is_token(m)}
        return Quotes(self.lexicon, signs)

    def rehearse(self) -> ParsingContext:
        """Make a context for a trial reading, which delivers nothing."""
        return replace(self, out=self.out.rehearse())

    def follow(self, next_words: Follow | None, *markers: str) -> Follow:
        """Return a ``Follow`` of any of ``markers``, as token or text, and then ``next_words``."""
        return dict.fromkeys(self.lexicon.words(*markers), next_words)

    @property
    def calls(self) -> Calls:
        return self.out.calls

    def stray(self, marker: str) -> None:
        """Drop a marker token outside calls. If it is part of a call, doubt the last call."""
        if marker in self.tools.parts:
            self.calls.doubt()


TagNode = dict[str, Any]
"""Node of a structural tag."""


MAX_WHITESPACE = 8
"""Longest white space between two JSON tokens. Without it a model can write line breaks forever."""


def matching(schema: Any) -> TagNode:
    """Return a node for JSON that matches ``schema``."""
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MAX_WHITESPACE}


@dataclass(frozen=True, slots=True)
class CallFrame:
    """Text around one call: ``begin`` with NAME filled in, the arguments, ``end``."""

    begin: str
    end: str
    style: str = "json"
    """xgrammar's name for the style of the arguments."""
    section: tuple[str, str] = ("", "")
    """Text around all calls of an answer."""
    separator: str = ""
    """Text between two calls."""
    before_arguments: tuple[TagNode, ...] = ()
    """Tags between ``begin`` and the arguments, for text that is not fixed."""

    text: tuple[str, str] = ('{"input": "', '"}')
    """Text around the input of a custom tool."""

    def call(self, name: str, schema: Any) -> TagNode:
        return self._call(name, matching(schema) | {"style": self.style})

    def text_call(self, name: str, grammar: TextGrammar) -> TagNode:
        """Return a node for a call of a custom tool, whose only argument is plain text."""
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
        """Text that opens a call, or the section of calls."""
        return self.section[0] or self.begin.partition("NAME")[0]


_NAME = re.compile(r"[\w.:\-]{1,128}")


class Ahead:
    """Want that checks if the text continues with ``follow``. Ends with YES or NO, takes nothing.

    With ``lexicon``, marker tokens count as their signs. Otherwise no text continues after one.
    """

    __slots__ = ("_follow", "lexicon", "tokens")
    YES, NO = "yes", "no"

    def __init__(
        self, follow: Follow, delimiters: Delimiters, lexicon: Lexicon | None = None
    ) -> None:
        self._follow = follow
        self.lexicon = lexicon
        self.tokens = delimiters.tokens

    def take(self, text: str, has_more: bool) -> tuple[str | None, str]:
        verdict = follows(text, 0, self._follow, has_more) if has_more or text.strip() else False
        if verdict is None:
            return None, text
        return self.YES if verdict else self.NO, text

    def plain(self, text: str) -> None:
        """Do nothing: a marker token is no text to check."""

    def truncate(self, text: str) -> tuple[str | None, str]:
        return self.NO, text


class Looking:
    """Want that checks if the text begins with ``pattern``. Ends with YES or NO, takes nothing.

    ``beginning`` matches text that may still match ``pattern``. A marker in ``tokens`` ends it too.
    With ``lexicon``, marker tokens count as their signs, so any of them ends it.
    """

    __slots__ = ("_beginning", "_whole", "lexicon", "tokens")
    YES, NO = Ahead.YES, Ahead.NO

    def __init__(
        self,
        pattern: re.Pattern[str],
        beginning: re.Pattern[str],
        tokens: frozenset[str] = frozenset(),
        lexicon: Lexicon | None = None,
    ) -> None:
        self._whole = pattern
        self._beginning = beginning
        self.tokens = tokens
        self.lexicon = lexicon

    def take(self, text: str, has_more: bool) -> tuple[str | None, str]:
        if self._whole.match(text):
            return self.YES, text
        return (None if has_more and self._beginning.match(text) else self.NO), text

    def plain(self, text: str) -> None:
        """Do nothing: a marker token is no text to check."""

    def truncate(self, text: str) -> tuple[str | None, str]:
        return self.NO, text


class Skipping(Looking):
    """Want that takes ``pattern`` if the text begins with it and no longer match is possible."""

    __slots__ = ()

    def take(self, text: str, has_more: bool) -> tuple[str | None, str]:
        if has_more and self._beginning.match(text):
            return None, text
        match = self._whole.match(text)
        return (self.YES, text[match.end() :]) if match else (self.NO, text)


_REST = re.compile(r"\s*[\]},:\"]")
"""Text that cannot begin a call."""
_REST_BEGINS = re.compile(r"\s*\Z")


def doubt_cut_call(context: ParsingContext) -> Routine:
    """Doubt the last call if an opening marker split it: the text after it is its rest."""
    if context.calls.num and (yield Looking(_REST, _REST_BEGINS)) == Looking.YES:
        context.calls.doubt()


def opens(opener: str, follow: Follow, context: ParsingContext) -> Generator[Want, str, bool]:
    """Return True if ``follow`` comes after a plain-text ``opener``, which then opens a call."""
    try:
        lexicon = context.lexicon
        is_call = (yield Ahead(follow, lexicon.delimiters(), lexicon)) == Ahead.YES
    except Ended:
        context.out.content.unmark(opener)
        raise
    if not is_call:
        context.out.content.unmark(opener)
    return is_call


def last_name(
    delimiters: Delimiters, parts: list[str], begin: Callable[[str], object]
) -> Subroutine:
    """Read a name up to a marker. A name at the end of the model's answer is a call."""
    try:
        return (yield Until(delimiters, parts.append))
    except Ended as error:
        name = "".join(parts).strip()
        if error.by_model and _NAME.fullmatch(name):
            begin(name)
            raise Ended(by_model=True) from None
        raise
