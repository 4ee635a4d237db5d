"""How models mark their thinking, one row each.

Sources: the chat templates named beside the rows. While a model thinks only the end marker is
structure, so that a tool call quoted in the thinking stays thinking. Text before a start marker
is content. A prompt that opens the thinking itself says so with ``starts_in``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from server.parsing.message import ReasoningFormat


@cache
def _suffix(form: ReasoningFormat, suffix: str) -> ReasoningFormat:
    """The same format with ``<think:suffix>``."""
    starts = tuple(f"{marker[:-1]}{suffix}>" for marker in form.starts)
    ends = tuple(f"{marker[:-1]}{suffix}>" for marker in form.ends)
    return replace(form, starts=starts, ends=ends, suffixed=None)


THINK = ReasoningFormat(("<think>",), ("</think>",), forgets_end=True)
"""Qwen3, DeepSeek R1, GLM-4.5, MiniMax-M2: line breaks inside the markers are framing. vLLM's
parsers of qwen3, glm47 and minimax_m2 end the thinking at a call, too; see ``answer.py``."""

KIMI_K2 = ReasoningFormat(("<think>",), ("</think>",), framing="", forgets_end=True)
"""Kimi-K2-Thinking: no white space around the markers. It is known to forget ``</think>`` before a
section of calls (vllm-project/vllm pull request 32216); see ``answer.py``."""

DEEPSEEK_V3 = ReasoningFormat(("<think>",), ("</think>",), framing="", forgets_end=True)
"""DeepSeek V3.1 and V3.2: ``</think>`` directly follows and precedes text."""

MISTRAL = ReasoningFormat(("[THINK]",), ("[/THINK]",), framing="", forgets_end=True)
"""Magistral; mistral-common writes both as control tokens, without white space around them."""

GRANITE = ReasoningFormat(
    ("Here is my thought process:", "Here's my thought process:", "<think>"),
    ("Here is my response:", "Here's my response:", "</think>"),
    framing=" \n",
    answer=("<response>", "</response>"),
)
"""Granite 3.2 with ``thinking`` writes sentences, never tokens; Granite 3.3 ``<think>`` and then
``<response>`` around the answer, by its own chat template."""

MINIMAX_M2_APPEND_THINK = ReasoningFormat(("<think>",), ("</think>",), framing="", inline=True)
"""MiniMax-M2 for clients that send the thinking back inside the content, as vLLM's parser of that
name: it is delivered as content with its markers, and a tool call quoted in it is still text."""

ERNIE45 = ReasoningFormat(
    ("<think>",), ("</think>",), answer=("<response>", "</response>"), forgets_end=True
)
"""ERNIE-4.5 Thinking: ``<response>`` around the answer, at times."""

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
)
"""K2 Horizon: a tag for each effort."""

GEMMA4 = ReasoningFormat(("<|channel>",), ("<channel|>",), label="thought", forgets_end=True)
"""Gemma 4: a channel whose name stands on its first line."""
