"""Label values: configured names and the most frequent templates only, so that series stay few."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

from eaglegate.engine.types import WORKLOADS

OTHER = "other"


class Labels(NamedTuple):
    """The labels of every request's metrics. Each value is from a configured set."""

    model: str
    lane: str
    workload: str


LABELS = Labels._fields


class KnownNames(frozenset[str]):
    """A closed set of label values. Any other value becomes ``other``."""

    def __call__(self, name: str) -> str:
        return name if name in self else OTHER


CONTEXT_BOUNDS = (512, 2048, 8192, 32768, 131072)
CONTEXTS = ("0-512", "513-2k", "2k-8k", "8k-32k", "32k-128k", "128k+")


def name_context(prompt_tokens: int) -> str:
    """Return the prompt-length bucket. An upper bound belongs to its bucket."""
    return CONTEXTS[bisect_left(CONTEXT_BOUNDS, prompt_tokens)]


class CappedNames:
    """A cap on label cardinality: the first ``limit`` names pass, later ones become ``other``."""

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
    """Return the API's name; any other path is ``other``, so that clients cannot create series."""
    if name_or_path in _APIS.values():
        return name_or_path
    return _APIS.get(name_or_path, OTHER)


TEXT, IMAGES = "text", "images"
"""Kinds of prompts."""
NO_KEY = ""
"""Label of requests without a key, and of keys that no operator has named."""
NO_TEMPLATE = "none"
NO_DRAFT = "none"


class TopTemplates:
    """Names for at most ``size`` fingerprints. A new one must be seen more often than the rarest.

    Candidates are counted by the space-saving sketch (Metwally et al. 2005) in ``8 * size``
    counters. Only certain occurrences of a candidate count against a named one, so a flood of
    fingerprints that are seen once each displaces nothing that was seen twice.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._named: dict[str, int] = {}
        self._candidates: dict[str, tuple[int, int]] = {}

    def name(self, fingerprint: str) -> tuple[str, str | None]:
        """Return the label value for one more request, and the name that it displaced, if any."""
        if not fingerprint:
            return NO_TEMPLATE, None
        if fingerprint in self._named:
            self._named[fingerprint] += 1
            return fingerprint, None
        if len(self._named) < self._size:
            self._named[fingerprint] = 1
            return fingerprint, None
        return self._challenge(fingerprint)

    def _challenge(self, fingerprint: str) -> tuple[str, str | None]:
        count = self._count(fingerprint)
        rarest_name = min(self._named, key=self._named.__getitem__, default=None)
        if rarest_name is None or count <= self._named[rarest_name]:
            return OTHER, None
        del self._named[rarest_name]
        del self._candidates[fingerprint]
        self._named[fingerprint] = count
        return fingerprint, rarest_name

    def _count(self, fingerprint: str) -> int:
        """Return the certain occurrences of a candidate, after counting this one."""
        count, error = self._candidates.get(fingerprint) or self._evict()
        self._candidates[fingerprint] = (count + 1, error)
        return count + 1 - error

    def _evict(self) -> tuple[int, int]:
        """Return a new candidate's initial count and error, both the count of the candidate it
        replaces."""
        if len(self._candidates) < 8 * self._size:
            return 0, 0
        rarest_name = min(self._candidates, key=lambda key: self._candidates[key][0])
        count, _ = self._candidates.pop(rarest_name)
        return count, count


class RecentNames:
    """The last ``size`` names in use. A new name displaces the least recently used one."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._names: list[str] = []

    def add(self, name: str) -> str | None:
        """Return the name that this one displaces, if any."""
        self._names = [label for label in self._names if label != name] + [name]
        return self._names.pop(0) if len(self._names) > self._size else None


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """Settings of telemetry. ``models``, ``lanes`` and ``workloads`` list the only values of these
    labels."""

    models: tuple[str, ...]
    lanes: tuple[str, ...] = ("default",)
    workloads: tuple[str, ...] = WORKLOADS
    max_depth: int = 16
    """Number of draft positions with their own series; deeper positions have none."""
    templates: int = 10
    """Number of templates shown by name. The rest is ``other``."""
    drafts: int = 8
    """Number of the latest drafts that keep their series."""
    keys: int = 32
    """Number of API keys shown by name, the first ones that operators named. The rest is
    ``other``."""
    window_s: float = 300.0
    """Length of the window of gauges and /debug/speculation, in seconds."""
    baseline_half_life_s: float = 6 * 3600.0
    """Half-life of the trailing baseline, in seconds."""
