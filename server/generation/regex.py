"""A regular expression as a TextGrammar: the whole text matches it.

Python's own parser reads it. What looks around or back is no regular language and is refused.
"""

from __future__ import annotations

import re
import re._constants as sre  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import warnings
from collections.abc import Callable
from typing import Any

from server.generation.text_grammar import (
    TOO_DEEP,
    BadGrammar,
    Chars,
    Choice,
    Node,
    Repeat,
    Sequence,
    TextGrammar,
    char,
    chars,
    in_both_cases,
    other_than,
)

DIGITS = chars([(0x30, 0x39)])
SPACES = chars([(0x09, 0x0D), (0x20, 0x20)])
WORD = chars([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
CATEGORIES = {
    sre.CATEGORY_DIGIT: DIGITS,
    sre.CATEGORY_SPACE: SPACES,
    sre.CATEGORY_WORD: WORD,
    sre.CATEGORY_NOT_DIGIT: other_than(DIGITS),
    sre.CATEGORY_NOT_SPACE: other_than(SPACES),
    sre.CATEGORY_NOT_WORD: other_than(WORD),
}
"""ASCII alone."""
LINE_BREAK = char(0x0A)
BEGINS = (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING)
ENDS = (sre.AT_END, sre.AT_END_STRING)


def regex_grammar(pattern: str) -> TextGrammar:
    """Raises BadGrammar. ``^`` and ``$`` around all of it say nothing new."""
    try:
        parsed = _parse(pattern, 0)
        items = list(parsed)
        if items and items[0][0] is sre.AT and items[0][1] in BEGINS:
            items = items[1:]
        if items and items[-1][0] is sre.AT and items[-1][1] in ENDS:
            items = items[:-1]
        return TextGrammar(_sequence(items, parsed.state.flags), {})
    except RecursionError:
        raise BadGrammar(TOO_DEEP) from None


def regex_node(pattern: str, flags: int = 0) -> Node:
    """The same as a part of something larger. Raises BadGrammar."""
    parsed = _parse(pattern, flags)
    return _sequence(list(parsed), parsed.state.flags)


def _parse(pattern: str, flags: int) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return parser.parse(pattern, flags)
    except (re.error, OverflowError) as error:
        raise BadGrammar(f"it is not a valid regular expression: {error}") from None


def _sequence(items: Any, flags: int) -> Node:
    return Sequence(tuple(_node(kind, value, flags) for kind, value in items))


def _node(kind: Any, value: Any, flags: int) -> Node:
    make = _MAKERS.get(kind)
    if make is None:
        raise BadGrammar(f"{_WORDS.get(kind, str(kind))} is not supported in a regular expression")
    return make(value, flags)


def _literal(code: Any, flags: int) -> Node:
    return char(code, bool(flags & sre.SRE_FLAG_IGNORECASE))


def _not_literal(code: Any, flags: int) -> Node:
    return other_than(char(code, bool(flags & sre.SRE_FLAG_IGNORECASE)))


def _any(_: Any, flags: int) -> Node:
    return other_than(chars([])) if flags & sre.SRE_FLAG_DOTALL else other_than(LINE_BREAK)


def _set(items: Any, flags: int) -> Node:
    negated = items[0][0] is sre.NEGATE
    found = [one for kind, value in items[negated:] for one in _members(kind, value).ranges]
    members = chars(found)
    if flags & sre.SRE_FLAG_IGNORECASE:
        members = in_both_cases(members)
    return other_than(members) if negated else members


def _members(kind: Any, value: Any) -> Chars:
    if kind is sre.CATEGORY:
        return CATEGORIES[value]
    return chars([value]) if kind is sre.RANGE else char(value)


def _branch(value: Any, flags: int) -> Node:
    return Choice(tuple(_sequence(option, flags) for option in value[1]))


def _group(value: Any, flags: int) -> Node:
    _, added, removed, inner = value
    return _sequence(inner, (flags | added) & ~removed)


def _repeat(value: Any, flags: int) -> Node:
    least, most, inner = value
    return Repeat(_sequence(inner, flags), least, None if most is sre.MAXREPEAT else int(most))


_MAKERS: dict[Any, Callable[[Any, int], Node]] = {
    sre.LITERAL: _literal,
    sre.NOT_LITERAL: _not_literal,
    sre.ANY: _any,
    sre.IN: _set,
    sre.BRANCH: _branch,
    sre.SUBPATTERN: _group,
    sre.MAX_REPEAT: _repeat,
    sre.MIN_REPEAT: _repeat,
}
_WORDS = {
    sre.ASSERT: "a lookahead or lookbehind",
    sre.ASSERT_NOT: "a lookahead or lookbehind",
    sre.AT: "an anchor other than at the beginning and end",
    sre.ATOMIC_GROUP: "an atomic group",
    sre.GROUPREF: "a reference to a group",
    sre.GROUPREF_EXISTS: "a reference to a group",
    sre.POSSESSIVE_REPEAT: "a possessive repetition",
}
