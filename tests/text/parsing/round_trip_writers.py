"""Answers as the templates of models write them, for every format of the golden cases."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Call = tuple[str, Mapping[str, Any]]
"""A name and arguments."""
Write = Callable[[Call], str]

M3 = "]<]minimax[>["
OPEN, CLOSE, SEP = "<|open|>", "<|close|>", "<|sep|>"


@dataclass(frozen=True)
class Written:
    """One format's way to write calls: ``one`` writes a call, the other fields stand around and
    between calls."""

    one: Write
    head: str = ""
    tail: str = ""
    separator: str = ""
    line: str | None = "\n"
    """Separator between content and calls; None where a call is the whole answer."""
    before: str = ""
    """Text before content."""

    def write(self, content: str, calls: Sequence[Call]) -> str:
        text = f"{self.before}{content}{self.line}" if content else ""
        return f"{text}{self.head}{self.separator.join(map(self.one, calls))}{self.tail}"


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else as_json(value)


def as_python(value: Any) -> str:
    """Strings in double quotes, as models write them."""
    if isinstance(value, list):
        return f"[{', '.join(map(as_python, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{as_json(k)}: {as_python(v)}' for k, v in value.items())}}}"
    return as_json(value) if isinstance(value, str) else repr(value)


def around(template: str):
    """JSON arguments in a text with NAME and JSON in it."""
    return lambda call: template.replace("NAME", call[0]).replace("JSON", as_json(call[1]))


def named(before: str = "", after: str = "", arguments: str = "arguments", key: str = "name"):
    """A JSON object with a name and arguments."""
    return lambda call: (
        f'{before}{{"{key}": "{call[0]}", "{arguments}": {as_json(call[1])}}}{after}'
    )


@dataclass(frozen=True)
class Tagged:
    """Arguments in tags: ``head`` has NAME in it, ``parameter`` KEY, VALUE, KIND and STRING."""

    head: str
    parameter: str
    tail: str
    as_value: Callable[[Any], str] = as_text

    def __call__(self, call: Call) -> str:
        name, arguments = call
        parts = (
            self.parameter.replace("KEY", key)
            .replace("KIND", _KINDS[type(value)])
            .replace("STRING", str(isinstance(value, str)).lower())
            .replace("VALUE", self.as_value(value))
            for key, value in arguments.items()
        )
        return self.head.replace("NAME", name) + "".join(parts) + self.tail


@dataclass(frozen=True)
class Within:
    """A section around each call."""

    head: str
    one: Tagged
    tail: str

    def __call__(self, call: Call) -> str:
        return f"{self.head}{self.one(call)}{self.tail}"


_KINDS = {
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
    type(None): "null",
}


def dsml(blank: str = "") -> Tagged:
    mark = "｜DSML｜" + blank
    return Tagged(
        f'<{mark}invoke name="NAME">\n',
        f'<{mark}parameter name="KEY" string="STRING">VALUE</{mark}parameter>\n',
        f"</{mark}invoke>\n",
    )


def _as_elements(value: Any) -> str:
    """MiniMax M3's."""
    if isinstance(value, list):
        return "".join(f"{M3}<item>{_as_elements(item)}{M3}</item>" for item in value)
    if isinstance(value, dict):
        return "".join(f"{M3}<{k}>{_as_elements(v)}{M3}</{k}>" for k, v in value.items())
    return as_text(value)


def write_python(call: Call) -> str:
    return f"{call[0]}({', '.join(f'{key}={as_python(value)}' for key, value in call[1].items())})"


def bare_keys(head: str, quote: str, tail: str) -> Write:
    """Gemma's."""

    def as_bare(value: Any) -> str:
        if isinstance(value, list):
            return f"[{','.join(map(as_bare, value))}]"
        if isinstance(value, dict):
            return f"{{{','.join(f'{key}:{as_bare(inner)}' for key, inner in value.items())}}}"
        return f"{quote}{value}{quote}" if isinstance(value, str) else as_json(value)

    return lambda call: f"{head}call:{call[0]}{as_bare(call[1])}{tail}"


def keyed(head: str, tail: str = "</tool_call>", suffix: str = "", between: str = "") -> Tagged:
    """GLM's."""
    return Tagged(
        head,
        f"<arg_key{suffix}>KEY</arg_key{suffix}>{between}"
        f"<arg_value{suffix}>VALUE</arg_value{suffix}>{between}",
        tail,
    )


def functions(line: str = "\n") -> Tagged:
    """Qwen3-Coder's."""
    return Tagged(
        "<function=NAME>\n", f"<parameter=KEY>{line}VALUE{line}</parameter>\n", "</function>\n"
    )


def invokes(prefix: str = "", line: str = "\n") -> Tagged:
    """MiniMax M2's."""
    return Tagged(
        f'<{prefix}invoke name="NAME">{line}',
        f'<{prefix}parameter name="KEY">VALUE</{prefix}parameter>{line}',
        f"</{prefix}invoke>{line}",
    )


TOOL_CALL = named("<tool_call>\n", "\n</tool_call>")
IFM = Tagged(
    "<ifm|tool_call>NAME\n",
    "<ifm|arg_key>KEY</ifm|arg_key><ifm|arg_value>VALUE</ifm|arg_value>",
    "</ifm|tool_call>\n",
)
IFM_TYPED = Tagged(
    "<ifm|tool_call>NAME\n",
    "<ifm|arg_key>KEY</ifm|arg_key><ifm|arg_type>KIND</ifm|arg_type>"
    "<ifm|arg_value>VALUE</ifm|arg_value>",
    "</ifm|tool_call>\n",
)
PLAMO = around(
    "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>NAME"
    "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json"
    "<|plamo:msg|>JSON<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
)
V3 = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
WRITTEN: dict[str, Written] = {
    "apertus": Written(around('{"NAME": JSON}'), "<|tools_prefix|>[", "]<|tools_suffix|>", ", "),
    "cohere": Written(named(key="tool_name", arguments="parameters"),
            "<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>", ",\n    "),
    "deepseek_v3": Written(around("<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nJSON\n"
            "```<｜tool▁call▁end｜>"), *V3, "\n", ""),
    "deepseek_v31": Written(around("<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>JSON"
            "<｜tool▁call▁end｜>"), *V3, line=""),
    "deepseek_v32": Written(dsml(), "\n\n<｜DSML｜function_calls>\n",
            "</｜DSML｜function_calls>", line=""),
    "deepseek_v4": Written(dsml(), "\n\n<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>", line=""),
    "deepseek_v41": Written(dsml(" "), "\n\n<｜DSML｜ calls>\n", "</｜DSML｜ calls>", line=""),
    "dots": Written(invokes(), "<dots_function_call>\n", "</dots_function_call>"),
    "functiongemma": Written(bare_keys("<start_function_call>", "<escape>",
            "<end_function_call>")),
    "gemma4": Written(bare_keys("<|tool_call>", '<|"|>', "<tool_call|>")),
    "gigachat3": Written(named("<|function_call|>"), separator="\n"),
    "glm45": Written(keyed("<tool_call>NAME\n", between="\n"), separator="\n"),
    "glm47": Written(keyed("<tool_call>NAME")),
    "granite": Written(named(), "<|tool_call|>[", "]", ", "),
    "granite4": Written(TOOL_CALL, separator="\n"),
    "granite_20b_fc": Written(named("<function_call> "), separator="\n"),
    "granite_text": Written(named(), "<tool_call>[", "]", ", "),
    "hermes": Written(TOOL_CALL, separator="\n"),
    "hermes_text": Written(TOOL_CALL, separator="\n"),
    "hunyuan_a13b": Written(named(), "<tool_calls>[", "]</tool_calls>", ", "),
    "hy_v3": Written(keyed("<tool_call>NAME<tool_sep>"), "<tool_calls>", "</tool_calls>"),
    "hy_v4": Written(keyed("<tool_call:opensource>NAME", "</tool_call:opensource>",
            ":opensource"), "<tool_calls:opensource>", "</tool_calls:opensource>"),
    "inkling": Written(named("<|message_model|><|content_invoke_tool_json|>", "<|end_message|>",
            "args"), line="<|end_message|>", before="<|content_text|>"),
    "internlm": Written(named("<|action_start|><|plugin|>\n", "<|action_end|>", "parameters"),
            separator="\n"),
    "jamba": Written(named(), "<tool_calls>[", "]</tool_calls>", ", "),
    "k2_horizon": Written(IFM, "<ifm|tool_calls>\n", "</ifm|tool_calls>"),
    "k2_horizon_json": Written(named("<ifm|tool_call>", "</ifm|tool_call>"), "<ifm|tool_calls>",
            "</ifm|tool_calls>"),
    "k2_horizon_typed": Written(IFM_TYPED, "<ifm|tool_calls>\n", "</ifm|tool_calls>"),
    "kimi_k2": Written(around("<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>JSON"
            "<|tool_call_end|>"), "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
            line=""),
    "kimi_k3": Written(Tagged(f'{OPEN}call tool="NAME" index="1"{SEP}',
            f'{OPEN}argument key="KEY" type="KIND"{SEP}VALUE{CLOSE}argument{SEP}',
            f"{CLOSE}call{SEP}"), f"{OPEN}tools{SEP}", f"{CLOSE}tools{SEP}",
            line=f"{CLOSE}response{SEP}", before=f"{OPEN}response{SEP}"),
    "lfm2": Written(write_python, "<|tool_call_start|>[", "]<|tool_call_end|>", ", "),
    "llama3_json": Written(named(arguments="parameters"), separator="; ", line=None),
    "llama4_json": Written(named(arguments="parameters"), separator="; ", line=None),
    "llama4_pythonic": Written(write_python, "[", "]", ", ", line=None),
    "longcat": Written(named("<longcat_tool_call>\n", "\n</longcat_tool_call>"), separator="\n"),
    "mimo": Written(Within("<tool_call>\n", functions(""), "</tool_call>"), separator="\n"),
    "minicpm5": Written(Tagged('<function name="NAME">', '<param name="KEY">VALUE</param>',
            "</function>"), separator="\n"),
    "minimax_m2": Written(invokes(), "<minimax:tool_call>\n", "</minimax:tool_call>"),
    "minimax_m3": Written(Tagged(f'{M3}<invoke name="NAME">\n', f"{M3}<KEY>VALUE{M3}</KEY>\n",
            f"{M3}</invoke>\n", _as_elements), f"{M3}<tool_call>\n", f"{M3}</tool_call>"),
    "mistral_v11": Written(around("[TOOL_CALLS]NAME[ARGS]JSON"), line=""),
    "mistral_v3": Written(named(), "[TOOL_CALLS][", "]", ", ", line=""),
    "muse_glimmer": Written(lambda call: f"<|start|>assistant to={call[0]}<|message|>"
            f"<atem:function_calls>\n{invokes('atem:')(call)}</atem:function_calls><|eom|>",
            line="<|eom|>", before="<|start|>assistant to=user<|message|>"),
    "olmo3": Written(write_python, "<function_calls>", "</function_calls>", "\n"),
    "openai": Written(around("<|channel|>commentary to=functions.NAME <|constrain|>json"
            "<|message|>JSON<|call|>"), separator="<|start|>assistant",
            line="<|end|><|start|>assistant", before="<|channel|>commentary<|message|>"),
    "phi4_mini_json": Written(named(), "functools[", "]", ", ", line=None),
    "plamo3": Written(PLAMO, "<|plamo:begin_tool_requests:plamo|>",
            "<|plamo:end_tool_requests:plamo|>"),
    "poolside_v1": Written(keyed("<tool_call>NAME")),
    "pythonic": Written(write_python, "[", "]", ", ", line=None),
    "qwen3_coder": Written(Within("<tool_call>\n", functions(), "</tool_call>"), separator="\n"),
    "seed_oss": Written(Within("<seed:tool_call>\n", functions(), "</seed:tool_call>"),
            separator="\n"),
    "solar_open2": Written(Tagged("<|tool_call:start|>NAME\n",
            "<|tool_arg:start|>KEY<|tool_arg:value|>VALUE<|tool_arg:end|>", "<|tool_call:end|>")),
    "step3": Written(Within("<｜tool_call_begin｜>function<｜tool_sep｜>", invokes("steptml:", ""),
            "<｜tool_call_end｜>"), "<｜tool_calls_begin｜>\n", "\n<｜tool_calls_end｜>", "\n"),
    "xlam": Written(named(), "[", "]", ", ", line=None),
}  # fmt: skip
"""Writers by the names of the golden files."""
