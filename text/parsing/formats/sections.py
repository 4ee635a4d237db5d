"""Sections of names and JSON between tokens: Kimi K2, DeepSeek V3 to V3.1 and R1, PLaMo 3.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0
    <|tool_call_argument_begin|>{"city": "Beijing"}<|tool_call_end|><|tool_calls_section_end|>

Source: MoonshotAI/Kimi-K2 docs/tool_call_guidance.md ("Manually Parsing Tool Calls") and the chat
templates of Kimi-K2-Instruct and Kimi-K2-Thinking, which write no white space around the markers.
The header is the model's own call id. It is passed on, because the next prompt must repeat it.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
    ```json
    {"city": "Paris"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}  V3.1
    <｜tool▁call▁end｜><｜tool▁calls▁end｜>

Source: the chat templates of deepseek-ai/DeepSeek-V3 and DeepSeek-R1 (vllm-project/vllm keeps a
copy with tools, examples/tool_chat_template_deepseekv3.jinja). The markers are tokens. The fence is
plain text and closes only at the end of the call. In the chat template of DeepSeek-V3.1
(examples/tool_chat_template_deepseekv31.jinja there) calls follow each other "without separators
or spaces", and content directly precedes the section.

    <|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|>
    <|plamo:begin_tool_name:plamo|>get_weather<|plamo:end_tool_name:plamo|>
    <|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{"city": "Paris"}
    <|plamo:end_tool_arguments:plamo|>
    <|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>

Source: the parser of PLaMo 3 in vllm-project/vllm. ``<|plamo:begin_``, ``<|plamo:end_``
and ``:plamo|>`` are special tokens, but the words between them are not, so all markers are searched
for in the text.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass, replace

from eaglegate.text.parsing.json_blocks import Sections
from eaglegate.text.parsing.json_scan import JsonText
from eaglegate.text.parsing.markers import NAME, Follow
from eaglegate.text.parsing.message import CallFrame, ParsingContext, ReasoningFormat, last_name
from eaglegate.text.parsing.output import Calls
from eaglegate.text.parsing.reader import JsonValue, Next, Subroutine, Until, Want, ignore
from eaglegate.text.parsing.tagged import Closing, Tagged

_HEADER = re.compile(r"(?:functions\.)?(?P<name>.+?)(?P<index>:\d+)?\Z", re.DOTALL)

_NO_NAME = re.compile(r"""\A\Z|[\s"{}\[\],]""")
_INDEX = re.compile(r"[:._!#-]?[0-9]+\Z")


def _begin_kimi(calls: Calls, header: str) -> bool:
    match = _HEADER.match(header)
    if match is None or _NO_NAME.search(header):
        return False
    name = match["name"]
    if calls.names and not calls.find(name):
        name = _find_offered(header, calls) or name
    has_id = match["index"] and header not in calls.ids
    calls.begin(name, header if has_id else f"functions.{name}:{calls.num}")
    return True


def _find_offered(header: str, calls: Calls) -> str:
    """Return the tool that an inexact header means: clients write ids without dots and colons."""
    tool_name = header.removeprefix("functions").lstrip("._")
    for name in (tool_name, _INDEX.sub("", tool_name), _INDEX.sub("", header)):
        if calls.find(name):
            return name
    return ""


KIMI_K2 = Sections(
    section="<|tool_calls_section_begin|>",
    section_end="<|tool_calls_section_end|>",
    call="<|tool_call_begin|>",
    separator="<|tool_call_argument_begin|>",
    call_end="<|tool_call_end|>",
    begin=_begin_kimi,
    others=(("<|tool_call_section_begin|>", "<|tool_call_section_end|>"),),
).format()


def _begin_deepseek(calls: Calls, header: str) -> bool:
    """Begin a call whose header is the function's name. Return False without a name."""
    if not _NO_NAME.search(header):
        calls.begin(header)
        return True
    return False


_FENCE = "` \t\r\n"
KIND = "function"
"""Word that V3 writes before the separator, where V3.1 writes the name."""


@dataclass(frozen=True, slots=True)
class _Versions(Sections):
    """Both forms of a call, because models of one version sometimes write the other's form."""

    def read(self, context: ParsingContext) -> Subroutine:
        delimiters, calls = context.lexicon.delimiters, context.calls
        parts: list[str] = []
        marker = yield from last_name(
            delimiters(self.separator, *self.ends),
            parts,
            lambda name: name != KIND and self.begin(calls, name),
        )
        name, is_fenced = "".join(parts).strip(), False
        has_begun = name != KIND and self.begin(calls, name)
        if marker == self.separator:
            marker = yield Next(delimiters(*self.ends), keep=None)
            is_fenced = marker == "`" or (not has_begun and marker != "{")
            if not has_begun and is_fenced:
                name, marker = yield from self._name(context)
            has_begun = has_begun or self.begin(calls, name)
        if not has_begun:
            if name:
                calls.doubt()
            return marker
        if is_fenced and marker in ("`", "```"):
            marker = yield Until(delimiters("\n", "{", *self.ends), ignore)
        if marker not in self.ends:
            marker = yield self._arguments(marker, context) if is_fenced else self._json(context)
        if marker not in self.ends:
            tail: list[str] = []
            marker = yield Until(delimiters(*self.ends), tail.append)
            if "".join(tail).strip(_FENCE):
                calls.spoil()
        calls.close(is_fragile=not calls.written)
        return marker

    def _name(self, context: ParsingContext) -> Generator[Want, str, tuple[str, str]]:
        """Read V3's name after the separator. Return it and the marker after it."""
        parts: list[str] = []
        ends = context.lexicon.delimiters("```", "{", *self.ends)
        marker = yield from last_name(ends, parts, lambda name: self.begin(context.calls, name))
        return "".join(parts).strip(), marker

    def _json(self, context: ParsingContext) -> JsonValue:
        delimiters = context.lexicon.delimiters(*self.ends)
        return JsonValue(delimiters, context.calls.write_json, True, self._quotes(context))

    def _arguments(self, opening: str, context: ParsingContext) -> Tagged:
        """Return a want for arguments in a fence, whose strings are not protected as in V3.1."""
        write = JsonText(context.calls.write_json).write
        if opening == "{":
            write(opening)
        closing: Closing = context.lexicon.remember(
            (self, context.sound), lambda: self._find_closing(context)
        )
        return Tagged(context.lexicon, closing, write)

    def _again(self, context: ParsingContext) -> Follow:
        """List the text that may follow a call without an end marker."""
        return context.follow({NAME: None}, self.call) | context.follow({}, self.section_end)

    def _find_closing(self, context: ParsingContext) -> Closing:
        lexicon = context.lexicon
        next_words = context.follow({}, self.section_end) | context.follow(None, self.call)
        ends = context.follow(next_words, self.call_end)
        call_end = context.follow(None, self.call_end)
        words: dict[str, Follow | None] = {
            "```": call_end,
            "\n```": {**call_end, **self._again(context)},
        }
        if not lexicon.is_token(self.call_end) or context.sound:
            return Closing(words)
        words |= {**ends, lexicon.sign(self.section_end): {}}
        return Closing(words, forced=ends)


DEEPSEEK_V3 = _Versions(
    section="<｜tool▁calls▁begin｜>",
    section_end="<｜tool▁calls▁end｜>",
    call="<｜tool▁call▁begin｜>",
    separator="<｜tool▁sep｜>",
    call_end="<｜tool▁call▁end｜>",
    begin=_begin_deepseek,
).format()

_PLAMO_PARTS = (
    "<|plamo:begin_",
    "<|plamo:end_",
    ":plamo|>",
    "<|plamo:constrain|>",
    "<|plamo:msg|>",
)
_PLAMO_NAME_END = "<|plamo:end_tool_name:plamo|>"


def _begin_plamo(calls: Calls, header: str) -> bool:
    """Begin a call whose header is a name, its end marker and the start of the arguments."""
    return _begin_deepseek(calls, header.partition(_PLAMO_NAME_END)[0].strip())


PLAMO3 = replace(
    Sections(
        section="<|plamo:begin_tool_requests:plamo|>",
        section_end="<|plamo:end_tool_requests:plamo|>",
        call="<|plamo:begin_tool_name:plamo|>",
        separator="<|plamo:msg|>",
        call_end="<|plamo:end_tool_arguments:plamo|>",
        begin=_begin_plamo,
        inside=("<|plamo:begin_tool_request:plamo|>", "<|plamo:end_tool_request:plamo|>"),
    ).format(),
    texts=_PLAMO_PARTS,
)
PLAMO3_REASONING = ReasoningFormat(
    ("<|plamo:begin_think:plamo|>",), ("<|plamo:end_think:plamo|>",), framing="", texts=_PLAMO_PARTS
)

_DEEPSEEK_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
FRAMES = {
    "deepseek_v3": CallFrame(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n",
        "\n```<｜tool▁call▁end｜>",
        section=_DEEPSEEK_SECTION,
        separator="\n",
    ),
    "deepseek_v31": CallFrame(
        "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        section=_DEEPSEEK_SECTION,
    ),
    "kimi_k2": CallFrame(
        "<|tool_call_begin|>functions.NAME:",
        "<|tool_call_end|>",
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        before_arguments=(
            {"type": "regex", "pattern": "[0-9]{1,3}"},
            {"type": "const_string", "value": "<|tool_call_argument_begin|>"},
        ),
    ),
    "plamo3": CallFrame(
        "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>NAME"
        "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|>"
        "<|plamo:constrain|>json<|plamo:msg|>",
        "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
        section=("<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>"),
    ),
}
