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
    unthought: str | None = None
    """The answer when thinking is off, if it differs."""


@dataclass(frozen=True)
class ToolTurn:
    """A request that needs `tool`: the calls, their results, and the report on them."""

    tool: Tool
    user: str
    calls: tuple[Call, ...]
    results: tuple[str, ...]
    report: str


@dataclass(frozen=True)
class Held:
    """An answer that a grammar writes but for some stretches of it."""

    text: str
    own: tuple[tuple[int, int], ...]
    """Ranges of characters that the model decides."""


@dataclass(frozen=True)
class Dialogue:
    """Messages up to the model's turn, and the turn that is expected."""

    kind: str
    messages: list[dict[str, Any]]
    tools: list[Tool] | None
    thought: str
    answer: str
    calls: tuple[Call, ...] = ()
    unthought: str | None = None
    own: tuple[tuple[int, int], ...] | None = None
    """The stretches of the answer that the model decides, if a grammar writes the rest."""
