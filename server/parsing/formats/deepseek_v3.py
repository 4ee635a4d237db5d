"""DeepSeek V3 to V3.1 and R1: a section of names and JSON, fenced until V3.1.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
    ```json
    {"city": "Paris"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}  V3.1
    <｜tool▁call▁end｜><｜tool▁calls▁end｜>

Source: the chat templates of deepseek-ai/DeepSeek-V3 and DeepSeek-R1 (vllm-project/vllm keeps a
copy with tools, examples/tool_chat_template_deepseekv3.jinja). The markers are tokens; the fence
is plain text, and closes only at the end of the call. By the chat template of DeepSeek-V3.1
(examples/tool_chat_template_deepseekv31.jinja there) calls follow one another "without separators
or spaces", and content stands directly before the section.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.parsing.json_blocks import Sections
from server.parsing.json_scan import JsonText
from server.parsing.lookahead import last_name
from server.parsing.markers import Follow
from server.parsing.message import Context
from server.parsing.output import Calls
from server.parsing.reader import Subgrammar, Until, ignore
from server.parsing.tagged import Closing, Tagged


def begin(calls: Calls, header: str) -> bool:
    """The header is the function's name, and there is no call without one."""
    if header:
        calls.begin(header)
    return bool(header)


@dataclass(frozen=True, slots=True)
class _Fenced(Sections):
    """The name stands behind the separator, and a fence around the arguments."""

    def read(self, context: Context) -> Subgrammar:
        stops = context.lexicon.stops
        marker = yield Until(stops(self.separator, *self.ends), ignore)
        if marker != self.separator:
            return marker
        header: list[str] = []
        ends = stops("```", "{", *self.ends)
        marker = yield from last_name(ends, header, lambda name: self.begin(context.calls, name))
        if not self.begin(context.calls, "".join(header).strip()):
            return marker
        if marker == "```":
            marker = yield Until(stops("\n", "{", *self.ends), ignore)
        if marker not in self.ends:
            marker = yield self._arguments(marker, context)
        if marker not in self.ends:
            marker = yield Until(stops(*self.ends), ignore)
        context.calls.close()
        return marker

    def _arguments(self, opening: str, context: Context) -> Tagged:
        write = JsonText(context.calls.write_json).write
        if opening == "{":
            write(opening)
        lexicon = context.lexicon
        goes_on = context.follow({}, self.section_end) | context.follow(None, self.call)
        ends = context.follow(goes_on, self.call_end)
        last = context.follow(None, self.call_end)
        words: dict[str, Follow | None] = {"```": last, "\n```": last}
        if not lexicon.is_token(self.call_end) or context.sound:
            return Tagged(lexicon, Closing(words), write)
        words |= {**ends, lexicon.sign(self.section_end): {}}
        return Tagged(lexicon, Closing(words, forced=ends), write)


V31 = Sections(
    section="<｜tool▁calls▁begin｜>",
    section_end="<｜tool▁calls▁end｜>",
    call="<｜tool▁call▁begin｜>",
    separator="<｜tool▁sep｜>",
    call_end="<｜tool▁call▁end｜>",
    begin=begin,
).format()
FORMAT = _Fenced(
    section="<｜tool▁calls▁begin｜>",
    section_end="<｜tool▁calls▁end｜>",
    call="<｜tool▁call▁begin｜>",
    separator="<｜tool▁sep｜>",
    call_end="<｜tool▁call▁end｜>",
    begin=begin,
).format()
