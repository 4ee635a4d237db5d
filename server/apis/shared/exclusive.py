"""Whether the branches of a ``oneOf`` exclude each other, without comparing every two of them.

Branches are told apart by their types, or by a required property whose values are listed: the
discriminator. What one of these does not separate is looked at with the next; a few that are left
over are compared in pairs, and what takes too long counts as not exclusive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

PAIRS = 32
"""Branches that are compared with each other."""
MAX_WORK = 500_000
"""Values looked at for all of one schema."""
TYPE = ""
"""Stands for a branch's own type among the names of discriminators."""

Schema = Mapping[str, Any]
Told = dict[str, frozenset[str]]
"""What the values of a branch must be: by discriminator, those that are listed."""


class Exclusion:
    """For all ``oneOf`` of one schema; what is known of a branch is kept."""

    def __init__(self) -> None:
        self._told: dict[int, Told] = {}
        self._work = 0

    def holds(self, branches: Sequence[Schema]) -> bool:
        """Whether no value can match two of them, as far as that is cheap to show."""
        if len({id(branch) for branch in branches}) < len(branches):
            return False
        try:
            return self._separate([self._of(branch) for branch in branches])
        except _TooMuch:
            return False

    def _of(self, branch: Schema) -> Told:
        if id(branch) not in self._told:
            self._told[id(branch)] = told = _told_by(branch)
            self._spend(sum(map(len, told.values())))
        return self._told[id(branch)]

    def _separate(self, told: list[Told]) -> bool:
        if len(told) < 2:
            return True
        for name in set.intersection(*map(set, told)):
            groups = self._groups(told, name)
            if len(groups) > 1:
                return all(map(self._separate, groups))
        self._spend(len(told) ** 2)
        return len(told) <= PAIRS and all(_apart(a, b) for a, b in combinations(told, 2))

    def _groups(self, told: list[Told], name: str) -> list[list[Told]]:
        """Those that share a value of ``name``, directly or through others, together."""
        root = list(range(len(told)))

        def find(at: int) -> int:
            while root[at] != at:
                root[at] = at = root[root[at]]
            return at

        first: dict[str, int] = {}
        for at, values in enumerate(told):
            self._spend(len(values[name]))
            for value in values[name]:
                root[find(at)] = find(first.setdefault(value, at))
        groups: dict[int, list[Told]] = {}
        for at, values in enumerate(told):
            groups.setdefault(find(at), []).append(values)
        return list(groups.values())

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > MAX_WORK:
            raise _TooMuch


class _TooMuch(Exception):
    """The time for one schema is used up."""


def _apart(a: Told, b: Told) -> bool:
    return any(not (a[name] & b[name]) for name in a.keys() & b.keys())


def _told_by(schema: Schema) -> Told:
    told = {}
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, dict) and isinstance(required, list):
        for name in {name for name in required if isinstance(name, str)} & properties.keys():
            if values := _listed(properties[name]):
                told[f".{name}"] = values
    if types := _types(schema.get("type")):
        told[TYPE] = types
    return told


def _listed(part: Any) -> frozenset[str]:
    """The values that are allowed, if they are listed."""
    if not isinstance(part, dict):
        return frozenset()
    listed = [part["const"]] if "const" in part else part.get("enum")
    return frozenset(map(repr, listed)) if isinstance(listed, list) else frozenset()


def _types(named: Any) -> frozenset[str]:
    """Every integer is a number."""
    names = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    types = frozenset(name for name in names if isinstance(name, str))
    return types | {"number"} if "integer" in types else types
