"""Messages and tools in, token ids out. Templates are the model's own, run by its own renderer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from server.errors import InvalidRequest
from server.events import Phase


class Renderer(Protocol):
    """The model's tokenizer and chat template. Thread-safe; raises ValueError on bad messages."""

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]: ...

    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    @property
    def tokenizer(self) -> Any:
        """The tokenizer object itself, for the parsers' vocabulary."""
        ...


@dataclass(frozen=True, slots=True)
class Conversation:
    """All a chat template is given."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and the phase in which the answer begins."""

    token_ids: tuple[int, ...]
    starts_in: Phase = Phase.CONTENT
    reasoned: bool = False
    """It ends with a reasoning that is closed, as a template writes that is told not to think."""


async def encode(text: str, renderer: Renderer, add_special_tokens: bool) -> list[int]:
    """Tokenize off the event loop."""
    return await asyncio.to_thread(renderer.encode, text, add_special_tokens)


async def render(conversation: Conversation, renderer: Renderer) -> list[int]:
    """Render off the event loop. Raises InvalidRequest when the template refuses the messages."""
    try:
        return await asyncio.to_thread(
            renderer.render_chat,
            conversation.messages,
            conversation.tools or None,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            chat_template_kwargs=conversation.template_kwargs,
        )
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"The chat template of this model refused the messages: {error}", param="messages"
        ) from error
