"""Muse Spark and Muse Glimmer: messages to recipients, and XML calls in those that go to a tool.

    <|start|>assistant to=self<|message|>The user asks ...<|eom|>
    <|start|>assistant to=get_weather<|message|><atem:function_calls>
    <atem:invoke name="get_weather">
    <atem:parameter name="city">Paris</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eom|>
    <|start|>assistant to=user<|message|>It rains.<|eot|>

Source: the parsers that vllm-project/vllm has under these names. A message to ``self`` is thinking,
one to ``user`` or ``commentary`` is content, one to ``developer`` is dropped, and only one to a
tool holds calls. Without a recipient Spark thinks and Glimmer answers. The prompt ends with
``<|start|>assistant``, so an answer begins inside a header. A tool with a bare name is called by
its doubled name (``get_weather.get_weather``).

One routine reads the whole answer, as tool format, as reasoning format or as both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from eaglegate.text.events import Phase
from eaglegate.text.parsing.message import (
    Looking,
    ParsingContext,
    ReasoningFormat,
    ToolFormat,
    no_calls,
)
from eaglegate.text.parsing.reader import Ended, Routine, Subroutine, Until, ignore
from eaglegate.text.parsing.tags import Tags

START, MESSAGE, EOM, EOT = "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"
MARKERS = (START, MESSAGE, EOM, EOT)
ENDS = (EOM, EOT, START)
_OPENING = f"to=self{MESSAGE}"
_RECIPIENT = re.compile(r"to=([A-Za-z0-9_.\-]+)\s*\Z")
_HEADER = re.compile(r"\s{0,99}(?:to=|assistant)")
_HEADER_BEGINS = re.compile(r"\s{0,99}(?:to?|a(?:s(?:s(?:i(?:s(?:t(?:a(?:nt?)?)?)?)?)?)?)?)?\Z")
_TAGS = Tags(
    section="<atem:function_calls>",
    section_end="</atem:function_calls>",
    call="<atem:invoke name=",
    call_end="</atem:invoke>",
    parameter="<atem:parameter name=",
    parameter_end="</atem:parameter>",
    ends=ENDS,
    doubled=True,
)
_BEGINS = (_TAGS.section, _TAGS.call)
"""Markers that calls begin with. Models sometimes omit the section's tag."""


@dataclass(frozen=True, slots=True)
class Recipients:
    """Recipients of messages that are not calls; ``""`` means no recipient."""

    thinking: frozenset[str]
    content: frozenset[str]
    dropped: frozenset[str] = frozenset()

    def tools(self) -> ToolFormat:
        inner_markers = (*MARKERS, *_TAGS.format().markers)
        return ToolFormat(
            (), no_calls, inner_markers, framing="", channels=self.read, opening=_OPENING
        )

    def reasoning(self) -> ReasoningFormat:
        return ReasoningFormat(
            (), (), framing="", channels=self.read, inner=MARKERS, opening=_OPENING
        )

    def read(self, context: ParsingContext) -> Routine:
        """Read messages one after another, from inside the header of the first."""
        delimiters = context.lexicon.delimiters(START, MESSAGE, *_BEGINS)
        if context.starts_in is Phase.REASONING:
            yield from self._read_body("self", context)
        else:
            start = yield Looking(_HEADER, _HEADER_BEGINS, delimiters.tokens)
            if start == Looking.NO:
                yield from self._read_body("user", context)
            elif start in (MESSAGE, *_BEGINS):  # the header is empty
                yield from self._read_body("", context, start if start in _BEGINS else "")
        while True:
            header: list[str] = []
            try:
                while (marker := (yield Until(delimiters, header.append, stray=ignore))) == START:
                    header.clear()
            except Ended:
                if not _HEADER.match(text := "".join(header)):
                    if _TAGS.parameter in text:
                        context.calls.doubt()
                    context.out.content.write(text)
                raise
            match = _RECIPIENT.search("".join(header))
            yield from self._read_body(
                match[1] if match else "", context, marker if marker in _BEGINS else ""
            )

    def _read_body(self, recipient: str, context: ParsingContext, marker: str = "") -> Routine:
        """Read a body after ``marker``. Models sometimes write calls without ``<|message|>``."""
        out, delimiters = context.out, context.lexicon.delimiters(*ENDS)
        if recipient in self.thinking:
            out.phase = Phase.REASONING
            out.reasoning.write(marker)
            yield Until(delimiters, out.reasoning.write)
        elif recipient in self.dropped:
            yield Until(delimiters, ignore)
        elif recipient in self.content or not context.tools.channels:
            out.content.separate("\n\n")
            out.content.write(marker)
            yield Until(delimiters, out.content.write)
        else:
            out.phase = Phase.TOOL_CALL
            yield from _read_calls(context, marker)
        out.phase = Phase.CONTENT


def _read_calls(context: ParsingContext, marker: str = "") -> Subroutine:
    """Read sections up to the end of the message. Other text in the message is dropped."""
    delimiters = context.lexicon.delimiters(*_BEGINS, *ENDS)
    while marker not in ENDS:
        if marker not in _BEGINS:
            marker = yield Until(delimiters, ignore)
        if marker in _BEGINS:
            marker = yield from _TAGS.read(context, marker if marker == _TAGS.call else "")
    return marker


_SPARK = Recipients(
    frozenset({"", "self"}), frozenset({"user", "commentary"}), frozenset({"developer"})
)
_GLIMMER = Recipients(frozenset({"self"}), frozenset({"", "user"}))

SPARK, SPARK_REASONING = _SPARK.tools(), _SPARK.reasoning()
GLIMMER, GLIMMER_REASONING = _GLIMMER.tools(), _GLIMMER.reasoning()
