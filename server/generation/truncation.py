"""Leaving out the oldest messages of a conversation that does not fit the context."""

from __future__ import annotations

from dataclasses import replace

from engine.rendering.limits import PromptTooLong, RenderLimits
from server.generation.prompt import Conversation, Renderer, render


async def fitted(
    conversation: Conversation, renderer: Renderer, room: int, longest: int | None = None
) -> list[int]:
    """The tokens of as much of the conversation as fits in ``room``, or of its last message.

    Raises PromptTooLong where even that has more than ``longest``.

    System messages stay. A tool's result without its call says nothing: it goes with the call.
    """
    token_ids = await _within(room, conversation, renderer)
    if token_ids is not None:
        return token_ids
    too_few, enough = 0, max(0, len(_droppable(conversation)) - 1)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if await _within(room, without_oldest(conversation, middle), renderer) is not None:
            enough = middle
        else:
            too_few = middle
    return await render(
        without_oldest(conversation, enough), renderer, RenderLimits(max_tokens=longest)
    )


async def _within(room: int, conversation: Conversation, renderer: Renderer) -> list[int] | None:
    """The tokens, if they are no more than ``room``."""
    try:
        token_ids = await render(conversation, renderer, RenderLimits(max_tokens=room))
    except PromptTooLong:
        return None
    return token_ids if len(token_ids) <= room else None


def without_oldest(conversation: Conversation, count: int) -> Conversation:
    droppable = _droppable(conversation)
    while count < len(droppable) - 1 and _role(conversation, droppable[count]) == "tool":
        count += 1
    gone = set(droppable[:count])
    kept = tuple(m for at, m in enumerate(conversation.messages) if at not in gone)
    return replace(conversation, messages=kept)


def _droppable(conversation: Conversation) -> list[int]:
    every = range(len(conversation.messages))
    return [at for at in every if _role(conversation, at) not in ("system", "developer")]


def _role(conversation: Conversation, at: int) -> str:
    return str(conversation.messages[at]["role"])
