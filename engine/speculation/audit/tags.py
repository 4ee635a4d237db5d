"""Matching of a finished answer against a structural tag, the form of most of the gateway's
grammars.

This is a small backtracking matcher over ``re``, ``json`` and ``jsonschema``, which shares nothing
with the automata that made the answer. Formats that it cannot read, and answers that take too long,
raise ``Unreadable``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

Node = Mapping[str, Any]
MOST_TRIES = 20_000
"""Most nodes and ends that are tried for one answer."""
ENFORCED = frozenset((
    "type", "required", "enum", "const", "additionalProperties", "minItems", "maxItems",
    "minLength", "maxLength", "minimum", "maximum", "pattern",
))  # fmt: skip
"""Keywords of JSON schemas that the engines' grammars enforce. Other broken keywords prove
nothing."""


class Unreadable(Exception):
    """The match cannot be decided here."""


def matches_tag(tag: str, text: str) -> bool:
    """Return True if the whole ``text`` matches a structural tag. Raises Unreadable."""
    matcher = _Matcher(text)
    try:
        return any(end == len(text) for end in matcher.match(json.loads(tag)["format"], 0))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise Unreadable(type(error).__name__) from None


class _Matcher:
    """Matcher of nodes in one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tries = 0

    def match(self, node: Node, at: int) -> Iterator[int]:
        """Yield the ends of the matches of ``node`` that begin at ``at``."""
        self._count()
        read = _READERS.get(node["type"])
        if read is None:
            raise Unreadable(node["type"])
        yield from read(self, node, at)

    def _count(self) -> None:
        self._tries += 1
        if self._tries > MOST_TRIES:
            raise Unreadable("too many tries")

    def sequence(self, node: Node, at: int) -> Iterator[int]:
        yield from self._follow(node["elements"], at)

    def _follow(self, elements: list[Node], at: int) -> Iterator[int]:
        if not elements:
            yield at
            return
        for end in self.match(elements[0], at):
            yield from self._follow(elements[1:], end)

    def either(self, node: Node, at: int) -> Iterator[int]:
        for element in node["elements"]:
            yield from self.match(element, at)

    def optional(self, node: Node, at: int) -> Iterator[int]:
        yield from self.match(node["content"], at)
        yield at

    def constant(self, node: Node, at: int) -> Iterator[int]:
        if self._text.startswith(node["value"], at):
            yield at + len(node["value"])

    def anything(self, node: Node, at: int) -> Iterator[int]:
        if node.get("excludes"):
            raise Unreadable("any_text with exclusions")
        for end in range(len(self._text), at - 1, -1):
            self._count()
            yield end

    def regex(self, node: Node, at: int) -> Iterator[int]:
        try:
            pattern = re.compile(node["pattern"], re.DOTALL)
        except re.error:
            raise Unreadable("another dialect of regular expressions") from None
        for end in range(len(self._text), at - 1, -1):
            self._count()
            if pattern.fullmatch(self._text, at, end):
                yield end

    def schema(self, node: Node, at: int) -> Iterator[int]:
        if node.get("style", "json") != "json":
            raise Unreadable(node["style"])
        try:
            value, end = json.JSONDecoder().raw_decode(self._text, self._skip_space(at))
        except ValueError:
            return
        if not find_broken_keyword(json.dumps(node["json_schema"]), value):
            yield end
            if (later := self._skip_space(end)) > end:
                yield later

    def _skip_space(self, at: int) -> int:
        while self._text[at : at + 1] in (" ", "\n", "\t", "\r"):
            at += 1
        return at

    def tag(self, node: Node, at: int) -> Iterator[int]:
        if not self._text.startswith(node["begin"], at):
            return
        inside = at + len(node["begin"])
        ends = [node["end"]] if isinstance(node["end"], str) else node["end"]
        if node["content"]["type"] == "any_text":
            yield from self._find_ends(inside, ends)
            return
        for close in self.match(node["content"], inside):
            yield from (close + len(end) for end in ends if self._text.startswith(end, close))

    def _find_ends(self, at: int, ends: list[str]) -> Iterator[int]:
        """Yield the end of free text, which extends to the first of ``ends``, or to the end if they
        are empty."""
        if not any(ends):
            yield len(self._text)
            return
        found = re.compile("|".join(map(re.escape, ends))).search(self._text, at)
        if found:
            yield found.end()

    def listed(self, node: Node, at: int) -> Iterator[int]:
        if not node.get("at_least_one"):
            yield at
        for tag in node["tags"]:
            for end in self.match(tag, at):
                yield end
                if not node.get("stop_after_first") and end > at:
                    yield from self._continue_list(node, end)

    def _continue_list(self, node: Node, at: int) -> Iterator[int]:
        separator = node["separator"]
        if self._text.startswith(separator, at):
            yield from self.listed({**node, "at_least_one": True}, at + len(separator))

    def triggered(self, node: Node, at: int) -> Iterator[int]:
        if node.get("excludes"):
            raise Unreadable("triggered_tags with exclusions")
        found = re.compile("|".join(map(re.escape, node["triggers"]))).search(self._text, at)
        if found is None:
            yield len(self._text)
            return
        for tag in node["tags"]:
            for end in self.match(tag, found.start()):
                if node.get("stop_after_first"):
                    yield end
                else:
                    yield from self.triggered(node, end)


_READERS: Mapping[str, Callable[[_Matcher, Node, int], Iterator[int]]] = {
    "sequence": _Matcher.sequence,
    "or": _Matcher.either,
    "optional": _Matcher.optional,
    "const_string": _Matcher.constant,
    "any_text": _Matcher.anything,
    "regex": _Matcher.regex,
    "json_schema": _Matcher.schema,
    "tag": _Matcher.tag,
    "tags_with_separator": _Matcher.listed,
    "triggered_tags": _Matcher.triggered,
}


def find_broken_keyword(schema: str, value: Any) -> str:
    """Return the keyword of a JSON schema that ``value`` breaks; empty if it breaks none.

    Raises Unreadable if jsonschema is missing or cannot read the schema, or if grammars ignore the
    keyword.
    """
    try:
        error = next(iter(_make_validator(schema).iter_errors(value)), None)
    except Exception as unread:  # a schema that this library cannot read
        raise Unreadable(type(unread).__name__) from None
    if error is not None and error.validator not in ENFORCED:
        raise Unreadable(str(error.validator))
    return "" if error is None else str(error.validator)


@lru_cache(maxsize=64)
def _make_validator(schema: str) -> Any:
    return import_module("jsonschema").Draft202012Validator(json.loads(schema))
