"""Conversion of Lark grammars and regular expressions to a TextGrammar.

Lark's own grammar of its syntax parses the definition. Rules are not expanded, because expansion
may not terminate. Terminals are matched without a lexer, so the result accepts more than Lark's
longest-match lexer does.
"""

from __future__ import annotations

import ast
import re
import re._constants as sre  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from eaglegate.text.grammars.text_grammar import (
    TOO_DEEP,
    BadGrammar,
    Chars,
    Choice,
    Node,
    Repeat,
    Rule,
    Sequence,
    TextGrammar,
    char,
    chars,
    in_both_cases,
    other_than,
    text,
)

if TYPE_CHECKING:
    from lark import Lark, Tree

START = "start"
COMMON = "common__"
IGNORED = Rule("ignored__ANY")
"""Rule for ignored text. A Lark rule name cannot mix cases, so no rule can have this name."""
FLAGS = {"i": re.IGNORECASE, "s": re.DOTALL, "m": re.MULTILINE, "x": re.VERBOSE, "u": re.UNICODE}
TIMES = {"?": (0, 1), "*": (0, None), "+": (1, None)}
REPLACED = {"ESCAPED_STRING": r'"([^"\\\n]|\\[^\n])*"', "C_COMMENT": r"/\*([^*]|\*+[^*/])*\*+/"}
"""Replacements for terminals of Lark's ``common`` that use lookbehind or lazy matching."""


def lark_grammar(definition: str) -> TextGrammar:
    """Convert a Lark grammar. Raises BadGrammar."""
    reading = _Reading()
    try:
        reading.read(_tree(definition))
        return reading.grammar()
    except RecursionError:
        raise BadGrammar(TOO_DEEP) from None


def _tree(definition: str) -> Tree[Any]:
    from lark.exceptions import UnexpectedInput

    try:
        return _syntax().parse(definition + "\n")
    except UnexpectedInput as error:
        place = f"line {error.line}, column {error.column}"
        raise BadGrammar(f"it is not a valid Lark grammar at {place}") from None


@cache
def _syntax() -> Lark:
    from lark import Lark

    return Lark.open_from_package(
        "lark", "lark.lark", ["grammars"], parser="lalr", maybe_placeholders=False
    )


@cache
def _common() -> dict[str, Tree[Any]]:
    """Return the terminals of ``%import common`` by name."""
    from importlib.resources import files

    source = (files("lark") / "grammars" / "common.lark").read_text("utf-8")
    return {str(tree.children[0]): tree.children[-1] for tree in _tree(source).children}


def _plain(name: str) -> str:
    """Strip the prefixes that affect only Lark's parse tree."""
    return name.lstrip("!?")


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


class _Reading:
    """The rules read so far."""

    def __init__(self) -> None:
        self._rules: dict[str, Node] = {}
        self._ignored: list[Node] = []

    def read(self, tree: Tree[Any]) -> None:
        ignored_trees = [item.children[0] for item in tree.children if item.data == "ignore"]
        self._ignored = [_Body().node(body) for body in ignored_trees]
        for item in tree.children:
            match str(item.data):
                case "rule" | "token":
                    self._define(item.children)
                case "import":
                    path, *alias = item.children
                    self._import(path.children, str(alias[0].children[0]) if alias else None)
                case "multi_import":
                    path, names = item.children
                    for name in names.children:
                        self._import([*path.children, ".", name])
                case "ignore":
                    pass
                case other:
                    raise BadGrammar(f"'%{other.partition('_')[0]}' is not supported")

    def grammar(self) -> TextGrammar:
        if START not in self._rules:
            raise BadGrammar(f"it has no rule '{START}'")
        for body in (*self._rules.values(), *self._ignored):
            for name in _names(body):
                if name not in self._rules:
                    raise BadGrammar(f"it has no rule '{name[:64]}'")
        if not self._ignored:
            return TextGrammar(Rule(START), self._rules)
        separator = Repeat(Choice(tuple(self._ignored)), 0)
        return TextGrammar(
            Sequence((IGNORED, Rule(START))), self._rules | {IGNORED.name: separator}
        )

    def _define(self, parts: list[Any]) -> None:
        name, params, *_, body = parts
        if params.children:
            raise BadGrammar("templates are not supported")
        has_spaces = bool(self._ignored) and not _is_terminal(name)
        self._add(_plain(name), _Body(has_spaces).node(body))

    def _add(self, name: str, body: Node) -> None:
        if name in self._rules:
            raise BadGrammar(f"it has the rule '{name[:64]}' twice")
        self._rules[name] = body

    def _import(self, path: list[Any], alias: str | None = None) -> None:
        words = [part if isinstance(part, str) else str(part.children[0]) for part in path]
        if len(words) != 3 or words[0] != "common" or words[2] not in _common():
            raise BadGrammar(
                f"it imports '{''.join(words)[:64]}'; only the terminals of 'common' are available"
            )
        self._add(alias or words[2], Rule(COMMON + words[2]))
        self._add_common(words[2])

    def _add_common(self, name: str) -> None:
        if COMMON + name in self._rules:
            return
        if name in REPLACED:
            self._rules[COMMON + name] = regex_node(REPLACED[name])
            return
        body = self._rules[COMMON + name] = _Body(prefix=COMMON).node(_common()[name])
        for dependency in _names(body):
            self._add_common(dependency.removeprefix(COMMON))


@dataclass(frozen=True, slots=True)
class _Body:
    """The right side of a rule."""

    spaced: bool = False
    """True if ignored text may follow every terminal."""
    prefix: str = ""

    def node(self, tree: Tree[Any]) -> Node:
        parts = tree.children
        match str(tree.data):
            case "expansions":
                return Choice(tuple(map(self.node, parts)))
            case "expansion":
                return Sequence(tuple(map(self.node, parts)))
            case "alias":
                return self.node(parts[0])
            case "maybe":
                return Repeat(self.node(parts[0]), 0, 1)
            case "expr":
                return Repeat(self.node(parts[0]), *_bounds(parts[1:]))
            case "name":
                name = _plain(str(parts[0]))
                return self._add_ignored(Rule(self.prefix + name), _is_terminal(name))
            case "literal":
                return self._add_ignored(_parse_literal(str(parts[0])))
            case "literal_range":
                return self._add_ignored(_range(str(parts[0]), str(parts[1])))
            case _:
                raise BadGrammar("templates are not supported")

    def _add_ignored(self, node: Node, terminal: bool = True) -> Node:
        return Sequence((node, IGNORED)) if self.spaced and terminal else node


def _bounds(parts: list[Any]) -> tuple[int, int | None]:
    if parts[0] in TIMES:
        return TIMES[parts[0]]
    minimum, maximum = int(parts[0]), int(parts[-1])
    if not 0 <= minimum <= maximum:
        raise BadGrammar(f"it has an invalid repetition, from {minimum} to {maximum}")
    return minimum, maximum


def _parse_literal(literal: str) -> Node:
    body, _, flags = literal[1:].rpartition(literal[0])
    if literal[0] == "/":
        return regex_node(body.replace("\\/", "/"), sum(FLAGS.get(flag, 0) for flag in flags))
    return text(_unescape(body), ignore_case=flags == "i")


def _range(first_char: str, last_char: str) -> Node:
    low, high = _unescape(first_char[1:-1]), _unescape(last_char[1:-1])
    if len(low) != 1 or len(high) != 1 or low > high:
        raise BadGrammar(f"it has an invalid range {first_char[:16]}..{last_char[:16]}")
    return chars([(ord(low), ord(high))])


def _unescape(body: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return str(ast.literal_eval(f'"{body}"'))
    except (ValueError, SyntaxError):
        raise BadGrammar(f"it has a string with a bad escape: {body[:32]}") from None


def _names(node: Node) -> Iterator[str]:
    match node:
        case Rule(name):
            if node is not IGNORED:
                yield name
        case Sequence(items) | Choice(items):
            for item in items:
                yield from _names(item)
        case Repeat(item):
            yield from _names(item)


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
"""Character classes, limited to ASCII."""
LINE_BREAK = char(0x0A)
BEGINS = (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING)
ENDS = (sre.AT_END, sre.AT_END_STRING)


def regex_grammar(pattern: str) -> TextGrammar:
    """Convert a regular expression; an outer ``^`` and ``$`` are redundant. Raises BadGrammar."""
    try:
        pattern_tree = _parse(pattern, 0)
        items = list(pattern_tree)
        if items and items[0][0] is sre.AT and items[0][1] in BEGINS:
            items = items[1:]
        if items and items[-1][0] is sre.AT and items[-1][1] in ENDS:
            items = items[:-1]
        return TextGrammar(_sequence(items, pattern_tree.state.flags), {})
    except RecursionError:
        raise BadGrammar(TOO_DEEP) from None


def regex_node(pattern: str, flags: int = 0) -> Node:
    """Convert a regular expression to a node of a larger grammar. Raises BadGrammar."""
    pattern_tree = _parse(pattern, flags)
    return _sequence(list(pattern_tree), pattern_tree.state.flags)


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


def _set(items: Any, flags: int) -> Node:
    is_negated = items[0][0] is sre.NEGATE
    ranges = [
        char_range
        for kind, value in (items[1:] if is_negated else items)
        for char_range in _members(kind, value).ranges
    ]
    members = chars(ranges)
    if flags & sre.SRE_FLAG_IGNORECASE:
        members = in_both_cases(members)
    return other_than(members) if is_negated else members


def _members(kind: Any, value: Any) -> Chars:
    if kind is sre.CATEGORY:
        return CATEGORIES[value]
    return chars([value]) if kind is sre.RANGE else char(value)


def _group(value: Any, flags: int) -> Node:
    _, new_flags, old_flags, items = value
    return _sequence(items, (flags | new_flags) & ~old_flags)


def _repeat(value: Any, flags: int) -> Node:
    minimum, maximum, items = value
    return Repeat(
        _sequence(items, flags), minimum, None if maximum is sre.MAXREPEAT else int(maximum)
    )


_MAKERS: dict[Any, Callable[[Any, int], Node]] = {
    sre.LITERAL: lambda code, flags: char(code, bool(flags & sre.SRE_FLAG_IGNORECASE)),
    sre.NOT_LITERAL: lambda code, flags: other_than(
        char(code, bool(flags & sre.SRE_FLAG_IGNORECASE))
    ),
    sre.ANY: lambda _, flags: other_than(chars([]) if flags & sre.SRE_FLAG_DOTALL else LINE_BREAK),
    sre.IN: _set,
    sre.BRANCH: lambda value, flags: Choice(tuple(_sequence(option, flags) for option in value[1])),
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
