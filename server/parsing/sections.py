"""The grammar of formats whose calls stand between tokens: a header, a separator, arguments.

Shared by Kimi K2 and DeepSeek V3 and V3.1. White space around the arguments is no part of them. A
call may come without its section, and ends at the latest where the next call or the section ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from server.parsing.json_scan import JsonText
from server.parsing.markers import NAME, Quotes, Stops
from server.parsing.message import Context, ToolFormat
from server.parsing.output import Calls, Framed
from server.parsing.reader import Ended, Grammar, JsonValue, Subgrammar, Until, ignore

SPACE = " \t\r\n"
_NAME = re.compile(r"[\w.:\-]{1,128}")


def last_name(stops: Stops, parts: list[str], begin: Callable[[str], object]) -> Subgrammar:
    """A name up to a marker. Where the model ends its answer with the name, it is a call."""
    try:
        return (yield Until(stops, parts.append))
    except Ended as ended:
        name = "".join(parts).strip()
        if ended.by_model and _NAME.fullmatch(name):
            begin(name)
            raise Ended(by_model=True) from None
        raise


@dataclass(frozen=True, slots=True)
class Sections:
    """The markers of one format. ``begin`` opens a call by its header, if that names one."""

    section: str
    section_end: str
    call: str
    separator: str
    call_end: str
    begin: Callable[[Calls, str], bool]

    @property
    def ends(self) -> tuple[str, ...]:
        """What ends a call."""
        return self.call, self.call_end, self.section_end

    def format(self) -> ToolFormat:
        inner = (self.separator, self.call_end, self.section_end)
        return ToolFormat((self.section, self.call), self._section, inner, "", self.section_end)

    def _section(self, opener: str, context: Context) -> Grammar:
        stray = Framed(context.out.content.write, lead=SPACE, trail=SPACE)
        between = context.lexicon.stops(self.call, self.section_end)
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
            arguments = JsonText(context.calls.write_json)
            stops = context.lexicon.stops(*self.ends)
            marker = yield JsonValue(stops, arguments.write, True, self._quotes(context))
        context.calls.close()
        return marker

    def _quotes(self, context: Context) -> Quotes:
        """A string is given up where the section goes on or ends, and the output with it."""
        last = context.follow({}, self.section_end)
        following = context.follow({NAME: None}, self.call)
        return context.quotes({self.call_end: {**last, **following}, self.section_end: {}})
