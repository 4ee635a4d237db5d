"""Conversion of messages and tools to token ids by the chat template, and fitting to the context.

The answer's limit is lowered to the room that the prompt leaves, as in ``vllm serve``. Only a
prompt that does not fit is refused, with the API's own message, which clients parse. On request,
the oldest messages of a conversation are dropped instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from eaglegate.server.access.budget import SMALL_BYTES, RequestCharge
from eaglegate.server.errors import InvalidRequest, TooManyRequests
from eaglegate.server.generation.job import LEAST, Conversation, Side
from eaglegate.text.rendering.base import Renderer
from eaglegate.text.rendering.encoding import PromptTooLong, RenderLimits
from eaglegate.text.rendering.sandbox import RendererLost
from eaglegate.text.rendering.template import count_images
from eaglegate.text.rendering.watchdog import RenderTooSlow

TaskResult = TypeVar("TaskResult")
AT_ONCE_BYTES = 4 << 10
"""Requests up to this size are rendered on the event loop, unless they bring a template. Handing
them to a thread would take longer and hold the interpreter lock anyway.
"""


async def encode(
    text: str,
    renderer: Renderer,
    add_special_tokens: bool,
    charge: RequestCharge,
    limits: RenderLimits,
) -> list[int]:
    """Tokenize a text, in a thread unless it is short. Raises PromptTooLong."""

    def work(limits: RenderLimits) -> list[int]:
        return renderer.encode(text, add_special_tokens, limits)

    return await _run_in_thread(work, charge, limits)


async def render(
    conversation: Conversation, renderer: Renderer, charge: RequestCharge, limits: RenderLimits
) -> list[int]:
    """Render a conversation, in a thread unless it is short.

    Raises InvalidRequest if the template rejects the messages, PromptTooLong, and TooManyRequests
    if the renderer process was lost.
    """
    template_options = (
        {} if conversation.template is None else {"chat_template": conversation.template}
    )

    def work(limits: RenderLimits) -> list[int]:
        return renderer.render_chat(
            conversation.messages,
            conversation.tools or None,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            chat_template_kwargs=conversation.template_kwargs,
            limits=limits,
            **template_options,
        )

    try:
        return await _run_in_thread(work, charge, limits, quick=not template_options)
    except PromptTooLong:
        raise
    except RendererLost as error:
        raise TooManyRequests(
            str(error), code="engine_overloaded", retry_after_s=error.retry_after_s
        ) from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"The chat template of this model refused the messages: {error}", param="messages"
        ) from error


async def _run_in_thread(
    work: Callable[[RenderLimits], TaskResult],
    charge: RequestCharge,
    limits: RenderLimits,
    quick: bool = True,
) -> TaskResult:
    """Run ``work`` in a thread, or directly if it is ``quick`` and the request is small.

    A large request waits for its key's turn. Cancelling ends the work.
    """
    if quick and 0 < charge.num_bytes <= AT_ONCE_BYTES:
        with suppress(RenderTooSlow):
            return work(replace(limits, at_once=True))
    if charge.num_bytes <= SMALL_BYTES:
        return await _run_cancellable(work, limits)
    async with charge.budget.turn(charge.name):
        return await _run_cancellable(work, limits)


async def _run_cancellable(
    work: Callable[[RenderLimits], TaskResult], limits: RenderLimits
) -> TaskResult:
    try:
        return await asyncio.to_thread(work, limits)
    except asyncio.CancelledError:
        limits.ended.set()
        raise


AS_FITS = -1
"""vLLM's value of ``truncate_prompt_tokens`` for as much of the prompt as fits."""


def shorten(token_ids: list[int], keep: int | None, side: Side, max_model_len: int) -> list[int]:
    """Shorten a prompt to ``keep`` tokens by cutting on ``side``."""
    if keep is None:
        return token_ids
    keep = max_model_len - LEAST if keep == AS_FITS else keep
    return token_ids[-keep:] if side == "left" else token_ids[:keep]


def prompt_limits(keep: int | None, side: Side, max_model_len: int) -> RenderLimits:
    """Return the limits for rendering a prompt; ``keep`` is as in ``shorten``."""
    if keep is None:
        return RenderLimits(max_tokens=max_model_len)
    return RenderLimits(keep=max_model_len - LEAST if keep == AS_FITS else keep, side=side)


def room_for_messages(max_tokens: int, max_model_len: int) -> int:
    """Return the number of tokens above which a conversation's oldest messages are dropped.

    The answer's limit is reserved, but at most a quarter of the context.
    """
    return max_model_len - max(LEAST, min(max_tokens, max_model_len // 4))


Measure = Callable[[Conversation, Sequence[int]], Awaitable[int]]
"""Returns the number of tokens that the engine computes for a conversation's tokens."""


async def _count_ids(_: Conversation, token_ids: Sequence[int]) -> int:
    return len(token_ids)


async def render_newest(
    conversation: Conversation,
    renderer: Renderer,
    charge: RequestCharge,
    room: int,
    max_model_len: int,
    measure: Measure = _count_ids,
) -> tuple[Conversation, list[int]]:
    """Return the newest messages that fit in ``room``, at least the last message, and their tokens.

    System messages stay. A tool result is dropped together with its call. Raises PromptTooLong if
    the last message alone has more than ``max_model_len`` tokens.
    """

    async def render_within(conversation: Conversation) -> list[int] | None:
        """Return the tokens if they fit in ``room``, else None."""
        try:
            limits = RenderLimits(max_tokens=room)
            token_ids = await render(conversation, renderer, charge, limits)
        except PromptTooLong:
            return None
        return token_ids if await measure(conversation, token_ids) <= room else None

    token_ids = await render_within(conversation)
    if token_ids is not None:
        return conversation, token_ids
    lower, upper = 0, max(0, len(_droppable(conversation)) - 1)
    while upper - lower > 1:
        middle = (lower + upper) // 2
        if await render_within(drop_oldest(conversation, middle)) is not None:
            upper = middle
        else:
            lower = middle
    limits = RenderLimits(max_tokens=max_model_len)
    newest = drop_oldest(conversation, upper)
    return newest, await render(newest, renderer, charge, limits)


def drop_oldest(conversation: Conversation, count: int) -> Conversation:
    """Return the conversation without its ``count`` oldest messages and without their images."""
    droppable = _droppable(conversation)
    while count < len(droppable) - 1 and _role(conversation, droppable[count]) == "tool":
        count += 1
    dropped_indices = set(droppable[:count])
    messages = tuple(
        message
        for index, message in enumerate(conversation.messages)
        if index not in dropped_indices
    )
    # Messages that stay before the dropped ones are instructions, which have no images.
    num_images = sum(count_images(conversation.messages[index]) for index in dropped_indices)
    return replace(conversation, messages=messages, images=conversation.images[num_images:])


def drop_images(conversation: Conversation, max_images: int) -> Conversation:
    """Drop the oldest messages until at most ``max_images`` images are left, or one message."""
    excess, count = len(conversation.images) - max_images, 0
    for index in _droppable(conversation)[:-1]:
        if excess <= 0:
            break
        excess -= count_images(conversation.messages[index])
        count += 1
    return drop_oldest(conversation, count)


def _droppable(conversation: Conversation) -> list[int]:
    indices = range(len(conversation.messages))
    return [index for index in indices if _role(conversation, index) not in ("system", "developer")]


def _role(conversation: Conversation, index: int) -> str:
    return str(conversation.messages[index]["role"])
