"""The grammar of formats whose calls stand between tokens: a header, a separator, arguments.

Shared by Kimi K2, DeepSeek V3 and V3.1, and PLaMo 3. White space around the arguments is no part of
them. A call may come without its section, and ends at the latest where the next call or the section
ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from server.parsing.lookahead import last_name, opens
from server.parsing.markers import NAME, Follow, Quotes
from server.parsing.message import Context, ToolFormat
from server.parsing.output import Calls, Framed
from server.parsing.reader import Grammar, JsonValue, Next, Subgrammar, Until, ignore

SPACE = " \t\r\n"
_CALL: Follow = {NAME: None}


@dataclass(frozen=True, slots=True)
class Sections:
    """The markers of one format. ``begin`` opens a call by its header, if that names one."""

    section: str
    section_end: str
    call: str
    separator: str
    call_end: str
    begin: Callable[[Calls, str], bool]
    inside: tuple[str, ...] = ()
    """Markers around each call that mean nothing by themselves."""

    @property
    def ends(self) -> tuple[str, ...]:
        """What ends a call."""
        return self.call, self.call_end, self.section_end

    def format(self) -> ToolFormat:
        inner = (self.separator, self.call_end, self.section_end, *self.inside)
        return ToolFormat((self.section, self.call), self._section, inner, "", self.section_end)

    def _section(self, opener: str, context: Context) -> Grammar:
        stray = Framed(context.out.content.write, lead=SPACE, trail=SPACE)
        between = context.lexicon.stops(self.call, self.section_end, *self.inside)
        begins = context.follow(None, self.call, *self.inside) if opener == self.section else _CALL
        if context.lexicon.is_text(opener) and not (yield from opens(opener, begins, context)):
            return
        marker = opener
        while marker != self.section_end:
            if marker == self.call:
                marker = yield from self.read(context)
            elif opener == self.call:
                return
            else:
                marker = yield Until(between, stray.write, stray=ignore)

    def read(self, context: Context) -> Subgrammar:
        """One call: returns the marker that ended it."""
        header: list[str] = []
        stops = context.lexicon.stops(self.separator, *self.ends)
        marker = yield from last_name(stops, header, lambda name: self.begin(context.calls, name))
        if not self.begin(context.calls, "".join(header).strip()):
            return marker
        if marker == self.separator:
            stops = context.lexicon.stops(*self.ends)
            marker = yield Next(stops, keep=None)
            if marker not in self.ends:
                write = context.calls.write_json
                marker = yield JsonValue(stops, write, True, self._quotes(context))
        context.calls.close()
        return marker

    def _quotes(self, context: Context) -> Quotes:
        """A string is given up where the section goes on or ends, and the output with it."""
        last = context.follow({}, self.section_end)
        following = context.follow({NAME: None}, self.call)
        return context.quotes({self.call_end: {**last, **following}, self.section_end: {}})
