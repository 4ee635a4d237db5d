"""How much a worker may say in answer to one request. Bytes, unless it says otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from engine.types import EngineRequest

QUESTION = 4 << 20
"""An answer to a question: models, tokens of the probe, metrics."""
REFUSAL = 64 << 10
"""What is read of an answer that is not 200."""
BASE = 256 << 10
PER_TOKEN = 128
PER_LOGPROB = 256
MOST = 256 << 20
FRAMES_BESIDE = 1024
"""Events of a stream that bring no token."""
RETOKENISED = 4
"""Tokens made of a text for each one the worker may generate: its pieces are encoded one by one."""
PADDING = 64


@dataclass(frozen=True, slots=True)
class ReplyLimits:
    event: int
    """One event of a stream, or an answer that is not streamed."""
    frames: int
    """Events in one stream."""
    tokens: int
    """In all of it."""


def compute_limits(request: EngineRequest, *, text: bool = False) -> ReplyLimits:
    sampling, prompt = request.sampling, len(request.prompt)
    most = sampling.max_tokens * (RETOKENISED if text else 1) + (PADDING if text else 0)
    output = most * (PER_TOKEN + PER_LOGPROB * _entries(sampling.logprobs))
    about_prompt = prompt * (PER_TOKEN + PER_LOGPROB * _entries(sampling.prompt_logprobs))
    size = BASE + output + about_prompt
    return ReplyLimits(min(size, MOST), 2 * most + FRAMES_BESIDE, most)


def _entries(top: int | None) -> int:
    return 0 if top is None else top + 2
