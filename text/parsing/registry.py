"""Registry of parsers by the names that ``vllm serve`` uses, each imported on first use.

It also has the ways in which models mark their thinking, one row each. Their sources are the chat
templates named in the rows. While a model thinks, only the end marker is structure, so that a tool
call quoted in the thinking stays thinking. Text before a start marker is content. If the prompt
itself opens the thinking, the caller says so with ``starts_in``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module

from eaglegate.text.parsing.message import NO_REASONING, CallFrame, ReasoningFormat, ToolFormat


@cache
def _suffix(form: ReasoningFormat, suffix: str) -> ReasoningFormat:
    """Return the format with a suffix in its markers, as in ``<think:suffix>``."""
    starts = tuple(f"{marker[:-1]}{suffix}>" for marker in form.starts)
    ends = tuple(f"{marker[:-1]}{suffix}>" for marker in form.ends)
    return replace(form, starts=starts, ends=ends, suffixed=None)


THINK = ReasoningFormat(("<think>",), ("</think>",), forgets_end=True)
"""Qwen3, DeepSeek R1, GLM-4.5, MiniMax-M2: line breaks inside the markers are framing. vLLM's
parsers of qwen3, glm47 and minimax_m2 end the thinking at a call, too; see ``answer.py``."""

KIMI_K2 = ReasoningFormat(("<think>",), ("</think>",), framing="", forgets_end=True)
"""Kimi-K2-Thinking: no white space around the markers. It is known to omit ``</think>`` before a
section of calls (vllm-project/vllm pull request 32216); see ``answer.py``."""

DEEPSEEK_V3 = ReasoningFormat(("<think>",), ("</think>",), framing="", forgets_end=True)
"""DeepSeek V3.1 and V3.2: ``</think>`` directly follows and precedes text."""

MISTRAL = ReasoningFormat(
    ("[THINK]",),
    ("[/THINK]",),
    framing="",
    forgets_end=True,
    untokened=ReasoningFormat(("<think>",), ("</think>",)),
)
"""Magistral: mistral-common writes both markers as control tokens, without white space around them.
The first Magistral, of June 2025, lacks these tokens and writes ``<think>`` as text."""

GRANITE = ReasoningFormat(
    ("Here is my thought process:", "Here's my thought process:", "<think>"),
    ("Here is my response:", "Here's my response:", "</think>"),
    framing=" \n",
    answer=("<response>", "</response>"),
)
"""Granite 3.2 with ``thinking`` writes sentences, never tokens. Granite 3.3 writes ``<think>`` and
then ``<response>`` around the answer, as in its own chat template."""

MINIMAX_M2_APPEND_THINK = ReasoningFormat(("<think>",), ("</think>",), framing="", inline=True)
"""MiniMax-M2 for clients that send the thinking back inside the content, like vLLM's parser of that
name: thinking is delivered as content with its markers. A tool call quoted in it is still text."""

ERNIE45 = ReasoningFormat(
    ("<think>",), ("</think>",), answer=("<response>", "</response>"), forgets_end=True
)
"""ERNIE-4.5 Thinking: sometimes ``<response>`` around the answer."""

HUNYUAN = ReasoningFormat(("<think>",), ("</think>",), answer=("<answer>", "</answer>"))
"""Hunyuan A13B: ``<answer>`` around the answer; all four tags are plain text."""

HUNYUAN_V3 = replace(THINK, suffixed=lambda suffix: _suffix(THINK, suffix))
"""Hy3 and Hy4: checkpoints add a suffix to the tags."""

SOLAR_OPEN2 = ReasoningFormat(("<|think:start|>",), ("<|think:end|>",), forgets_end=True)
"""Solar Open 2."""

SEED_OSS = ReasoningFormat(("<seed:think>",), ("</seed:think>",), forgets_end=True)
"""Seed-OSS: Qwen's format with a prefix."""

MINIMAX_M3 = ReasoningFormat(("<mm:think>",), ("</mm:think>",), forgets_end=True)
"""MiniMax M3."""

K2_HORIZON = ReasoningFormat(
    ("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
    ("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
    forgets_end=True,
)
"""K2 Horizon: a tag for each effort."""

APRIEL = ReasoningFormat(
    ("Here are my reasoning steps:",),
    ("[BEGIN FINAL RESPONSE]",),
    framing=" \n",
    answer=("[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"),
)
"""ServiceNow-AI/Apriel-1.5-15b-Thinker: the prompt ends with the sentence that opens thinking."""

GEMMA4 = ReasoningFormat(("<|channel>",), ("<channel|>",), label="thought", forgets_end=True)
"""Gemma 4: a channel whose name is on its first line."""


_FORMATS = "eaglegate.text.parsing.formats"
_TOOLS: Sequence[tuple[str, str]] = (
    ("apertus apertus2509", "json_lists:APERTUS"),
    ("cohere_command3 cohere_command4", "json_lists:COHERE"),
    ("deepseek_v3 deepseek_v31 deepseekv3 deepseekv31", "sections:DEEPSEEK_V3"),
    ("deepseek_v32 deepseekv32", "xml_calls:V32"),
    ("deepseek_v4 deepseekv4", "xml_calls:V4"),
    ("deepseek_v41 deepseekv41", "xml_calls:V41"),
    ("dots", "xml_calls:DOTS"),
    ("functiongemma", "gemma4:FUNCTION"),
    ("gemma4", "gemma4:FORMAT"),
    ("gigachat3", "json_lists:GIGACHAT3"),
    ("gigachat35", "xml_calls:GIGACHAT35"),
    ("glm45 glm glm47 ling3 poolside_v1 spark25", "key_values:FORMAT"),
    ("granite", "json_lists:GRANITE"),
    ("granite-20b-fc", "json_lists:GRANITE_20B"),
    ("hermes qwen3_json granite4 ernie45 qwen qwen25 trinity", "json_lists:HERMES"),
    ("hunyuan_a13b jamba apriel", "json_lists:JAMBA"),
    ("hy_v3 hunyuan", "key_values:HY_V3"),
    ("hy_v4", "key_values:HY_V4"),
    ("inkling", "inkling:FORMAT"),
    ("internlm interns1", "json_lists:INTERNLM"),
    ("iquest_q1", "key_values:IQUEST_Q1"),
    ("k2_horizon", "key_values:K2_HORIZON"),
    ("kimi_k2", "sections:KIMI_K2"),
    ("kimi_k3", "kimi_k3:FORMAT"),
    ("lfm2", "pythonic:LFM2"),
    ("llama3_json llama3", "json_lists:LLAMA3"),
    ("llama4_json", "json_lists:LLAMA4"),
    ("llama4_pythonic", "pythonic:LLAMA4"),
    ("longcat", "json_lists:LONGCAT"),
    ("mimo", "xml_calls:MIMO"),
    ("minicpm5", "xml_calls:MINICPM5"),
    ("minimax_m2 minimax-m2", "xml_calls:MINIMAX_M2"),
    ("minimax_m3 minimax-m3", "minimax_m3:FORMAT"),
    ("mistral", "json_lists:MISTRAL"),
    ("muse musespark1x", "muse:SPARK"),
    ("muse_glimmer", "muse:GLIMMER"),
    ("nemotron_json", "json_lists:NEMOTRON"),
    ("olmo3", "pythonic:OLMO3"),
    ("openai gpt_oss gpt-oss", "harmony:FORMAT"),
    ("phi4_mini_json", "json_lists:PHI4"),
    ("plamo3", "sections:PLAMO3"),
    ("pythonic", "pythonic:PYTHONIC"),
    ("qwen3_coder qwen3_xml nemotron_v3 step3p5 step5 nanbeige", "xml_calls:QWEN3_CODER"),
    ("seed_oss", "xml_calls:SEED_OSS"),
    ("solar_open2", "key_values:SOLAR_OPEN2"),
    ("step3", "xml_calls:STEP3"),
    ("xlam", "json_lists:XLAM"),
)
"""Names that share a routine, and the routine's place."""
_THINKING: Sequence[tuple[str, ReasoningFormat | str]] = (
    ("apriel", APRIEL),
    ("cohere_command3 cohere_command4", f"{_FORMATS}.json_lists:COHERE_REASONING"),
    (
        "deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 deepseek_v41 poolside_v1",
        DEEPSEEK_V3,
    ),
    ("ernie45", ERNIE45),
    ("gemma4", GEMMA4),
    ("granite", GRANITE),
    ("hunyuan_a13b", HUNYUAN),
    ("hy_v3 hy_v4", HUNYUAN_V3),
    ("inkling", f"{_FORMATS}.inkling:REASONING"),
    ("k2_horizon", K2_HORIZON),
    ("kimi_k2", KIMI_K2),
    ("kimi_k3", f"{_FORMATS}.kimi_k3:REASONING"),
    ("minimax_m2_append_think", MINIMAX_M2_APPEND_THINK),
    ("minimax_m3", MINIMAX_M3),
    ("mistral", MISTRAL),
    ("muse musespark1x", f"{_FORMATS}.muse:SPARK_REASONING"),
    ("muse_glimmer", f"{_FORMATS}.muse:GLIMMER_REASONING"),
    ("openai_gptoss gpt_oss", f"{_FORMATS}.harmony:REASONING"),
    ("plamo3", f"{_FORMATS}.sections:PLAMO3_REASONING"),
    ("seed_oss", SEED_OSS),
    ("solar_open2", SOLAR_OPEN2),
    (
        "deepseek_r1 glm45 glm47 granite_thinking_parser holo2 iquest_q1 ling3 mimo minicpmv "
        "minimax_m2 nemotron_v3 olmo3 qwen3 step3 step3p5 step5 think",
        THINK,
    ),
)
"""Names that share a format, which is defined above or in the module of its calls.
``deepseek_v31``, ``deepseek_v32``, ``gpt_oss`` and ``think`` are names of our own."""
TOOL_PARSERS: Mapping[str, str] = {
    name: f"{_FORMATS}.{place}" for names, place in _TOOLS for name in names.split()
}
REASONING_PARSERS: Mapping[str, ReasoningFormat | str] = {
    name: place for names, place in _THINKING for name in names.split()
}


class UnknownParser(ValueError):
    """Unknown parser name. The message lists the known names."""


def tool_parser_names() -> list[str]:
    return sorted(TOOL_PARSERS)


def reasoning_parser_names() -> list[str]:
    return sorted(REASONING_PARSERS)


def routine_names() -> list[str]:
    """Return one name of each tool routine."""
    return [names.split()[0] for names, _ in _TOOLS]


def thinking_names() -> list[str]:
    """Return one name of each reasoning format."""
    return [names.split()[0] for names, _ in _THINKING]


def tool_format(name: str) -> ToolFormat:
    entry = _load(name, TOOL_PARSERS, "tool call parser")
    assert isinstance(entry, ToolFormat)
    return entry


def reasoning_format(name: str | None) -> ReasoningFormat:
    if name is None:
        return NO_REASONING
    entry = _load(name, REASONING_PARSERS, "reasoning parser")
    assert isinstance(entry, ReasoningFormat)
    return entry


def find_frame(name: str | None) -> CallFrame | None:
    """Return a tool parser's frame for calls in a grammar; None if calls cannot be forced."""
    if name is None or name not in TOOL_PARSERS:
        return None
    frames: Mapping[str, CallFrame] = _load_frames(TOOL_PARSERS[name].partition(":")[0])
    return frames.get(name)


@cache
def _load_frames(module: str) -> Mapping[str, CallFrame]:
    frames: Mapping[str, CallFrame] = getattr(import_module(module), "FRAMES", {})
    return frames


def framed_names() -> list[str]:
    """Return the tool parsers whose calls a grammar can force."""
    return [name for name in tool_parser_names() if find_frame(name) is not None]


@cache
def _load_place(place: str) -> object:
    module, attribute = place.split(":")
    return getattr(import_module(module), attribute)


def _load(name: str, table: Mapping[str, ReasoningFormat | str], kind: str) -> object:
    if name not in table:
        names = ", ".join(sorted(table))
        raise UnknownParser(f"unknown {kind} {name!r}: use one of {names}")
    place = table[name]
    return _load_place(place) if isinstance(place, str) else place
