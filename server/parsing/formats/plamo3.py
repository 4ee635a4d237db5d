"""PLaMo 3: a name and JSON, each between markers that three tokens make.

    <|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|>
    <|plamo:begin_tool_name:plamo|>get_weather<|plamo:end_tool_name:plamo|>
    <|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{"city": "Paris"}
    <|plamo:end_tool_arguments:plamo|>
    <|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>

Source: the parsers that vllm-project/vllm has under this name. ``<|plamo:begin_``, ``<|plamo:end_``
and ``:plamo|>`` are special tokens and the words between them are not, so that all markers are
looked for in the text.
"""

from __future__ import annotations

from dataclasses import replace

from server.parsing.json_blocks import Sections
from server.parsing.message import ReasoningFormat
from server.parsing.output import Calls

_PARTS = ("<|plamo:begin_", "<|plamo:end_", ":plamo|>", "<|plamo:constrain|>", "<|plamo:msg|>")
_NAME_END = "<|plamo:end_tool_name:plamo|>"


def _begin(calls: Calls, header: str) -> bool:
    """The header is a name, its end, and the beginning of the arguments."""
    if name := header.partition(_NAME_END)[0].strip():
        calls.begin(name)
    return bool(name)


FORMAT = replace(
    Sections(
        section="<|plamo:begin_tool_requests:plamo|>",
        section_end="<|plamo:end_tool_requests:plamo|>",
        call="<|plamo:begin_tool_name:plamo|>",
        separator="<|plamo:msg|>",
        call_end="<|plamo:end_tool_arguments:plamo|>",
        begin=_begin,
        inside=("<|plamo:begin_tool_request:plamo|>", "<|plamo:end_tool_request:plamo|>"),
    ).format(),
    texts=_PARTS,
)
REASONING = ReasoningFormat(
    ("<|plamo:begin_think:plamo|>",), ("<|plamo:end_think:plamo|>",), framing="", texts=_PARTS
)
