"""Inkling: messages in blocks, each after a token that tells its kind.

    <|message_model|><|content_thinking|>The user asks ...<|end_message|>
    <|message_model|><|content_invoke_tool_json|>
    {"name": "get_weather", "args": {"city": "Paris"}}<|end_message|>
    <|message_model|><|content_text|>It rains.<|end_message|>

Source: the parser that vllm-project/vllm has under this name. The prompt ends with
``<|message_model|>``, so an answer begins inside a header. The header may contain a name, which is
not part of the answer. Blocks of raw tool text and tool errors are content.

One routine reads the whole answer, as tool format, as reasoning format or as both.
"""

from __future__ import annotations

import re

from eaglegate.text.events import Phase
from eaglegate.text.parsing.json_calls import JsonCalls
from eaglegate.text.parsing.markers import NAME, Follow
from eaglegate.text.parsing.message import (
    CallFrame,
    ParsingContext,
    ReasoningFormat,
    ToolFormat,
    no_calls,
)
from eaglegate.text.parsing.reader import Ended, Routine, Subroutine, TextSink, Until

MESSAGE, END, END_SAMPLING = (
    "<|message_model|>",
    "<|end_message|>",
    "<|content_model_end_sampling|>",
)
TEXT, THINKING, CALL = "<|content_text|>", "<|content_thinking|>", "<|content_invoke_tool_json|>"
TOOL_TEXT, TOOL_ERROR = "<|content_invoke_tool_text|>", "<|content_tool_error|>"
KINDS = (TEXT, THINKING, CALL, TOOL_TEXT, TOOL_ERROR)
ENDS = (END, END_SAMPLING, MESSAGE)
MARKERS = (*KINDS, *ENDS)
_NAME = re.compile(r"\s{0,9}[\w.:/\-]{0,128}")


def read_channels(context: ParsingContext) -> Routine:
    """Read blocks one after another, from inside the header of the first."""
    marker = MESSAGE
    if context.starts_in is Phase.REASONING:
        marker = yield from _read_block(THINKING, context)
    while True:
        marker = yield from _read_header(context)
        while marker in KINDS:
            marker = yield from _read_block(marker, context)


def _read_header(context: ParsingContext) -> Subroutine:
    """Read a header up to its marker. Text without a name and a kind is content."""
    header = _Header(context.out.content.write)
    try:
        marker = yield Until(context.lexicon.delimiters(*MARKERS), header.write)
    except Ended:
        header.flush()
        raise
    if marker in ENDS:
        header.flush()
    return marker


class _Header:
    """Sink that holds back text that may be a name."""

    def __init__(self, sink: TextSink) -> None:
        self._sink = sink
        self._held = ""
        self._is_text = False

    def write(self, text: str) -> None:
        self._held += text
        if self._is_text or not _NAME.fullmatch(self._held):
            self._is_text = True
            self.flush()

    def flush(self) -> None:
        self._sink(self._held)
        self._held = ""


def _read_block(kind: str, context: ParsingContext) -> Subroutine:
    out = context.out
    delimiters = context.lexicon.delimiters(*MARKERS)
    if kind == CALL and context.tools.channels:
        out.phase = Phase.TOOL_CALL
        marker = yield from JsonCalls(
            context.calls,
            delimiters,
            out.content.write,
            arguments=("args", "arguments", "parameters"),
            quotes=context.quotes({END: _find_next(context), CALL: {"{": None}}),
        ).read()
    elif kind == THINKING:
        out.phase = Phase.REASONING
        marker = yield Until(delimiters, out.reasoning.write)
    else:
        out.content.separate("\n\n")
        marker = yield Until(delimiters, out.content.write)
    out.phase = Phase.CONTENT
    return marker


def _find_next(context: ParsingContext) -> Follow:
    """Return the text that must follow the end of a block inside an unclosed string."""
    kinds = context.follow(None, *KINDS)
    return context.follow({**kinds, NAME: kinds}, MESSAGE) | context.follow(None, END_SAMPLING)


FORMAT = ToolFormat((), no_calls, MARKERS, framing="", channels=read_channels, opening=THINKING)
REASONING = ReasoningFormat(
    (), (), framing="\n", channels=read_channels, inner=MARKERS, opening=THINKING
)

FRAMES = {
    "inkling": CallFrame(
        '<|content_invoke_tool_json|>{"name": "NAME", "args": ',
        "}<|end_message|>",
        separator="<|message_model|>",
    ),
}
