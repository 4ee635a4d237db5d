"""The grammar of formats whose calls are JSON between two markers, a table of markers each.

A marker that is plain text opens only where JSON of a call follows it, and closes only outside of
strings. Without a closing marker the calls end with their list or object.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from server.parsing.json_calls import JsonCalls
from server.parsing.lookahead import opens
from server.parsing.markers import Follow
from server.parsing.message import Context, ToolFormat
from server.parsing.reader import Grammar

BEGINS: Follow = {"{": None, "[": None}
OBJECT: Follow = {'{"': None, "[": {'{"': None}}


@dataclass(frozen=True, slots=True)
class JsonBlock:
    """The markers of one format."""

    opener: str
    closer: str = ""
    others: tuple[str, ...] = ()
    """Further tokens that mean nothing by themselves."""
    names: tuple[str, ...] = ("name",)
    is_keyed: bool = False
    """An object has one key, the name, and its value is the arguments."""
    framing: str = "\n"
    aliases: tuple[str, ...] = ()
    """What may stand in place of the opener."""
    begins: Follow = field(default_factory=lambda: BEGINS)
    """What must follow an opener that is plain text."""

    @property
    def openers(self) -> tuple[str, ...]:
        return self.opener, *self.aliases

    def format(self) -> ToolFormat:
        inner = tuple(filter(None, (self.closer, *self.others)))
        return ToolFormat(self.openers, self.calls, inner, self.framing, self.closer)

    def calls(self, opener: str, context: Context) -> Grammar:
        lexicon = context.lexicon
        marker = opener
        while marker in self.openers:
            if lexicon.is_text(marker) and not (yield from opens(marker, self.begins, context)):
                return
            marker = yield from self._block(context).read()

    def _block(self, context: Context) -> JsonCalls:
        again = context.follow(OBJECT, *self.openers)
        quotes = dict.fromkeys(self.openers, OBJECT) | ({self.closer: again} if self.closer else {})
        return JsonCalls(
            context.calls,
            context.lexicon.stops(*filter(None, (*self.openers, self.closer))),
            context.out.content.write,
            closed=bool(self.closer),
            names=self.names,
            is_keyed=self.is_keyed,
            quotes=context.quotes(quotes),
        )
