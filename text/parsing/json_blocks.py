"""Routines for formats whose calls are JSON between markers. A format is a table of markers.

``JsonBlock``: names and arguments are JSON. A plain-text marker opens a call only if a call's JSON
follows it, and closes a call only outside strings. Without a closing marker the calls end with
their list or object.

``Sections``: a header, a separator and arguments, between tokens (Kimi K2, DeepSeek V3 and V3.1,
PLaMo 3). White space around the arguments is not part of them. A call may occur without a section.
It ends at the latest with the next call or the end of the section.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from eaglegate.text.parsing.json_calls import JsonCalls, skip_fence
from eaglegate.text.parsing.markers import NAME, Delimiters, Follow, Quotes
from eaglegate.text.parsing.message import (
    Ahead,
    ParsingContext,
    Skipping,
    ToolFormat,
    doubt_cut_call,
    last_name,
    opens,
)
from eaglegate.text.parsing.output import Calls, Framed
from eaglegate.text.parsing.reader import DONE, Ended, JsonValue, Next, Routine, Subroutine, Until

if TYPE_CHECKING:
    from eaglegate.text.parsing.tags import Tags

SPACE = " \t\r\n"
_LAST_WORD = re.compile(r"\S{1,200}\s*\Z")
_NAMED: Follow = {NAME: None}
_MEMBER: Follow = {'"': None}
BEGINS: Follow = {"{": _MEMBER, "[": {"{": _MEMBER, "]": None}}
OBJECT: Follow = {'{"': None, "[": {'{"': None}}


@dataclass(frozen=True, slots=True)
class JsonBlock:
    """Markers of one format."""

    opener: str
    closer: str = ""
    others: tuple[str, ...] = ()
    """Other tokens, which mean nothing by themselves."""
    names: tuple[str, ...] = ("name",)
    is_keyed: bool = False
    """True if an object has one key, the name, whose value is the arguments."""
    framing: str = "\n"
    aliases: tuple[str, ...] = ()
    """Markers that may replace the opener."""
    begins: Follow = field(default_factory=lambda: BEGINS)
    """Text that must follow a plain-text opener."""
    load_tags: Callable[[], Tags] | None = None
    """Loads the tags that some models write between the markers instead of JSON."""

    @property
    def openers(self) -> tuple[str, ...]:
        return self.opener, *self.aliases

    def format(self) -> ToolFormat:
        inner_markers = tuple(filter(None, (self.closer, *self.others)))
        return ToolFormat(self.openers, self.calls, inner_markers, self.framing, self.closer)

    def calls(self, opener: str, context: ParsingContext) -> Routine:
        lexicon = context.lexicon
        marker = opener
        while marker in self.openers:
            if lexicon.is_text(marker) and not (yield from opens(marker, self.begins, context)):
                return
            yield from doubt_cut_call(context)
            marker = yield from self._block(marker, context).read()

    def _block(self, marker: str, context: ParsingContext) -> JsonCalls:
        unmark = context.out.content.unmark
        key, lexicon = (self.openers, self.closer), context.lexicon
        quotes = context.remember_quotes(key, lambda: self._find_ends(context))
        return JsonCalls(
            context.calls,
            lexicon.delimiters(*filter(None, (*self.openers, self.closer))),
            context.out.content.write,
            closed=bool(self.closer),
            names=self.names,
            is_keyed=self.is_keyed,
            quotes=quotes,
            tags=partial(self._read_tags, self.load_tags, context) if self.load_tags else None,
            unmark=(lambda text: unmark(marker + text)) if lexicon.is_text(marker) else None,
        )

    def _read_tags(self, load: Callable[[], Tags], context: ParsingContext) -> Subroutine:
        """Read calls of offered tools in tags. Return the marker after them, or DONE."""
        tags = load()
        head: Follow = {tags.call: tags.head(context.lexicon, context.calls.names or (NAME,))}
        if (yield Ahead(head, context.lexicon.delimiters())) != Ahead.YES:
            return DONE
        return (yield from tags.read(context))

    def _find_ends(self, context: ParsingContext) -> Mapping[str, Follow | None]:
        """Return the markers that may end an unclosed string, with the text that must follow."""
        next_call = context.follow(OBJECT, *self.openers)
        return dict.fromkeys(self.openers, OBJECT) | (
            {self.closer: next_call} if self.closer else {}
        )


@dataclass(frozen=True, slots=True)
class Sections:
    """Markers of one format. ``begin`` opens a call if the header names one."""

    section: str
    section_end: str
    call: str
    separator: str
    call_end: str
    begin: Callable[[Calls, str], bool]
    inside: tuple[str, ...] = ()
    """Markers around each call that mean nothing by themselves."""
    others: tuple[tuple[str, str], ...] = ()
    """Markers that models write instead of the section's own."""

    @property
    def ends(self) -> tuple[str, ...]:
        """Markers that end a call."""
        return self.call, self.call_end, *self.section_ends

    @property
    def sections(self) -> tuple[str, ...]:
        return self.section, *(opening for opening, _ in self.others)

    @property
    def section_ends(self) -> tuple[str, ...]:
        return self.section_end, *(closing for _, closing in self.others)

    def format(self) -> ToolFormat:
        inner = (self.separator, self.call_end, *self.section_ends, *self.inside)
        openers = (*self.sections, self.call)
        parts = (self.separator,)
        return ToolFormat(openers, self._section, inner, "", self.section_end, parts=parts)

    def _section(self, opener: str, context: ParsingContext) -> Routine:
        stray = Framed(context.out.content.write, lead=SPACE, trail=SPACE)
        delimiters = context.lexicon.delimiters(
            self.call, self.separator, *self.section_ends, *self.inside
        )
        next_words = (
            _NAMED if opener == self.call else context.follow(None, self.call, *self.inside)
        )
        if context.lexicon.is_text(opener) and not (yield from opens(opener, next_words, context)):
            return
        marker = opener
        while marker not in self.section_ends:
            if marker == self.call:
                marker = yield from self.read(context)
            elif opener == self.call:
                return
            else:
                marker = yield from self._between(delimiters, stray, context)

    def _between(
        self, delimiters: Delimiters, stray: Framed, context: ParsingContext
    ) -> Subroutine:
        """Read text between calls: content, or a header without its opening token."""
        parts: list[str] = []
        try:
            marker = yield Until(delimiters, parts.append, stray=context.stray)
        except Ended:
            stray.write("".join(parts))
            raise
        text, header = "".join(parts), ""
        if marker == self.separator and (match := _LAST_WORD.search(text)):
            text, header = text[: match.start()], match[0]
        if text:
            stray.write(text)
        if not header or not self.begin(context.calls, header.strip()):
            if marker == self.separator:
                context.calls.doubt()
            return marker
        return (yield from self._finish(context))

    def _finish(self, context: ParsingContext) -> Subroutine:
        """Read the rest of a call, from after its separator."""
        marker = yield from self._arguments_text(context)
        context.calls.close(is_fragile=not context.calls.written)
        return marker

    def read(self, context: ParsingContext) -> Subroutine:
        """Read one call, or a call written as an object. Return the marker that ended it."""
        header: list[str] = []
        delimiters = context.lexicon.delimiters(self.separator, *self.ends)
        if (yield Next(delimiters, keep=None)) == "{":
            ends, write = context.lexicon.delimiters(*self.ends), context.out.content.write
            quotes = self._quotes(context)
            return (yield from JsonCalls(context.calls, ends, write, quotes=quotes).read())
        marker = yield from last_name(
            delimiters, header, lambda name: self.begin(context.calls, name)
        )
        text, inline = "".join(header), ""
        if marker != self.separator:  # some models omit the separator
            text, brace, inline = text.partition("{")
            inline = brace + inline
        if not self.begin(context.calls, text.strip()):
            if text.strip():
                context.calls.doubt()
            return marker
        if marker == self.separator:
            return (yield from self._finish(context))
        if inline:
            context.calls.write_json(inline.rstrip())
        context.calls.close(is_spoiled=marker == self.call and not inline, is_fragile=not inline)
        return marker

    def _arguments_text(self, context: ParsingContext) -> Subroutine:
        """Read the arguments after the separator, fenced or not. Return the marker after them."""
        delimiters, write = context.lexicon.delimiters(*self.ends), context.calls.write_json
        marker = yield Next(delimiters, keep=None)
        is_fenced = marker == "`" and (yield skip_fence(delimiters)) == Skipping.YES
        if is_fenced:
            marker = yield Next(delimiters, keep=None)
        if marker in self.ends:
            return marker
        marker = yield JsonValue(delimiters, write, not is_fenced, self._quotes(context))
        if marker in self.ends:
            return marker
        tail: list[str] = []
        marker = yield Until(delimiters, tail.append)
        if "".join(tail).strip("` \t\r\n"):
            context.calls.spoil()
        return marker

    def _quotes(self, context: ParsingContext) -> Quotes:
        """Return the markers that may end an unclosed string, before valid text."""

        def find() -> Mapping[str, Follow | None]:
            section_end = context.follow({}, *self.section_ends)
            next_call = context.follow({NAME: None}, self.call)
            closing: dict[str, Follow | None] = {end: {} for end in self.section_ends}
            return {self.call_end: {**section_end, **next_call}, **closing}

        return context.remember_quotes(self, find)
