"""How models write tool calls, one row per format: the frame that a grammar puts around arguments.

Sources: the chat templates named in the modules of ``server/parsing/formats``. A format without a
row can offer tools, but cannot force a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from server.generation.job import ToolPolicy
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


_HERMES = Frame('<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>", separator="\n")
_GLM47 = Frame(
    "<tool_call>NAME",
    "</tool_call>",
    style="glm_xml",
    text=("<arg_key>input</arg_key><arg_value>", "</arg_value>"),
)
_LLAMA = Frame('{"name": "NAME", "parameters": ', "}", separator="; ")
_QWEN_XML = Frame(
    "<tool_call>\n<function=NAME>\n",
    "\n</function>\n</tool_call>",
    style="qwen_xml",
    text=("<parameter=input>\n", "\n</parameter>"),
    separator="\n",
)
_LIST = Frame(
    '{"name": "NAME", "arguments": ',
    "}",
    section=("<tool_calls>[", "]</tool_calls>"),
    separator=", ",
)
_DEEPSEEK_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")

FRAMES: Mapping[str, Frame] = {
    "deepseek_v3": Frame(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n",
        "\n```<｜tool▁call▁end｜>",
        section=_DEEPSEEK_SECTION,
        separator="\n",
    ),
    "deepseek_v31": Frame(
        "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        section=_DEEPSEEK_SECTION,
    ),
    "deepseek_v32": Frame(
        '<｜DSML｜invoke name="NAME">\n',
        "</｜DSML｜invoke>\n",
        style="deepseek_xml",
        text=(
            '<｜DSML｜parameter name="input" string="true">',
            "</｜DSML｜parameter>\n",
        ),
        section=("<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>"),
    ),
    "deepseek_v4": Frame(
        '<｜DSML｜invoke name="NAME">\n',
        "</｜DSML｜invoke>\n",
        style="deepseek_xml",
        text=('<｜DSML｜parameter name="input" string="true">', "</｜DSML｜parameter>\n"),
        section=("<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>"),
    ),
    "ernie45": _HERMES,
    "glm45": Frame(
        "<tool_call>NAME\n",
        "\n</tool_call>",
        style="glm_xml",
        separator="\n",
        text=("<arg_key>input</arg_key>\n<arg_value>", "</arg_value>"),
    ),
    "glm47": _GLM47,
    "gigachat3": Frame('<|function_call|>{"name": "NAME", "arguments": ', "}", separator="\n"),
    "granite": Frame(
        '{"name": "NAME", "arguments": ', "}", section=("<|tool_call|>[", "]"), separator=", "
    ),
    "granite4": _HERMES,
    "hermes": _HERMES,
    "inkling": Frame(
        '<|content_invoke_tool_json|>{"name": "NAME", "args": ',
        "}<|end_message|>",
        separator="<|message_model|>",
    ),
    "kimi_k2": Frame(
        "<|tool_call_begin|>functions.NAME:",
        "<|tool_call_end|>",
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        before_arguments=(
            {"type": "regex", "pattern": "[0-9]{1,3}"},
            {"type": "const_string", "value": "<|tool_call_argument_begin|>"},
        ),
    ),
    "hunyuan_a13b": _LIST,
    "jamba": _LIST,
    "llama3_json": _LLAMA,
    "llama4_json": _LLAMA,
    "longcat": Frame(
        '<longcat_tool_call>\n{"name": "NAME", "arguments": ',
        "}\n</longcat_tool_call>",
        separator="\n",
    ),
    "minimax_m2": Frame(
        '<invoke name="NAME">\n',
        "</invoke>\n",
        style="minimax_xml",
        text=('<parameter name="input">', "</parameter>\n"),
        section=("<minimax:tool_call>\n", "</minimax:tool_call>"),
    ),
    "plamo3": Frame(
        "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>NAME"
        "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|>"
        "<|plamo:constrain|>json<|plamo:msg|>",
        "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
        section=("<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>"),
    ),
    "poolside_v1": _GLM47,
    "mistral": Frame("[TOOL_CALLS]NAME[ARGS]", ""),
    "nemotron_v3": _QWEN_XML,
    "phi4_mini_json": Frame(
        '{"name": "NAME", "arguments": ', "}", section=("functools[", "]"), separator=", "
    ),
    "qwen3_coder": _QWEN_XML,
    "qwen3_json": _HERMES,
    "qwen3_xml": _QWEN_XML,
    "seed_oss": Frame(
        "<seed:tool_call>\n<function=NAME>\n",
        "\n</function>\n</seed:tool_call>",
        style="qwen_xml",
        text=("<parameter=input>\n", "\n</parameter>"),
        separator="\n",
    ),
    "step3p5": _QWEN_XML,
}


def calls(frame: Frame, policy: ToolPolicy) -> Format:
    """One call, or several, to any tool; arguments match their schemas and grammars."""
    listed: Format = {
        "type": "tags_with_separator",
        "tags": [_tag(frame, tool, policy, constrained=True) for tool in policy.callable],
        "separator": frame.separator,
        "at_least_one": True,
        "stop_after_first": not policy.parallel,
    }
    return _in_section(frame, listed)


def text_with_calls(frame: Frame, policy: ToolPolicy) -> Format:
    """Free text in which any call is one of a tool; strict tools get matching arguments."""
    tags = [_tag(frame, tool, policy, constrained=is_strict(tool)) for tool in policy.callable]
    if frame.section[0]:
        inner: Format = {
            "type": "tags_with_separator",
            "tags": tags,
            "separator": frame.separator,
            "at_least_one": True,
            "stop_after_first": not policy.parallel,
        }
        begin, end = frame.section
        tags = [{"type": "tag", "begin": begin, "content": inner, "end": end}]
    return {
        "type": "triggered_tags",
        "triggers": [frame.trigger],
        "tags": tags,
        "stop_after_first": not policy.parallel,
    }


def is_strict(tool: Mapping[str, Any]) -> bool:
    return tool["function"].get("strict") is True


def is_held(tool: Mapping[str, Any], policy: ToolPolicy) -> bool:
    """Whether its arguments must match something, even where no call is forced."""
    return is_strict(tool) or policy.custom.get(tool["function"]["name"]) is not None


def _tag(frame: Frame, tool: Mapping[str, Any], policy: ToolPolicy, *, constrained: bool) -> Format:
    function = tool["function"]
    grammar = policy.custom.get(function["name"])
    if grammar is not None:
        return frame.text_call(function["name"], grammar)
    schema = function.get("parameters") if constrained else None
    return frame.call(function["name"], {"type": "object"} if schema is None else schema)


def _in_section(frame: Frame, listed: Format) -> Format:
    begin, end = frame.section
    if not begin:
        return listed
    return {
        "type": "sequence",
        "elements": [
            {"type": "const_string", "value": begin},
            listed,
            {"type": "const_string", "value": end},
        ],
    }
