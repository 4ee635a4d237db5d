"""Outputs of each tool format, in several shapes, for ``lab/benchmarks/parsers.py``."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eaglegate.text.parsing.registry import tool_format

LINE = "def f(x):\n    return \"<a href='x'>\" + x  # {1: [2, 3]}\n"
PROSE = (
    "Speculative decoding drafts several tokens and checks them in one pass.\n"
    "- *Lossless*: the text stays the same (`temperature` 0 or not).\n\n"
)
ROW = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string"},
        "done": {"type": "boolean"},
    },
}
TOOL = {
    "type": "function",
    "function": {
        "name": "write",
        "description": "Write a file.",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "text": {"type": "string"},
                "rows": {"type": "array", "items": ROW},
            },
        },
    },
}
M3 = "]<]minimax[>["
GEMMA, FUNCTION_GEMMA = '<|"|>', "<escape>"


@dataclass(frozen=True)
class Value:
    """One argument, in the notations of the formats."""

    key: str
    value: Any

    @property
    def kind(self) -> str:
        return "string" if isinstance(self.value, str) else "array"

    @property
    def is_text(self) -> str:
        return str(isinstance(self.value, str)).lower()

    @property
    def text(self) -> str:
        return self.value if isinstance(self.value, str) else json.dumps(self.value)

    @property
    def python(self) -> str:
        return json.dumps(self.value) if isinstance(self.value, str) else repr(self.value)

    @property
    def elements(self) -> str:
        return _as_elements(self.value)


def _as_elements(value: Any) -> str:
    """Write a value in MiniMax M3's notation."""
    if isinstance(value, list):
        return "".join(f"{M3}<item>{_as_elements(item)}{M3}</item>" for item in value)
    if isinstance(value, dict):
        return "".join(f"{M3}<{k}>{_as_elements(item)}{M3}</{k}>" for k, item in value.items())
    return value if isinstance(value, str) else json.dumps(value)


def _as_bare(value: Any, quote: str) -> str:
    """Write a value in Gemma's notation."""
    if isinstance(value, list):
        return f"[{','.join(_as_bare(item, quote) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{k}:{_as_bare(item, quote)}' for k, item in value.items())}}}"
    return f"{quote}{value}{quote}" if isinstance(value, str) else json.dumps(value)


OUTPUTS: dict[str, Callable[[Value], str]] = {
    "deepseek_v3": lambda v: (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>write\n```json\n"
        f"{_json(v)}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "apertus": lambda v: f'<|tools_prefix|>[{{"write": {_json(v)}}}]<|tools_suffix|>',
    "gemma4": lambda v: f"<|tool_call>call:write{{{v.key}:{_as_bare(v.value, GEMMA)}}}<tool_call|>",
    "kimi_k3": lambda v: (
        '<|open|>tools<|sep|><|open|>call tool="write" index="1"<|sep|>'
        f'<|open|>argument key="{v.key}" type="{v.kind}"<|sep|>{v.text}<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>"
    ),
    "jamba": lambda v: f'<tool_calls>[{{"name": "write", "arguments": {_json(v)}}}]</tool_calls>',
    "lfm2": lambda v: f"<|tool_call_start|>[write({v.key}={v.python})]<|tool_call_end|>",
    "olmo3": lambda v: f"<function_calls>\nwrite({v.key}={v.python})\n</function_calls>",
    "seed_oss": lambda v: (
        f"<seed:tool_call>\n<function=write>\n<parameter={v.key}>\n"
        f"{v.text}\n</parameter>\n</function>\n</seed:tool_call>"
    ),
    "xlam": lambda v: f'[{{"name": "write", "arguments": {_json(v)}}}]',
    "deepseek_v31": lambda v: (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>write<｜tool▁sep｜>{_json(v)}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v32": lambda v: (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="write">\n'
        f'<｜DSML｜parameter name="{v.key}" string="{v.is_text}">{v.text}</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    ),
    "glm45": lambda v: (
        f"<tool_call>write\n<arg_key>{v.key}</arg_key>\n<arg_value>{v.text}</arg_value>\n</tool_call>"
    ),
    "granite": lambda v: f'<|tool_call|>[{{"name": "write", "arguments": {_json(v)}}}]',
    "granite4": lambda v: _hermes(v),
    "hermes": lambda v: _hermes(v),
    "kimi_k2": lambda v: (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.write:0"
        f"<|tool_call_argument_begin|>{_json(v)}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "llama3_json": lambda v: f'{{"name": "write", "parameters": {_json(v)}}}',
    "llama4_pythonic": lambda v: f"[write({v.key}={v.python})]",
    "minimax_m2": lambda v: (
        '<minimax:tool_call>\n<invoke name="write">\n'
        f'<parameter name="{v.key}">{v.text}</parameter>\n</invoke>\n</minimax:tool_call>'
    ),
    "mistral": lambda v: f"[TOOL_CALLS]write[ARGS]{_json(v)}",
    "openai": lambda v: (
        f"<|channel|>commentary to=functions.write <|constrain|>json<|message|>{_json(v)}<|call|>"
    ),
    "pythonic": lambda v: f"[write({v.key}={v.python})]",
    "functiongemma": lambda v: (
        f"<start_function_call>call:write{{{v.key}:{_as_bare(v.value, FUNCTION_GEMMA)}}}"
        "<end_function_call>"
    ),
    "hy_v3": lambda v: (
        f"<tool_calls><tool_call>write<tool_sep><arg_key>{v.key}</arg_key><arg_value>{v.text}"
        "</arg_value></tool_call></tool_calls>"
    ),
    "inkling": lambda v: (
        f'<|content_invoke_tool_json|>{{"name": "write", "args": {_json(v)}}}<|end_message|>'
    ),
    "k2_horizon": lambda v: (
        "<ifm|tool_calls>\n<ifm|tool_call>write\n<ifm|arg_key>{v.key}</ifm|arg_key>\n"
        f"<ifm|arg_value>{v.text}</ifm|arg_value>\n</ifm|tool_call>\n</ifm|tool_calls>"
    ),
    "minicpm5": lambda v: (
        f'<function name="write"><param name="{v.key}"><![CDATA[{v.text}]]></param></function>'
    ),
    "minimax_m3": lambda v: (
        f'{M3}<tool_call>\n{M3}<invoke name="write">\n{M3}<{v.key}>{v.elements}{M3}</{v.key}>\n'
        f"{M3}</invoke>\n{M3}</tool_call>"
    ),
    "muse_glimmer": lambda v: (
        '<|start|>assistant to=write<|message|><atem:function_calls>\n<atem:invoke name="write">\n'
        f'<atem:parameter name="{v.key}">{v.text}</atem:parameter>\n</atem:invoke>\n'
        "</atem:function_calls><|eom|>"
    ),
    "plamo3": lambda v: (
        "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|>"
        "<|plamo:begin_tool_name:plamo|>write<|plamo:end_tool_name:plamo|>"
        "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>"
        f"{_json(v)}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
        "<|plamo:end_tool_requests:plamo|>"
    ),
    "step3": lambda v: (
        "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
        f'<steptml:invoke name="write"><steptml:parameter name="{v.key}">{v.text}'
        "</steptml:parameter>"
        "</steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>"
    ),
    "qwen3_coder": lambda v: (
        f"<tool_call>\n<function=write>\n<parameter={v.key}>\n"
        f"{v.text}\n</parameter>\n</function>\n</tool_call>"
    ),
}


def _json(v: Value) -> str:
    return json.dumps({"path": "a.py", v.key: v.value})


def _hermes(v: Value) -> str:
    return f'<tool_call>\n{{"name": "write", "arguments": {_json(v)}}}\n</tool_call>'


def write_file(name: str, size: int) -> str:
    """Write one call with a file."""
    return OUTPUTS[name](Value("text", _repeat(LINE, size)))


def write_markers(name: str, size: int) -> str:
    """Write one call with a file that quotes the format's own markers, one a line."""
    markers = [marker for marker in tool_format(name).markers if marker.isprintable()]
    line = "".join(f"{LINE}# {marker} ends nothing here\n" for marker in markers)
    return OUTPUTS[name](Value("text", _repeat(line, size)))


def write_rows(name: str, size: int) -> str:
    """Write one call with a list of small objects."""
    rows = [{"id": n, "name": f"row {n}", "done": n % 3 == 0} for n in range(size // 40 + 1)]
    return OUTPUTS[name](Value("rows", rows))


def write_calls(name: str, size: int) -> str:
    """Write small calls in a row."""
    head, separator, tail = IN_A_ROW.get(name, ("", "\n", ""))
    call = OUTPUTS[name](Value("text", "x")).removeprefix(head).removesuffix(tail)
    return head + separator.join([call] * (size // len(call) + 1)) + tail


def write_prose(_name: str, size: int) -> str:
    """Write an answer without calls."""
    return _repeat(PROSE, size)


SHAPES: dict[str, Callable[[str, int], str]] = {
    "file": write_file,
    "markers": write_markers,
    "rows": write_rows,
    "calls": write_calls,
    "prose": write_prose,
}
IN_A_ROW = {
    "llama3_json": ("", "; ", ""),
    "llama4_pythonic": ("[", ", ", "]"),
    "openai": ("", "<|start|>assistant", ""),
    "pythonic": ("[", ", ", "]"),
    "xlam": ("[", ", ", "]"),
}
"""Text around, between and after calls in a row, if it is not a line break."""


def _repeat(line: str, size: int) -> str:
    return (line * (size // len(line) + 1))[:size].rstrip("\n")
