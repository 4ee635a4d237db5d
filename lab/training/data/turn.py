"""One exchange of a conversation, before it is rendered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Tool = dict[str, Any]
"""A tool in the OpenAI form."""


@dataclass(frozen=True)
class Call:
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class PlainTurn:
    """A user's message, and the model's thought and answer."""

    kind: str
    user: str
    thought: str
    answer: str
    direct_answer: str | None = None
    """Answer with thinking off, if it differs."""


@dataclass(frozen=True)
class ToolTurn:
    """Request that needs `tool`, with its calls, their results and the final report."""

    tool: Tool
    user: str
    calls: tuple[Call, ...]
    results: tuple[str, ...]
    report: str


@dataclass(frozen=True)
class Held:
    """Answer that a grammar writes except for some ranges."""

    text: str
    own_spans: tuple[tuple[int, int], ...]
    """Ranges of characters that the model chooses."""


@dataclass(frozen=True)
class Dialogue:
    """Messages up to the model's turn, and the expected turn."""

    kind: str
    messages: list[dict[str, Any]]
    tools: list[Tool] | None
    thought: str
    answer: str
    calls: tuple[Call, ...] = ()
    direct_answer: str | None = None
    own_spans: tuple[tuple[int, int], ...] | None = None
    """Ranges of the answer that the model chooses, if a grammar writes the rest."""
