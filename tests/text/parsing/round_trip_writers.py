"""Calls as the templates of models write them whose vocabularies no registry ships."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Arguments = Mapping[str, Any]
NAME = "write_file"
M3 = "]<]minimax[>["
OPEN, CLOSE, SEP = "<|open|>", "<|close|>", "<|sep|>"


@dataclass(frozen=True)
class Written:
    """How one format writes calls: each by ``one``, and what stands around and between them."""

    parser: str
    one: Callable[[Arguments], str]
    head: str = ""
    tail: str = ""
    separator: str = ""
    thinks: str | None = None
    is_textual: bool = False
    """Its markers are plain text in its vocabulary."""
    has_textual_tags: bool = False
    """Only what stands around a section is a token."""
    follows_content: bool = True
    line: str = "\n"
    """Between content and calls."""

    def write(self, content: str, calls: Sequence[Arguments]) -> str:
        before = f"{content}{self.line}" if content else ""
        return f"{before}{self.head}{self.separator.join(map(self.one, calls))}{self.tail}"


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else as_json(value)


def named(before: str = "", after: str = "", arguments: str = "arguments", name: str = "name"):
    return lambda call: f'{before}{{"{name}": "{NAME}", "{arguments}": {as_json(call)}}}{after}'


def tagged(head: str, parameter: str, tail: str):
    """``parameter`` has KEY and VALUE in it."""

    def one(call: Arguments) -> str:
        parts = (
            parameter.replace("KEY", key).replace("VALUE", as_text(value))
            for key, value in call.items()
        )
        return head + "".join(parts) + tail

    return one


def by_attribute(blank: str):
    """DeepSeek's DSML."""
    mark = "｜DSML｜" + blank

    def one(call: Arguments) -> str:
        parts = (
            f'<{mark}parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
            f"{as_text(value)}</{mark}parameter>\n"
            for key, value in call.items()
        )
        return f'<{mark}invoke name="{NAME}">\n{"".join(parts)}</{mark}invoke>\n'

    return one


def as_element(value: Any) -> str:
    if isinstance(value, list):
        return "".join(f"{M3}<item>{as_element(item)}{M3}</item>" for item in value)
    return as_text(value)


def write_m3(call: Arguments) -> str:
    parts = (f"{M3}<{key}>{as_element(value)}{M3}</{key}>" for key, value in call.items())
    return f'{M3}<invoke name="{NAME}">{"".join(parts)}{M3}</invoke>\n'


def write_k3(call: Arguments) -> str:
    kinds = {str: "string", int: "number", list: "array"}
    parts = (
        f'{OPEN}argument key="{key}" type="{kinds[type(value)]}"{SEP}'
        f"{as_text(value)}{CLOSE}argument{SEP}"
        for key, value in call.items()
    )
    return f'{OPEN}call tool="{NAME}" index="1"{SEP}{"".join(parts)}{CLOSE}call{SEP}'


def write_python(call: Arguments) -> str:
    return f"{NAME}({', '.join(f'{key}={as_json(value)}' for key, value in call.items())})"


def bare_keys(head: str, quote: str, tail: str):
    def value_of(value: Any) -> str:
        if isinstance(value, list):
            return f"[{','.join(map(value_of, value))}]"
        return f"{quote}{value}{quote}" if isinstance(value, str) else as_json(value)

    def one(call: Arguments) -> str:
        parts = ",".join(f"{key}:{value_of(value)}" for key, value in call.items())
        return f"{head}call:{NAME}{{{parts}}}{tail}"

    return one


def keyed(head: str, key: str, value: str, end: str, tail: str):
    return tagged(head, f"{key}KEY{value}VALUE{end}", tail)


CODER = tagged(
    f"<tool_call>\n<function={NAME}>\n", "<parameter=KEY>VALUE</parameter>\n", "</function>\n"
)
WRITTEN = (
    Written("apertus", lambda call: f'{{"{NAME}": {as_json(call)}}}', "<|tools_prefix|>[",
            "]<|tools_suffix|>", ", "),
    Written("cohere_command3", named(name="tool_name", arguments="parameters"),
            "<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>", ",\n    ", "cohere_command3"),
    Written("deepseek_v32", by_attribute(""), "\n\n<｜DSML｜function_calls>\n",
            "</｜DSML｜function_calls>", thinks="deepseek_v32", line=""),
    Written("deepseek_v4", by_attribute(""), "\n\n<｜DSML｜tool_calls>\n",
            "</｜DSML｜tool_calls>", thinks="deepseek_v4", line=""),
    Written("deepseek_v41", by_attribute(" "), "\n\n<｜DSML｜ calls>\n", "</｜DSML｜ calls>",
            thinks="deepseek_v41", line=""),
    Written("functiongemma", bare_keys("<start_function_call>", "<escape>",
            "<end_function_call>")),
    Written("gemma4", bare_keys("<|tool_call>", '<|"|>', "<tool_call|>"), thinks="gemma4"),
    Written("glm47", keyed(f"<tool_call>{NAME}", "<arg_key>", "</arg_key><arg_value>",
            "</arg_value>", "</tool_call>"), thinks="glm47"),
    Written("granite", named(), "<|tool_call|>[", "]", ", "),
    Written("hunyuan_a13b", named(), "<tool_calls>[", "]</tool_calls>", ", ", is_textual=True),
    Written("hy_v3", keyed(f"<tool_call>{NAME}<tool_sep>", "<arg_key>",
            "</arg_key><arg_value>", "</arg_value>", "</tool_call>"), "<tool_calls>",
            "</tool_calls>", thinks="hy_v3"),
    Written("internlm", named("<|action_start|><|plugin|>\n", "<|action_end|>", "parameters"),
            separator="\n"),
    Written("jamba", named(), "<tool_calls>[", "]</tool_calls>", ", "),
    Written("kimi_k2", lambda call: f"<|tool_call_begin|>functions.{NAME}:0"
            f"<|tool_call_argument_begin|>{as_json(call)}<|tool_call_end|>",
            "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", thinks="kimi_k2",
            line=""),
    Written("kimi_k3", write_k3, f"{OPEN}tools{SEP}", f"{CLOSE}tools{SEP}", thinks="kimi_k3",
            follows_content=False),
    Written("lfm2", write_python, "<|tool_call_start|>[", "]<|tool_call_end|>", ", "),
    Written("longcat", named("<longcat_tool_call>\n", "\n</longcat_tool_call>"), separator="\n"),
    Written("mimo", lambda call: f"{CODER(call)}</tool_call>", separator="\n", thinks="mimo",
            has_textual_tags=True),
    Written("minimax_m2", tagged(f'<invoke name="{NAME}">\n',
            '<parameter name="KEY">VALUE</parameter>\n', "</invoke>\n"), "<minimax:tool_call>\n",
            "</minimax:tool_call>", thinks="minimax_m2", has_textual_tags=True),
    Written("minimax_m3", write_m3, f"{M3}<tool_call>\n", f"{M3}</tool_call>",
            thinks="minimax_m3"),
    Written("mistral", lambda call: f"[TOOL_CALLS]{NAME}[ARGS]{as_json(call)}", thinks="mistral",
            line=""),
    Written("olmo3", write_python, "<function_calls>", "</function_calls>", "\n",
            is_textual=True),
    Written("seed_oss", lambda call: CODER(call).replace("<tool_call>", "<seed:tool_call>", 1)
            + "</seed:tool_call>", separator="\n", thinks="seed_oss",
            has_textual_tags=True),
    Written("solar_open2", keyed(f"<|tool_call:start|>{NAME}\n", "<|tool_arg:start|>",
            "<|tool_arg:value|>", "<|tool_arg:end|>", "<|tool_call:end|>"), thinks="solar_open2"),
    Written("xlam", named(), "[", "]", ", ", is_textual=True, follows_content=False),
)  # fmt: skip
