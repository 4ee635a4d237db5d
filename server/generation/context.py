"""What fits the context: decided here alone, for every API and every renderer.

A limit on the answer above what the prompt leaves is lowered to what is left, as ``vllm serve``
does. Only a prompt that does not fit is refused, in the words of the API: clients parse them.
"""

from __future__ import annotations

from typing import Literal

from engine.rendering.limits import RenderLimits
from server.errors import InvalidRequest

Side = Literal["left", "right"]
AS_FITS = -1
"""vLLM's value of ``truncate_prompt_tokens`` for as much of the prompt as fits."""
LEAST = 1
"""Tokens of the context that are the answer's."""
PROMPT_PARAM = {"completions": "prompt", "responses": "input"}
"""Where each API's prompt stands; 'messages' in the others."""


def fit(api: str, num_prompt: int, asked: int, at_least: int, longest: int) -> int:
    """How many tokens the answer may have: ``asked`` (0: no limit), or what is left.

    ``at_least`` is the request's minimum. Raises InvalidRequest when that or the prompt does not
    fit.
    """
    room = longest - num_prompt
    if room < max(LEAST, at_least):
        raise overflow(api, num_prompt, at_least or asked, longest)
    return min(asked, room) if asked else room


def shorten(token_ids: list[int], keep: int | None, side: Side, longest: int) -> list[int]:
    """At most ``keep`` tokens of a prompt; ``side`` is where the others are cut off."""
    if keep is None:
        return token_ids
    keep = longest - LEAST if keep == AS_FITS else keep
    return token_ids[-keep:] if side == "left" else token_ids[:keep]


def limits(keep: int | None, side: Side, longest: int) -> RenderLimits:
    """What a prompt may come to before all of it is known; ``keep`` as in ``shorten``."""
    if keep is None:
        return RenderLimits(max_tokens=longest)
    return RenderLimits(keep=longest - LEAST if keep == AS_FITS else keep, side=side)


def room_for_messages(asked: int, longest: int) -> int:
    """Tokens a conversation may have before its oldest messages are left out.

    The answer's limit is kept free, but no more than a quarter of the context.
    """
    return longest - max(LEAST, min(asked, longest // 4))


def overflow(api: str, num_prompt: int, wanted: int, longest: int) -> InvalidRequest:
    """In the words clients of the API know; ``wanted`` counts where the prompt itself fits."""
    param = PROMPT_PARAM.get(api, "messages")
    write = _anthropic if api == "messages" else _openai
    counts = wanted if num_prompt <= longest else 0
    message = write(param, num_prompt, counts, longest)
    return InvalidRequest(message, param=param, code="context_length_exceeded")


def _openai(param: str, num_prompt: int, wanted: int, longest: int) -> str:
    told = f"This model's maximum context length is {longest} tokens. However, "
    if not wanted:
        return told + (
            f"your {param} resulted in {num_prompt} tokens. Please reduce the length of the "
            f"{param}."
        )
    return told + (
        f"you requested {num_prompt + wanted} tokens ({num_prompt} in the {param}, {wanted} in the "
        f"completion). Please reduce the length of the {param} or completion."
    )


def _anthropic(_param: str, num_prompt: int, wanted: int, longest: int) -> str:
    if not wanted:
        return f"prompt is too long: {num_prompt} tokens > {longest} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {num_prompt} + {wanted} > {longest}, "
        "decrease input length or `max_tokens` and try again"
    )
