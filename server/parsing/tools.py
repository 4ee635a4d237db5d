"""The tools a request offers, and the judgement of a call's arguments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from jsonschema_rs import (
    Draft202012Validator,
    FancyRegexOptions,
    ReferencingError,
    ValidationError,
)

from engine.events import Outcome

MAX_VISITS = 2000
"""Schemas that may look at one value."""
BACKTRACKS = 20_000
"""Steps of a pattern that looks around; others take linear time."""


def parse_object(text: str) -> dict[str, Any] | None:
    """``text`` as a JSON object, None when it is none. NaN and Infinity are no JSON."""
    value = _parse(text)
    return value if isinstance(value, dict) else None


def is_container(text: str) -> bool:
    """Whether ``text`` is a whole JSON object or array, so that nothing can follow it."""
    return isinstance(_parse(text), (dict, list))


def _parse(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return None


def refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


class Tool:
    """One offered function. Its validator is made when a call needs it."""

    def __init__(self, name: str, parameters: Any) -> None:
        self.name = name
        self.parameters: Mapping[str, Any] = parameters if isinstance(parameters, dict) else {}

    @cached_property
    def _validator(self) -> Draft202012Validator | None:
        """None for a schema that cannot be applied, or not in bounded time."""
        try:
            if not _is_bounded(self.parameters):
                return None
            return Draft202012Validator(
                dict(self.parameters),
                retriever=_retrieve,
                pattern_options=FancyRegexOptions(backtrack_limit=BACKTRACKS),
            )
        except (ValidationError, ReferencingError, ValueError, RecursionError):
            return None

    def accepts(self, arguments: Mapping[str, Any]) -> bool:
        """Whether they satisfy the schema. A schema that cannot be applied accepts all."""
        if self._validator is None:
            return True
        try:
            return self._validator.is_valid(arguments)
        except (ValidationError, ReferencingError, ValueError):
            return True


def _retrieve(uri: str) -> Any:
    raise ValueError(f"nothing is fetched: {uri[:80]}")


def _is_bounded(schema: Mapping[str, Any]) -> bool:
    """Whether a value is looked at a bounded number of times, references and branches included.

    Ten definitions that each refer to the next one twice look at it a thousand times. A schema
    that refers to itself below a property is as bounded as the value is.
    """
    seen: dict[int, int] = {}

    def visits(part: Any, open_: frozenset[int]) -> int:
        if not isinstance(part, dict) or id(part) in open_:
            return 1
        if id(part) not in seen:
            inside = open_ | {id(part)}
            seen[id(part)] = 1 + sum(visits(inner, inside) for inner in _in_place(part, schema))
        return min(seen[id(part)], 2 * MAX_VISITS)

    return visits(schema, frozenset()) <= MAX_VISITS and all(
        visits(part, frozenset()) <= MAX_VISITS for part in _parts(schema)
    )


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)


def _in_place(part: Mapping[str, Any], root: Any) -> Iterator[Any]:
    """The schemas that look at the same value as ``part`` does."""
    for name in ("allOf", "anyOf", "oneOf"):
        yield from part[name] if isinstance(part.get(name), list) else ()
    for name in ("not", "if", "then", "else"):
        yield part.get(name)
    if isinstance(part.get("dependentSchemas"), dict):
        yield from part["dependentSchemas"].values()
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        target = root
        for step in reference[1:].strip("/").split("/") if len(reference) > 1 else ():
            target = target.get(step) if isinstance(target, dict) else None
        yield target


class Tools:
    """By name. ``offered`` None means that nobody said what was offered: no call is unknown."""

    def __init__(self, offered: Iterable[Mapping[str, Any]] | None) -> None:
        self._unstated = offered is None
        functions = [tool.get("function", tool) for tool in offered or ()]
        self._by_name = {
            name: Tool(name, function.get("parameters"))
            for function in functions
            if isinstance(function, dict) and isinstance(name := function.get("name"), str)
        }

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The longest first; none where nobody said what was offered."""
        return tuple(sorted(self._by_name, key=len, reverse=True))

    def find(self, name: str) -> Tool | None:
        return self._by_name.get(name)

    def judge(self, name: str, arguments: str) -> Outcome:
        """How a call ended that was written to its end."""
        tool = self.find(name)
        if tool is None and not self._unstated:
            return Outcome.UNKNOWN_TOOL
        parsed = parse_object(arguments)
        if parsed is None:
            return Outcome.MALFORMED
        if tool is not None and not tool.accepts(parsed):
            return Outcome.SCHEMA_MISMATCH
        return Outcome.VALID
