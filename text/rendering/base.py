"""The interface of a renderer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from eaglegate.text.rendering.encoding import NO_LIMITS, RenderLimits


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
        """Render a conversation to token ids. ``chat_template`` is the request's own template.

        Raises ValueError and PromptTooLong.
        """
        ...

    def encode(
        self, text: str, add_special_tokens: bool, limits: RenderLimits = NO_LIMITS
    ) -> list[int]:
        """Encode a text to token ids. Raises PromptTooLong."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def tokenizer_info(self) -> dict[str, Any]:
        """Return tokenizer_config.json and the chat template, without local paths."""
        ...

    @property
    def tokenizer(self) -> Any:
        """The tokenizer object itself, for the parsers' vocabulary."""
        ...
