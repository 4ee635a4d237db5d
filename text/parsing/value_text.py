"""The text of a value in tags: tags of its own that are left in it, and line breaks around it."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

from eaglegate.text.parsing.markers import FRAGMENT
from eaglegate.text.parsing.reader import TextSink


def has_own_tags(text: str, opening: str, end: str, closed: bool) -> bool:
    """Whether tags of a value's own are left in its ``text`` by accident.

    Values quote tags. But a closing tag is no quotation where the value is not ``closed`` by
    another, or where the value ends with it and nothing in the value has opened it. ``opening`` is
    the beginning of an opening tag.
    """
    if not closed and (FRAGMENT in text or text[-1:].isspace()):
        return True
    if end not in text:
        return FRAGMENT in text and _CUT_TAG.search(text) is not None
    at_end = text.rstrip().endswith(end) and text.count(end) > text.count(opening)
    return not closed or at_end or holds_next(text, opening, end)


def holds_next(text: str, opening: str, end: str) -> bool:
    """Whether a value goes over into the next one, whose tags are broken.

    Then a closing tag in its ``text`` closes nothing there, and an opening tag that nothing
    closes stands close behind it. Whole elements that a value quotes are opened first.
    """
    last = text.rfind(opening)
    before = text.rfind(end, 0, max(0, last))
    if before < 0 or end in text[last:] or last - before - len(end) > _LONGEST_GAP:
        return False
    return text.count(end, 0, last) > text.count(opening, 0, before)


_LONGEST_GAP = 100
"""Between the closing tag of a value and the opening tag of the next, with one piece too many."""
_CUT_TAG = re.compile(rf"</?{FRAGMENT}\s*\Z")
_TAG_AT_END = re.compile(r"\n?<(?:/(?:[^<>\s]{0,64}>?\s{0,99}+)?)?\Z")
_NEXT_TAG = re.compile(r"(</[^<>\s]{1,64}>)\s{0,99}(<?\s?[^<>\s=/]{1,64}=?)")
_ALIKE = 0.8
"""Share of a misspelt tag's letters that are the tag's, in order."""


class MisspeltEnd:
    """A sink that keeps back a closing tag at the end of the text.

    If nothing else closes the value, and the tag is the value's own but for its spelling, or has
    the ``name`` of the parameter, it is no part of the value. Another one that nothing in the value
    opens was meant to close it, perhaps. ``opening`` is what opens a value; if one that is misspelt
    follows a closing tag inside the value, the value holds the next one.
    """

    __slots__ = ("_held", "_name", "_opening", "_parts", "_sink", "_tag")

    def __init__(self, tag: str, opening: str, name: str, sink: TextSink) -> None:
        self._tag = tag
        self._name = name
        self._opening = opening
        self._sink = sink
        self._held = ""
        self._parts: list[str] = []
        """The text from the first angle on."""

    def write(self, text: str) -> None:
        if self._parts or "<" in text:
            self._parts.append(text)
        if not self._held and "<" not in text:
            self._sink(text)
            return
        text = self._held + text
        found = _TAG_AT_END.search(text, max(0, len(text) - 170))
        end = found.start() if found else len(text)
        self._held = text[end:]
        if end:
            self._sink(text[:end])

    def end(self, closed: bool) -> bool:
        """Whether a tag of the format is left in it. ``closed``: its own tag has ended it."""
        held, self._held = self._held, ""
        if not held or (not closed and self._is_own(held)):
            return self._holds_another()
        self._sink(held)
        if not closed and (FRAGMENT in held or self._is_unopened(held)):
            return True
        return self._holds_another()

    def _is_unopened(self, written: str) -> bool:
        word = written.strip("</> \t\n")
        return bool(word) and f"<{word}" not in "".join(self._parts)

    def _holds_another(self) -> bool:
        """Whether a closing tag in the text has no opening, and a misspelt one follows it."""
        text = "".join(self._parts)
        closing = self._tag[:-1]
        if text.count(closing) <= text.count(self._opening):
            return False
        name = self._opening.strip("<=").removesuffix(" name")
        for found in _NEXT_TAG.finditer(text):
            written, following = found[1].rstrip(">"), found[2]
            if written == closing and (
                following.startswith(("name=", "<name="))
                or SequenceMatcher(None, following.strip("< "), name).ratio() >= _ALIKE
            ):
                return True
        return False

    def _is_own(self, written: str) -> bool:
        one, other = (tag.strip("</> \t\n" + FRAGMENT) for tag in (written, self._tag))
        return one == self._name or SequenceMatcher(None, one, other).ratio() >= _ALIKE


class LeadingBreak:
    """A sink that drops the line break, or other opening, that the text begins with."""

    __slots__ = ("_held", "_line", "_sink")

    def __init__(self, line: str, sink: TextSink) -> None:
        self._line = line
        self._sink = sink
        self._held: str | None = ""

    def write(self, text: str) -> None:
        if self._held is not None:
            text = self._held + text
            if len(text) < len(self._line) and self._line.startswith(text):
                self._held = text
                return
            self._held, text = None, text.removeprefix(self._line)
        if text:
            self._sink(text)


class OwnLines:
    """A sink that drops the line break that the text begins with, and then the one at its end."""

    __slots__ = ("_held", "_on_lines", "_sink")

    def __init__(self, sink: TextSink) -> None:
        self._sink = sink
        self._on_lines: bool | None = None
        self._held = ""

    def write(self, text: str) -> None:
        if self._on_lines is None:
            self._on_lines = text.startswith("\n")
            text = text.removeprefix("\n")
        text = self._held + text
        self._held = "\n" if self._on_lines and text.endswith("\n") else ""
        if text := text.removesuffix(self._held):
            self._sink(text)
