"""Checks and sinks for a value in tags: stray tags in its text, and line breaks around it."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

from eaglegate.text.parsing.markers import FRAGMENT
from eaglegate.text.parsing.reader import TextSink


def has_own_tags(text: str, opening: str, end: str, is_closed: bool) -> bool:
    """Return True if a value's ``text`` contains tags of its own format by accident.

    Values may quote tags. But a closing tag is not a quotation if no other tag closed the value
    (``is_closed``), or if the value ends with it and nothing in the value opened it. ``opening``
    is the beginning of an opening tag.
    """
    if not is_closed and (FRAGMENT in text or text[-1:].isspace()):
        return True
    if end not in text:
        return FRAGMENT in text and _CUT_TAG.search(text) is not None
    at_end = text.rstrip().endswith(end) and text.count(end) > text.count(opening)
    return not is_closed or at_end or holds_next(text, opening, end)


def holds_next(text: str, opening: str, end: str) -> bool:
    """Return True if a value contains the next value, whose tags are broken.

    Then its ``text`` has a closing tag that closes nothing, and shortly after it an opening tag
    that nothing closes. A complete element that a value quotes is opened first.
    """
    last_opening = text.rfind(opening)
    last_end = text.rfind(end, 0, max(0, last_opening))
    if (
        last_end < 0
        or end in text[last_opening:]
        or last_opening - last_end - len(end) > _LONGEST_GAP
    ):
        return False
    return text.count(end, 0, last_opening) > text.count(opening, 0, last_end)


_LONGEST_GAP = 100
"""Longest text between a value's closing tag and the next value's opening tag."""
_CUT_TAG = re.compile(rf"</?{FRAGMENT}\s*\Z")
_TAG_AT_END = re.compile(r"\n?<(?:/(?:[^<>\s]{0,64}>?\s{0,99}+)?)?\Z")
_NEXT_TAG = re.compile(r"(</[^<>\s]{1,64}>)\s{0,99}(<?\s?[^<>\s=/]{1,64}=?)")
_ALIKE = 0.8
"""Least similarity ratio between a misspelt tag and the tag."""


class MisspeltEnd:
    """Sink that keeps back a closing tag at the end of the text.

    If nothing else closes the value, a misspelt form of its own tag, or a tag with the ``name`` of
    the parameter, is not part of the value. Any other closing tag that nothing in the value opens
    may have been meant to close it. ``opening`` is the beginning of a value's opening tag. If a
    misspelt opening tag follows a closing tag inside the value, the value contains the next one.
    """

    __slots__ = ("_held", "_name", "_opening", "_parts", "_sink", "_tag")

    def __init__(self, tag: str, opening: str, name: str, sink: TextSink) -> None:
        self._tag = tag
        self._name = name
        self._opening = opening
        self._sink = sink
        self._held = ""
        self._parts: list[str] = []
        """Text from the first angle bracket on."""

    def write(self, text: str) -> None:
        if self._parts or "<" in text:
            self._parts.append(text)
        if not self._held and "<" not in text:
            self._sink(text)
            return
        text = self._held + text
        match = _TAG_AT_END.search(text, max(0, len(text) - 170))
        end = match.start() if match else len(text)
        self._held = text[end:]
        if end:
            self._sink(text[:end])

    def end(self, is_closed: bool) -> bool:
        """Return True if a tag of the format is left in the value. ``is_closed`` if its own tag has
        ended it.
        """
        tag, self._held = self._held, ""
        if not tag or (not is_closed and self._is_own(tag)):
            return self._holds_another()
        self._sink(tag)
        if not is_closed and (FRAGMENT in tag or self._is_unopened(tag)):
            return True
        return self._holds_another()

    def _is_unopened(self, tag: str) -> bool:
        word = tag.strip("</> \t\n")
        return bool(word) and f"<{word}" not in "".join(self._parts)

    def _holds_another(self) -> bool:
        """Return True if a misspelt opening tag follows a closing tag without an opening."""
        text = "".join(self._parts)
        closing = self._tag[:-1]
        if text.count(closing) <= text.count(self._opening):
            return False
        name = self._opening.strip("<=").removesuffix(" name")
        for match in _NEXT_TAG.finditer(text):
            tag, next_tag = match[1].rstrip(">"), match[2]
            if tag == closing and (
                next_tag.startswith(("name=", "<name="))
                or SequenceMatcher(None, next_tag.strip("< "), name).ratio() >= _ALIKE
            ):
                return True
        return False

    def _is_own(self, tag: str) -> bool:
        text, own_text = (markup.strip("</> \t\n" + FRAGMENT) for markup in (tag, self._tag))
        return text == self._name or SequenceMatcher(None, text, own_text).ratio() >= _ALIKE


class LeadingBreak:
    """Sink that drops a line break, or another opening, at the beginning of the text."""

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
    """Sink that drops a line break at the beginning, and then also one at the end."""

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
