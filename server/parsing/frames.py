"""The frame that a grammar puts around the arguments of a forced or strict tool call.

``FRAMES`` of a module in ``server/parsing/formats`` has one by the name of a parser, as the chat
templates named there write calls. A format without one can offer tools, but cannot force a call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from server.generation.text_grammar import TextGrammar

Format = dict[str, Any]
"""A node of a structural tag."""


MAX_WHITESPACE = 8
"""Between two tokens of JSON: without a bound a model can write line breaks until its limit."""


def matching(schema: Any) -> Format:
    """JSON that matches ``schema``."""
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MAX_WHITESPACE}


@dataclass(frozen=True, slots=True)
class Frame:
    """One call is ``begin`` with NAME filled in, the arguments, ``end``."""

    begin: str
    end: str
    style: str = "json"
    """How arguments are written, by xgrammar's name for it."""
    section: tuple[str, str] = ("", "")
    """What stands around all calls of an answer."""
    separator: str = ""
    """What stands between two calls."""
    before_arguments: tuple[Format, ...] = ()
    """What stands between ``begin`` and the arguments, where that is no fixed text."""

    text: tuple[str, str] = ('{"input": "', '"}')
    """What stands around the text of a custom tool."""

    def call(self, name: str, schema: Any) -> Format:
        arguments = matching(schema)
        if self.style != "json":
            arguments = {"type": "json_schema", "json_schema": schema, "style": self.style}
        return self._call(name, arguments)

    def text_call(self, name: str, grammar: TextGrammar) -> Format:
        """A call of a custom tool, whose one argument is a text."""
        begin, end = ({"type": "const_string", "value": part} for part in self.text)
        text = {"type": "grammar", "grammar": grammar.ebnf(in_json=self.style == "json")}
        return self._call(name, {"type": "sequence", "elements": [begin, text, end]})

    def _call(self, name: str, arguments: Format) -> Format:
        content = arguments
        if self.before_arguments:
            content = {"type": "sequence", "elements": [*self.before_arguments, arguments]}
        begin = self.begin.replace("NAME", name)
        return {"type": "tag", "begin": begin, "content": content, "end": self.end}

    @property
    def trigger(self) -> str:
        """The text with which a call, or the section of calls, opens."""
        return self.section[0] or self.begin.partition("NAME")[0]
