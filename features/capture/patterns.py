"""Regular expressions that run in time linear in the text (RE2).

Python's own engine backtracks: a common pattern for e-mail addresses takes ten seconds on 32,000
letters, during which no other thread runs. RE2 also releases the interpreter lock. Patterns use
Python's syntax; features that RE2 lacks, such as lookaround, are refused. ``\\w``, ``\\d`` and
``\\s`` have Python's Unicode meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

LETTERS = r"\p{L}_\p{M}\p{N}"
SPACES = r"\s\v\x{85}\p{Z}"
OUTSIDE = {
    "w": f"[{LETTERS}]",
    "W": f"[^{LETTERS}]",
    "d": r"\p{Nd}",
    "D": r"\P{Nd}",
    "s": f"[{SPACES}]",
    "S": f"[^{SPACES}]",
    "Z": r"\z",
}
"""Python's meaning of each escape in RE2's syntax, outside brackets."""
INSIDE = {"w": LETTERS, "d": r"\p{Nd}", "D": r"\P{Nd}", "s": SPACES}
"""The same inside brackets. ``\\W`` and ``\\S`` keep their ASCII meaning there, which matches more.
"""
ANCHORS = frozenset({"^", "$", r"\A", r"\Z", r"\z"})
END = r"(?:\n?\z)"
"""Equivalent of Python's ``$``, which also matches before a final line break."""
_SET = r"\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]"
_PIECE = re.compile(rf"{_SET}|\\Q.*?(?:\\E|$)|\\[pPx]\{{[^}}]*\}}|\\.|.", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_MULTI_LINE = re.compile(r"\(\?[a-zA-Z]*m")
_BOUNDARY = re.compile(r"\\[bB][^\x00-\x7f]|[^\x00-\x7f]\\[bB]")

Span = tuple[int, int]
Check = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Pattern:
    """One compiled pattern, with and without its anchors."""

    anchored: Any
    free: Any
    """Matches any text in which some part would match ``anchored``."""


def compile_pattern(source: str) -> Pattern:
    """Compile a pattern. Raises ValueError if RE2 rejects it or it matches the empty string."""
    if _BOUNDARY.search(source):
        raise ValueError(rf"'{source}': \b and \B support only ASCII letters: leave them out")
    anchored_pattern = _compile(source, "".join(_translate(source)))
    unanchored_pattern = _compile(source, "".join(_translate(source, anchors=False)))
    if unanchored_pattern.search(b""):
        raise ValueError(f"'{source}' matches the empty string, which is everywhere")
    return Pattern(anchored_pattern, unanchored_pattern)


def _compile(source: str, translation: str) -> Any:
    try:
        import re2
    except ImportError:
        raise ValueError(
            "patterns need google-re2: pip install '.[re2]' in eaglegate's checkout"
        ) from None
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(translation, options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace")
        raise ValueError(
            f"'{source}' is not a regular expression that RE2 accepts: {reason}"
        ) from None


def _translate(source: str, anchors: bool = True) -> Iterator[str]:
    multi_line = _MULTI_LINE.search(source) is not None
    for piece in _PIECE.findall(source):
        if piece in ANCHORS and not anchors:
            yield "(?:)"
        elif piece == "$" and not multi_line:
            yield END
        elif piece[0] == "[":
            yield _ESCAPE.sub(lambda match: INSIDE.get(match[1], match[0]), piece)
        elif piece[0] == "\\":
            yield OUTSIDE.get(piece[1:], piece)
        else:
            yield piece


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def find_spans(patterns: Sequence[Pattern], text: bytes, check: Check) -> list[Span]:
    """Find the spans that any pattern matches, in order, merged where they overlap or touch.

    ``check`` is called before every search; an exception from it ends the search.
    """
    spans: list[Span] = []
    for pattern in patterns:
        check()
        for match in pattern.anchored.finditer(text):
            if match.end() > match.start():
                spans.append((match.start(), match.end()))
            check()
    merged_spans: list[Span] = []
    for start, end in sorted(spans):
        if merged_spans and start <= merged_spans[-1][1]:
            merged_spans[-1] = merged_spans[-1][0], max(end, merged_spans[-1][1])
        else:
            merged_spans.append((start, end))
    return merged_spans


def contains_any(patterns: Sequence[Pattern], text: bytes, check: Check) -> bool:
    """Return True if any part of the text matches one of the patterns, ignoring anchors."""
    for pattern in patterns:
        check()
        if pattern.free.search(text):
            return True
    return False
