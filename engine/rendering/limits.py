"""How much of a prompt anybody wants, and whether anybody still does."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Literal


class PromptTooLong(ValueError):
    """A prompt of more than ``RenderLimits.max_tokens``; it has ``at_least`` so many."""

    def __init__(self, at_least: int) -> None:
        super().__init__(f"the prompt has at least {at_least} tokens")
        self.at_least = at_least


class RenderingCancelled(Exception):
    """Whoever waited has left, or the time was up."""


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """Bounds of one rendering or tokenizing; thread-safe."""

    max_tokens: int | None = None
    """A prompt of more is not wanted."""
    keep: int | None = None
    """All but so many tokens at one end are dropped; ``max_tokens`` does not count then."""
    side: Literal["left", "right"] = "left"
    """Where they are dropped."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when the result is of no use any more."""

    def check(self, num_tokens: int) -> None:
        """Raises PromptTooLong or RenderingEnded."""
        if self.ended.is_set():
            raise RenderingCancelled("the client has left")
        if self.max_tokens is not None and self.keep is None and num_tokens > self.max_tokens:
            raise PromptTooLong(num_tokens)


NO_LIMITS = RenderLimits()
