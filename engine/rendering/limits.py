"""Limits of one prompt: its length, and whether the result is still wanted."""

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
    """The client has left, or the time limit was reached."""


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """Limits of one rendering or tokenization; thread-safe."""

    max_tokens: int | None = None
    """The most tokens a prompt may have."""
    keep: int | None = None
    """Drop all but this many tokens at one end; ``max_tokens`` does not apply then."""
    side: Literal["left", "right"] = "left"
    """The end at which tokens are dropped."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when the result is no longer needed."""

    def check(self, num_tokens: int) -> None:
        """Raises PromptTooLong or RenderingCancelled."""
        if self.ended.is_set():
            raise RenderingCancelled("the client has left")
        if self.max_tokens is not None and self.keep is None and num_tokens > self.max_tokens:
            raise PromptTooLong(num_tokens)


NO_LIMITS = RenderLimits()
