"""Token counts in OpenAI's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from engine.events import Usage, UsageDelta


def usage_object(choices: Mapping[int, Usage], n: int) -> dict[str, Any]:
    """Usage of a chat completion or completion: each prompt counts once, completions add up.

    ``choices`` is by index: choice ``i`` answers prompt ``i // n``.
    """
    parts = list(choices.values())
    prompts = {index // n: usage for index, usage in choices.items()}.values()
    prompt = sum(usage.prompt for usage in prompts)
    completion = sum(part.completion for part in parts)
    details = {"reasoning_tokens": sum(part.reasoning for part in parts)}
    if all(part.accepted is not None for part in parts):
        details["accepted_prediction_tokens"] = sum(part.accepted or 0 for part in parts)
        details["rejected_prediction_tokens"] = sum(part.rejected or 0 for part in parts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached for usage in prompts)},
        "completion_tokens_details": details,
    }


def usage_tail(delta: UsageDelta) -> bytes:
    """The end of a chunk that carries its choice's usage so far, as vLLM writes it."""
    return b',"usage":' + orjson.dumps(usage_object({0: delta.usage}, 1)) + b"}\n\n"
