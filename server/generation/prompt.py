"""Messages and tools to token ids, through the model's own chat template; what fits the context.

The answer's limit is lowered to what the prompt leaves, as in ``vllm serve``. Only a prompt that
does not fit is refused, with the API's own message: clients parse it. On request the oldest
messages of a conversation are dropped instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar

from engine.events import Phase
from engine.rendering.encoding import NO_LIMITS, PromptTooLong, RenderLimits
from server.access.budget import SMALL_BYTES, charge
from server.errors import InvalidRequest

TaskResult = TypeVar("TaskResult")


class Renderer(Protocol):
    """The model's tokenizer and chat template. Thread-safe; raises ValueError on bad messages."""

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        limits: RenderLimits = NO_LIMITS,
    ) -> list[int]:
        """``chat_template`` is a request's own. Raises PromptTooLong, too."""
        ...

    def encode(
        self, text: str, add_special_tokens: bool, limits: RenderLimits = NO_LIMITS
    ) -> list[int]:
        """Raises PromptTooLong."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def tokenizer_info(self) -> dict[str, Any]:
        """tokenizer_config.json and the chat template, without local paths."""
        ...

    @property
    def tokenizer(self) -> Any:
        """The tokenizer object itself, for the parsers' vocabulary."""
        ...


@dataclass(frozen=True, slots=True)
class Conversation:
    """The input of a chat template."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None
    """The request's own template, if the operator allows one."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and the phase in which the answer begins."""

    token_ids: tuple[int, ...]
    starts_in: Phase = Phase.CONTENT
    reasoned: bool = False
    """It ends with closed reasoning, as templates write it when thinking is off."""


async def encode(
    text: str, renderer: Renderer, add_special_tokens: bool, limits: RenderLimits | None = None
) -> list[int]:
    """Tokenize off the event loop. Raises PromptTooLong."""
    limits = limits or RenderLimits()
    return await _apart(lambda: renderer.encode(text, add_special_tokens, limits), limits)


async def render(
    conversation: Conversation, renderer: Renderer, limits: RenderLimits | None = None
) -> list[int]:
    """Render off the event loop.

    Raises InvalidRequest when the template refuses the messages, PromptTooLong.
    """
    limits = limits or RenderLimits()
    own = {} if conversation.template is None else {"chat_template": conversation.template}

    def work() -> list[int]:
        return renderer.render_chat(
            conversation.messages,
            conversation.tools or None,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            chat_template_kwargs=conversation.template_kwargs,
            limits=limits,
            **own,
        )

    try:
        return await _apart(work, limits)
    except PromptTooLong:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"The chat template of this model refused the messages: {error}", param="messages"
        ) from error


async def _apart(work: Callable[[], TaskResult], limits: RenderLimits) -> TaskResult:
    """In a thread; a large request waits for its key's turn. Cancelling ends the work."""
    current = charge.get()
    if current.num_bytes <= SMALL_BYTES:
        return await _endable(work, limits)
    async with current.budget.turn(current.name):
        return await _endable(work, limits)


async def _endable(work: Callable[[], TaskResult], limits: RenderLimits) -> TaskResult:
    try:
        return await asyncio.to_thread(work)
    except asyncio.CancelledError:
        limits.ended.set()
        raise


Side = Literal["left", "right"]
AS_FITS = -1
"""vLLM's value of ``truncate_prompt_tokens`` for as much of the prompt as fits."""
LEAST = 1
"""Tokens of the context reserved for the answer."""
PROMPT_PARAM = {"completions": "prompt", "responses": "input"}
"""The field of each API's prompt; 'messages' for the others."""


def fit(api: str, num_prompt: int, asked: int, at_least: int, longest: int) -> int:
    """How many tokens the answer may have: ``asked`` (0: no limit), or what is left.

    ``at_least`` is the request's minimum. Raises InvalidRequest when that or the prompt does not
    fit.
    """
    room = longest - num_prompt
    if room < max(LEAST, at_least):
        raise context_overflow(api, num_prompt, at_least or asked, longest)
    return min(asked, room) if asked else room


def shorten(token_ids: list[int], keep: int | None, side: Side, longest: int) -> list[int]:
    """At most ``keep`` tokens of a prompt; the rest is removed on ``side``."""
    if keep is None:
        return token_ids
    keep = longest - LEAST if keep == AS_FITS else keep
    return token_ids[-keep:] if side == "left" else token_ids[:keep]


def prompt_limits(keep: int | None, side: Side, longest: int) -> RenderLimits:
    """Limits while a prompt is rendered; ``keep`` as in ``shorten``."""
    if keep is None:
        return RenderLimits(max_tokens=longest)
    return RenderLimits(keep=longest - LEAST if keep == AS_FITS else keep, side=side)


def room_for_messages(asked: int, longest: int) -> int:
    """Tokens a conversation may have before its oldest messages are left out.

    Reserves the answer's limit, but at most a quarter of the context.
    """
    return longest - max(LEAST, min(asked, longest // 4))


def context_overflow(api: str, num_prompt: int, wanted: int, longest: int) -> InvalidRequest:
    """The API's own error message; ``wanted`` counts only if the prompt itself fits."""
    param = PROMPT_PARAM.get(api, "messages")
    write = _anthropic_message if api == "messages" else _openai_message
    counts = wanted if num_prompt <= longest else 0
    message = write(param, num_prompt, counts, longest)
    return InvalidRequest(message, param=param, code="context_length_exceeded")


def _openai_message(param: str, num_prompt: int, wanted: int, longest: int) -> str:
    prefix = f"This model's maximum context length is {longest} tokens. However, "
    if not wanted:
        return prefix + (
            f"your {param} resulted in {num_prompt} tokens. Please reduce the length of the "
            f"{param}."
        )
    return prefix + (
        f"you requested {num_prompt + wanted} tokens ({num_prompt} in the {param}, {wanted} in the "
        f"completion). Please reduce the length of the {param} or completion."
    )


def _anthropic_message(_param: str, num_prompt: int, wanted: int, longest: int) -> str:
    if not wanted:
        return f"prompt is too long: {num_prompt} tokens > {longest} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {num_prompt} + {wanted} > {longest}, "
        "decrease input length or `max_tokens` and try again"
    )


async def render_newest(
    conversation: Conversation, renderer: Renderer, room: int, longest: int | None = None
) -> list[int]:
    """The tokens of as much of the conversation as fits in ``room``, or of its last message.

    Raises PromptTooLong where even that has more than ``longest``.

    System messages stay. A tool result is dropped together with its call.
    """
    token_ids = await _render_within(room, conversation, renderer)
    if token_ids is not None:
        return token_ids
    too_few, enough = 0, max(0, len(_droppable(conversation)) - 1)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if await _render_within(room, drop_oldest(conversation, middle), renderer) is not None:
            enough = middle
        else:
            too_few = middle
    return await render(
        drop_oldest(conversation, enough), renderer, RenderLimits(max_tokens=longest)
    )


async def _render_within(
    room: int, conversation: Conversation, renderer: Renderer
) -> list[int] | None:
    """The tokens if they fit in ``room``, else None."""
    try:
        token_ids = await render(conversation, renderer, RenderLimits(max_tokens=room))
    except PromptTooLong:
        return None
    return token_ids if len(token_ids) <= room else None


def drop_oldest(conversation: Conversation, count: int) -> Conversation:
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
