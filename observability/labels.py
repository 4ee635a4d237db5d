"""Names that may become label values: only configured ones, and few of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

OTHER = "other"


class Labels(NamedTuple):
    """The labels every request's metrics carry; each value is of a configured set."""

    model: str
    lane: str
    workload: str


LABELS = Labels._fields


@dataclass(frozen=True, slots=True)
class KnownNames:
    """A closed set of label values; what is outside becomes ``other``."""

    known: frozenset[str]

    @classmethod
    def of(cls, names: Iterable[str]) -> KnownNames:
        return cls(frozenset(names))

    def __call__(self, name: str) -> str:
        return name if name in self.known else OTHER


CONTEXT_BOUNDS = (512, 2048, 8192, 32768, 131072)
CONTEXTS = ("0-512", "513-2k", "2k-8k", "8k-32k", "32k-128k", "128k+")


def name_context(prompt_tokens: int) -> str:
    """The prompt-length bucket; an upper bound belongs to its bucket."""
    return CONTEXTS[bisect_left(CONTEXT_BOUNDS, prompt_tokens)]


class CappedNames:
    """For names that are bounded by somebody else's word: the first ``limit`` pass."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def __call__(self, name: str) -> str:
        if name not in self._known:
            if len(self._known) >= self._limit:
                return OTHER
            self._known.add(name)
        return name


_APIS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}


def name_api(name_or_path: str) -> str:
    """The API's name; a path nobody serves is ``other``, or anyone could make up series."""
    if name_or_path in _APIS.values():
        return name_or_path
    return _APIS.get(name_or_path, OTHER)
