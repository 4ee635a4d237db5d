"""Grammar of a custom tool's text, written as EBNF for the engine.

The grammar is a small tree of character sets, built from a regular expression or a Lark grammar.
It is written as xgrammar's EBNF, either for the plain text or for the text inside a JSON string:
most models write a call's arguments as JSON, where a quote takes two characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

Range = tuple[int, int]
LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)
MAX_DEPTH = 100
TOO_DEEP = f"it is nested too deeply, more than {MAX_DEPTH} levels"
NAMED = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
"""Characters that JSON writes as a backslash and one character."""
SPECIAL: tuple[Range, ...] = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
"""Ranges of characters that JSON has to escape."""


class BadGrammar(ValueError):
    """Invalid or unsupported grammar. The message names the problem."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character from sorted, disjoint ranges without surrogates."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    item: Node
    minimum: int
    maximum: int | None = None
    """Upper bound, or None if there is none."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A reference to a rule by its name."""

    name: str


Node = Chars | Sequence | Choice | Repeat | Rule


@dataclass(frozen=True, slots=True)
class TextGrammar:
    """Rules by name, and the node ``start`` that the whole text matches."""

    start: Node
    rules: Mapping[str, Node]

    def __post_init__(self) -> None:
        """Raise BadGrammar if the grammar is nested too deeply or matches no text."""
        if max(map(_depth, (self.start, *self.rules.values()))) > MAX_DEPTH:
            raise BadGrammar(TOO_DEEP)
        if not self._matches_something():
            raise BadGrammar("no text matches it")

    def ebnf(self, in_json: bool) -> str:
        """Write the grammar as EBNF, for the text itself or for a JSON string around it."""
        write = _Writer(_in_json if in_json else _plain)
        bodies = {"root": self.start, **{_name(name): body for name, body in self.rules.items()}}
        return "\n".join(f"{name} ::= {write.node(body)}" for name, body in bodies.items())

    def _matches_something(self) -> bool:
        productive_rules: set[str] = set()
        while True:
            names = {name for name, body in self.rules.items() if _produces(body, productive_rules)}
            if names == productive_rules:
                return _produces(self.start, productive_rules)
            productive_rules = names


def chars(ranges: Iterable[Range]) -> Chars:
    disjoint_ranges: list[Range] = []
    for low, high in sorted(_without(SURROGATES, ranges)):
        if disjoint_ranges and low <= disjoint_ranges[-1][1] + 1:
            disjoint_ranges[-1] = (disjoint_ranges[-1][0], max(high, disjoint_ranges[-1][1]))
        else:
            disjoint_ranges.append((low, high))
    return Chars(tuple(disjoint_ranges))


def other_than(char_class: Chars) -> Chars:
    complement: list[Range] = [(0, LAST)]
    for char_range in char_class.ranges:
        complement = list(_without(char_range, complement))
    return chars(complement)


def text(string: str, ignore_case: bool = False) -> Node:
    return Sequence(tuple(char(ord(character), ignore_case) for character in string))


def char(code: int, ignore_case: bool = False) -> Chars:
    char_class = chars([(code, code)])
    return in_both_cases(char_class) if ignore_case else char_class


def in_both_cases(char_class: Chars) -> Chars:
    """Add the other case of every single character and of ASCII characters in ranges."""
    ranges = list(char_class.ranges)
    for low, high in char_class.ranges:
        if low == high:
            cases = (chr(low).lower(), chr(low).upper())
            ranges += [(ord(variant), ord(variant)) for variant in cases if len(variant) == 1]
        for first, last, shift in ((0x41, 0x5A, 32), (0x61, 0x7A, -32)):
            if (start := max(low, first)) <= (end := min(high, last)):
                ranges.append((start + shift, end + shift))
    return chars(ranges)


def _without(hole: Range, ranges: Iterable[Range]) -> Iterable[Range]:
    for low, high in ranges:
        if high < hole[0] or low > hole[1]:
            yield low, high
            continue
        if low < hole[0]:
            yield low, hole[0] - 1
        if high > hole[1]:
            yield hole[1] + 1, high


def _depth(node: Node) -> int:
    match node:
        case Sequence(items) | Choice(items):
            return 1 + max(map(_depth, items), default=0)
        case Repeat(item):
            return 1 + _depth(item)
        case _:
            return 1


def _produces(node: Node, productive_rules: set[str]) -> bool:
    match node:
        case Chars(ranges):
            return bool(ranges)
        case Sequence(items):
            return all(_produces(item, productive_rules) for item in items)
        case Choice(items):
            return any(_produces(item, productive_rules) for item in items)
        case Repeat(item, minimum):
            return minimum == 0 or _produces(item, productive_rules)
        case Rule(name):
            return name in productive_rules


def _name(rule: str) -> str:
    return f"rule_{rule}"


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writer of nodes as EBNF; ``chars`` writes a set of characters."""

    chars: Callable[[Chars], list[str]]

    def node(self, node: Node) -> str:
        """Write a node as the right-hand side of a rule."""
        options = node.items if isinstance(node, Choice) else (node,)
        return " | ".join(self._sequence(option) for option in options)

    def _sequence(self, node: Node) -> str:
        items = node.items if isinstance(node, Sequence) else (node,)
        return " ".join(self._atom(item) for item in items) or '""'

    def _atom(self, node: Node) -> str:
        match node:
            case Chars():
                alternatives = self.chars(node)
                return (
                    alternatives[0] if len(alternatives) == 1 else f"({' | '.join(alternatives)})"
                )
            case Rule(name):
                return _name(name)
            case Repeat(item, minimum, maximum):
                return f"({self.node(item)}){_times(minimum, maximum)}"
            case _:
                return f"({self.node(node)})"


def _times(minimum: int, maximum: int | None) -> str:
    operator = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((minimum, maximum))
    return operator or f"{{{minimum},{'' if maximum is None else maximum}}}"


def _plain(char_class: Chars) -> list[str]:
    """Write a character class for plain text."""
    if not char_class.ranges:
        return []
    body = "".join(
        _code(low) if low == high else f"{_code(low)}-{_code(high)}"
        for low, high in char_class.ranges
    )
    return [f"[{body}]"]


def _in_json(char_class: Chars) -> list[str]:
    """Write a character class for text in a JSON string, where some characters are escaped."""
    plain_ranges: Iterable[Range] = char_class.ranges
    for char_range in SPECIAL:
        plain_ranges = list(_without(char_range, plain_ranges))
    special_codes = [
        code
        for special_start, special_end in SPECIAL
        for low, high in char_class.ranges
        for code in range(max(low, special_start), min(high, special_end) + 1)
    ]
    letters = "".join(NAMED[chr(code)] for code in special_codes if chr(code) in NAMED)
    hex_codes = [code for code in special_codes if chr(code) not in NAMED]
    parts = _plain(chars(plain_ranges))
    if letters:
        parts.append(f'"\\\\" {_plain(chars((ord(letter), ord(letter)) for letter in letters))[0]}')
    for high in sorted({code >> 4 for code in hex_codes}):
        digits = "".join(f"{code & 15:x}" for code in hex_codes if code >> 4 == high)
        parts.append(f'"\\\\u00{high}" [{digits}]')
    return parts


def _code(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
