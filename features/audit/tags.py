"""Matching of a finished answer against a structural tag, the form of most of the gateway's
grammars.

This is a small backtracking matcher over RE2, ``json`` and jsonschema-rs, which shares nothing with
the automata that made the answer. Formats that it cannot read, and answers that take too long,
raise ``Unreadable``. It runs in the child process of ``judge.py``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jsonschema_rs import (
    Draft202012Validator,
    ReferencingError,
    RegexOptions,
    ValidationError,
    ValidationErrorKind,
)

from eaglegate.text.grammars.enforcement import is_enforced

Node = Mapping[str, Any]
MOST_TRIES = 20_000
"""Most nodes and ends that are tried for one answer."""
PORTABLE = re.compile(
    r"""\^?(?: [^\\\[\]{}()^$] | \( (?!\?) | \(\?: | \) | \{\d+(?:,\d*)?\}
    | \\[^\w\s] | (?P<class>\\[dDsSwW]) | \\[fnrt]
    | \[\^?(?: [^\\\[\]] | \\[^\w\s] | (?P<inner>\\[dDsSwW]) | \\[fnrt] )+\] )*\$?""",
    re.VERBOSE,
)
"""Patterns that mean the same in every dialect. Grammars ignore anchors inside a pattern."""


class Unreadable(Exception):
    """The match cannot be decided here."""


def _read_float(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise Unreadable("a number that is too large")
    return number


JSON = json.JSONDecoder(parse_float=_read_float)
"""Reader of answers. Grammars allow ``1e999`` as a number."""


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

    def match(self, node: Node, position: int) -> Iterator[int]:
        """Yield the ends of the matches of ``node`` that begin at ``position``."""
        self._count()
        reader = _READERS.get(node["type"])
        if reader is None:
            raise Unreadable(node["type"])
        yield from reader(self, node, position)

    def _count(self) -> None:
        self._tries += 1
        if self._tries > MOST_TRIES:
            raise Unreadable("too many tries")

    def sequence(self, node: Node, position: int) -> Iterator[int]:
        yield from self._follow(node["elements"], position)

    def _follow(self, elements: list[Node], position: int) -> Iterator[int]:
        if not elements:
            yield position
            return
        for end in self.match(elements[0], position):
            yield from self._follow(elements[1:], end)

    def either(self, node: Node, position: int) -> Iterator[int]:
        for element in node["elements"]:
            yield from self.match(element, position)

    def optional(self, node: Node, position: int) -> Iterator[int]:
        yield from self.match(node["content"], position)
        yield position

    def constant(self, node: Node, position: int) -> Iterator[int]:
        if self._text.startswith(node["value"], position):
            yield position + len(node["value"])

    def anything(self, node: Node, position: int) -> Iterator[int]:
        if node.get("excludes"):
            raise Unreadable("any_text with exclusions")
        for end in range(len(self._text), position - 1, -1):
            self._count()
            yield end

    def regex(self, node: Node, position: int) -> Iterator[int]:
        pattern = compile_pattern(node["pattern"], self._text)
        suffix = self._text[position:]
        match = pattern.match(suffix)
        for end in range(match.end(), -1, -1) if match else ():
            self._count()
            if pattern.fullmatch(suffix[:end]):
                yield position + end

    def schema(self, node: Node, position: int) -> Iterator[int]:
        if node.get("style", "json") != "json":
            raise Unreadable(node["style"])
        try:
            value, end = JSON.raw_decode(self._text, self._skip_space(position))
        except json.JSONDecodeError:
            return
        if not find_broken_keyword(node["json_schema"], value, self._text):
            yield end
            if (space_end := self._skip_space(end)) > end:
                yield space_end

    def _skip_space(self, position: int) -> int:
        while self._text[position : position + 1] in (" ", "\n", "\t", "\r"):
            position += 1
        return position

    def tag(self, node: Node, position: int) -> Iterator[int]:
        if not self._text.startswith(node["begin"], position):
            return
        begin = position + len(node["begin"])
        ends = [node["end"]] if isinstance(node["end"], str) else node["end"]
        if node["content"]["type"] == "any_text":
            yield from self._find_ends(begin, ends)
            return
        for content_end in self.match(node["content"], begin):
            yield from (
                content_end + len(end) for end in ends if self._text.startswith(end, content_end)
            )

    def _find_ends(self, position: int, ends: list[str]) -> Iterator[int]:
        """Yield the end of free text, which extends to the first of ``ends``, or to the end if they
        are empty."""
        if not any(ends):
            yield len(self._text)
            return
        match = re.compile("|".join(map(re.escape, ends))).search(self._text, position)
        if match:
            yield match.end()

    def listed(self, node: Node, position: int) -> Iterator[int]:
        if not node.get("at_least_one"):
            yield position
        for tag in node["tags"]:
            for end in self.match(tag, position):
                yield end
                if not node.get("stop_after_first") and end > position:
                    yield from self._continue_list(node, end)

    def _continue_list(self, node: Node, position: int) -> Iterator[int]:
        separator = node["separator"]
        if self._text.startswith(separator, position):
            yield from self.listed({**node, "at_least_one": True}, position + len(separator))

    def triggered(self, node: Node, position: int) -> Iterator[int]:
        if node.get("excludes"):
            raise Unreadable("triggered_tags with exclusions")
        match = re.compile("|".join(map(re.escape, node["triggers"]))).search(self._text, position)
        if match is None:
            yield len(self._text)
            return
        for tag in node["tags"]:
            for end in self.match(tag, match.start()):
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


def compile_pattern(pattern: str, text: str) -> Any:
    """Compile a pattern with RE2. Raises Unreadable if engines may read it in another way, or match
    ``text`` in another way."""
    match = PORTABLE.fullmatch(pattern)
    if match is None:
        raise Unreadable("another dialect of regular expressions")
    if (match["class"] or match["inner"]) and not _is_plain(text):
        raise Unreadable("dialects differ in the classes of some characters")
    try:
        import re2
    except ImportError:
        raise Unreadable("google-re2 is not installed") from None
    options = re2.Options()
    options.log_errors, options.dot_nl, options.longest_match = False, True, True
    try:
        return re2.compile(pattern, options)
    except re2.error:
        raise Unreadable("another dialect of regular expressions") from None


def _is_plain(text: str) -> bool:
    """Return True for printable ASCII and the usual white space."""
    return re.fullmatch(r"[\t\n\r -~]*", text) is not None


def find_broken_keyword(schema: Any, value: Any, text: str) -> str:
    """Return a keyword that the value in ``text`` breaks although grammars enforce it; empty if it
    breaks none.

    Raises Unreadable if jsonschema-rs cannot read the schema, or if grammars may ignore every
    broken keyword.
    """
    try:
        validator = Draft202012Validator(
            schema, retriever=_refuse_reference, pattern_options=RegexOptions()
        )
        errors = list(validator.iter_errors(value))
    except (ValidationError, ReferencingError, ValueError) as failure:
        raise Unreadable(type(failure).__name__) from None
    for error in errors:
        if is_enforced(schema, error.evaluation_path) and _proves(error, text):
            return str(error.kind.name)
    if errors:
        raise Unreadable(str(errors[0].kind.name))
    return ""


def _proves(error: ValidationError, text: str) -> bool:
    """Return False if the engine may have read the value or its pattern in another way."""
    if "\\u" in text:  # grammars compare names and lengths as they are written
        return False
    if not isinstance(error.kind, ValidationErrorKind.Pattern):
        return True
    try:
        return compile_pattern(error.kind.pattern, text).search(error.instance) is None
    except Unreadable:
        return False


def _refuse_reference(uri: str) -> Any:
    raise ValueError(f"references are not fetched: {uri[:80]}")
