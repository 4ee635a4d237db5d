"""Messages and tools to token ids, through the model's own chat template."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

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
