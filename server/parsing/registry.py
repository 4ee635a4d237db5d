"""Parsers by the names that ``vllm serve`` knows, imported when first asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module

from server.parsing.message import NO_REASONING, CallFrame, ReasoningFormat, ToolFormat

_FORMATS = "server.parsing.formats"
_REASONING = "server.parsing.reasoning"
_TOOLS: Sequence[tuple[str, str]] = (
    ("apertus", "json_lists:APERTUS"),
    ("cohere_command3 cohere_command4", "json_lists:COHERE"),
    ("deepseek_v3 deepseek_v31", "sections:DEEPSEEK_V3"),
    ("deepseek_v32", "xml_calls:V32"),
    ("deepseek_v4", "xml_calls:V4"),
    ("deepseek_v41", "xml_calls:V41"),
    ("dots", "xml_calls:DOTS"),
    ("functiongemma", "gemma4:FUNCTION"),
    ("gemma4", "gemma4:FORMAT"),
    ("gigachat3", "json_lists:GIGACHAT3"),
    ("glm45 glm47 ling3 poolside_v1", "key_values:FORMAT"),
    ("granite", "json_lists:GRANITE"),
    ("granite-20b-fc", "json_lists:GRANITE_20B"),
    ("hermes qwen3_json granite4 ernie45", "json_lists:HERMES"),
    ("hunyuan_a13b jamba", "json_lists:JAMBA"),
    ("hy_v3", "key_values:HY_V3"),
    ("hy_v4", "key_values:HY_V4"),
    ("inkling", "inkling:FORMAT"),
    ("internlm", "json_lists:INTERNLM"),
    ("k2_horizon", "key_values:K2_HORIZON"),
    ("kimi_k2", "sections:KIMI_K2"),
    ("kimi_k3", "kimi_k3:FORMAT"),
    ("lfm2", "pythonic:LFM2"),
    ("llama3_json", "json_lists:LLAMA3"),
    ("llama4_json", "json_lists:LLAMA4"),
    ("llama4_pythonic", "pythonic:LLAMA4"),
    ("longcat", "json_lists:LONGCAT"),
    ("mimo", "xml_calls:MIMO"),
    ("minicpm5", "xml_calls:MINICPM5"),
    ("minimax_m2", "xml_calls:MINIMAX_M2"),
    ("minimax_m3", "minimax_m3:FORMAT"),
    ("mistral", "mistral:FORMAT"),
    ("muse musespark1x", "muse:SPARK"),
    ("muse_glimmer", "muse:GLIMMER"),
    ("olmo3", "pythonic:OLMO3"),
    ("openai gpt_oss", "harmony:FORMAT"),
    ("phi4_mini_json", "json_lists:PHI4"),
    ("plamo3", "sections:PLAMO3"),
    ("pythonic", "pythonic:PYTHONIC"),
    ("qwen3_coder qwen3_xml nemotron_v3 step3p5 step5", "xml_calls:QWEN3_CODER"),
    ("seed_oss", "xml_calls:SEED_OSS"),
    ("solar_open2", "key_values:SOLAR_OPEN2"),
    ("step3", "xml_calls:STEP3"),
    ("xlam", "json_lists:XLAM"),
)
"""Names that share a grammar, and where it is."""
_THINKING: Sequence[tuple[str, str]] = (
    ("cohere_command3 cohere_command4", f"{_FORMATS}.json_lists:COHERE_REASONING"),
    (
        "deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 deepseek_v41 poolside_v1",
        f"{_REASONING}:DEEPSEEK_V3",
    ),
    ("ernie45", f"{_REASONING}:ERNIE45"),
    ("gemma4", f"{_REASONING}:GEMMA4"),
    ("granite", f"{_REASONING}:GRANITE"),
    ("hunyuan_a13b", f"{_REASONING}:HUNYUAN"),
    ("hy_v3 hy_v4", f"{_REASONING}:HUNYUAN_V3"),
    ("inkling", f"{_FORMATS}.inkling:REASONING"),
    ("k2_horizon", f"{_REASONING}:K2_HORIZON"),
    ("kimi_k2", f"{_REASONING}:KIMI_K2"),
    ("kimi_k3", f"{_FORMATS}.kimi_k3:REASONING"),
    ("minimax_m2_append_think", f"{_REASONING}:MINIMAX_M2_APPEND_THINK"),
    ("minimax_m3", f"{_REASONING}:MINIMAX_M3"),
    ("mistral", f"{_REASONING}:MISTRAL"),
    ("muse musespark1x", f"{_FORMATS}.muse:SPARK_REASONING"),
    ("muse_glimmer", f"{_FORMATS}.muse:GLIMMER_REASONING"),
    ("openai_gptoss gpt_oss", f"{_FORMATS}.harmony:REASONING"),
    ("plamo3", f"{_FORMATS}.sections:PLAMO3_REASONING"),
    ("seed_oss", f"{_REASONING}:SEED_OSS"),
    ("solar_open2", f"{_REASONING}:SOLAR_OPEN2"),
    (
        "deepseek_r1 glm45 glm47 granite_thinking_parser holo2 ling3 mimo minicpmv minimax_m2 "
        "nemotron_v3 olmo3 qwen3 step3 step3p5 step5 think",
        f"{_REASONING}:THINK",
    ),
)
"""``deepseek_v31``, ``deepseek_v32``, ``gpt_oss`` and ``think`` are ours."""
TOOL_PARSERS: Mapping[str, str] = {
    name: f"{_FORMATS}.{place}" for names, place in _TOOLS for name in names.split()
}
REASONING_PARSERS: Mapping[str, str] = {
    name: place for names, place in _THINKING for name in names.split()
}


class UnknownParser(ValueError):
    """No parser has that name; the message lists those there are."""


def tool_parser_names() -> list[str]:
    return sorted(TOOL_PARSERS)


def reasoning_parser_names() -> list[str]:
    return sorted(REASONING_PARSERS)


def grammar_names() -> list[str]:
    """One name of each tool grammar."""
    return [names.split()[0] for names, _ in _TOOLS]


def thinking_names() -> list[str]:
    """One name of each way to mark the thinking."""
    return [names.split()[0] for names, _ in _THINKING]


def find_unknown_parsers(tool_parser: str | None, reasoning: str | None) -> list[str]:
    """The names given that have no parser here."""
    given = ((tool_parser, TOOL_PARSERS), (reasoning, REASONING_PARSERS))
    return [name for name, known in given if name is not None and name not in known]


def tool_format(name: str) -> ToolFormat:
    found = _load(name, TOOL_PARSERS, "tool call parser")
    assert isinstance(found, ToolFormat)
    return found


def reasoning_format(name: str | None) -> ReasoningFormat:
    if name is None:
        return NO_REASONING
    found = _load(name, REASONING_PARSERS, "reasoning parser")
    assert isinstance(found, ReasoningFormat)
    return found


def find_frame(name: str | None) -> CallFrame | None:
    """How a grammar writes calls for a tool parser; None where it cannot force any."""
    if name is None or name not in TOOL_PARSERS:
        return None
    module = import_module(TOOL_PARSERS[name].partition(":")[0])
    frames: Mapping[str, CallFrame] = getattr(module, "FRAMES", {})
    return frames.get(name)


def framed_names() -> list[str]:
    """Tool parsers whose calls a grammar can force."""
    return [name for name in tool_parser_names() if find_frame(name) is not None]


def _load(name: str, table: Mapping[str, str], kind: str) -> object:
    if name not in table:
        known = ", ".join(sorted(table))
        raise UnknownParser(f"unknown {kind} {name!r}: use one of {known}")
    module, attribute = table[name].split(":")
    return getattr(import_module(module), attribute)
