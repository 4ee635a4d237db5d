"""Parsers by the names that ``vllm serve`` knows, imported when first asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from server.parsing.message import NO_REASONING, Reasoning, ToolFormat

_FORMATS = "server.parsing.formats"
TOOL_PARSERS: Mapping[str, str] = {
    "deepseek_v3": f"{_FORMATS}.deepseek_v3:FORMAT",
    "deepseek_v31": f"{_FORMATS}.deepseek_v31:FORMAT",
    "deepseek_v32": f"{_FORMATS}.deepseek_v32:FORMAT",
    "glm45": f"{_FORMATS}.glm45:FORMAT",
    "glm47": f"{_FORMATS}.glm45:FORMAT",
    "gpt_oss": f"{_FORMATS}.harmony:FORMAT",
    "granite": f"{_FORMATS}.granite:FORMAT",
    "granite4": f"{_FORMATS}.hermes:FORMAT",
    "hermes": f"{_FORMATS}.hermes:FORMAT",
    "kimi_k2": f"{_FORMATS}.kimi_k2:FORMAT",
    "llama3_json": f"{_FORMATS}.llama3_json:FORMAT",
    "llama4_json": f"{_FORMATS}.llama3_json:LLAMA4",
    "llama4_pythonic": f"{_FORMATS}.pythonic:LLAMA4",
    "minimax_m2": f"{_FORMATS}.minimax_m2:FORMAT",
    "mistral": f"{_FORMATS}.mistral:FORMAT",
    "openai": f"{_FORMATS}.harmony:FORMAT",
    "pythonic": f"{_FORMATS}.pythonic:PYTHONIC",
    "qwen3_coder": f"{_FORMATS}.qwen3_coder:FORMAT",
    "qwen3_xml": f"{_FORMATS}.qwen3_coder:FORMAT",
    "qwen3_json": f"{_FORMATS}.hermes:FORMAT",
}

_REASONING = "server.parsing.reasoning"
REASONING_PARSERS: Mapping[str, str] = {
    "deepseek_r1": f"{_REASONING}:THINK",
    "deepseek_v3": f"{_REASONING}:DEEPSEEK_V3",
    "deepseek_v31": f"{_REASONING}:DEEPSEEK_V3",
    "deepseek_v32": f"{_REASONING}:DEEPSEEK_V3",
    "glm45": f"{_REASONING}:THINK",
    "glm47": f"{_REASONING}:THINK",
    "gpt_oss": f"{_FORMATS}.harmony:REASONING",
    "granite": f"{_REASONING}:GRANITE",
    "kimi_k2": f"{_REASONING}:KIMI_K2",
    "minimax_m2": f"{_REASONING}:THINK",
    "minimax_m2_append_think": f"{_REASONING}:MINIMAX_M2_APPEND_THINK",
    "mistral": f"{_REASONING}:MISTRAL",
    "openai_gptoss": f"{_FORMATS}.harmony:REASONING",
    "qwen3": f"{_REASONING}:THINK",
    "think": f"{_REASONING}:THINK",
}
"""``deepseek_v31``, ``deepseek_v32``, ``gpt_oss`` and ``think`` are ours."""


class UnknownParser(ValueError):
    """No parser has that name; the message lists those there are."""


def tool_parser_names() -> list[str]:
    return sorted(TOOL_PARSERS)


def reasoning_parser_names() -> list[str]:
    return sorted(REASONING_PARSERS)


def tool_format(name: str) -> ToolFormat:
    found = _load(name, TOOL_PARSERS, "tool call parser")
    assert isinstance(found, ToolFormat)
    return found


def reasoning_format(name: str | None) -> Reasoning:
    if name is None:
        return NO_REASONING
    found = _load(name, REASONING_PARSERS, "reasoning parser")
    assert isinstance(found, Reasoning)
    return found


def _load(name: str, table: Mapping[str, str], kind: str) -> object:
    if name not in table:
        known = ", ".join(sorted(table))
        raise UnknownParser(f"unknown {kind} {name!r}: use one of {known}")
    module, attribute = table[name].split(":")
    return getattr(import_module(module), attribute)
