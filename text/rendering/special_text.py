"""Texts of special tokens in messages: read as text, not as the tokens themselves.

A tokenizer turns the text ``<|im_end|>`` into the token that ends a message, wherever it stands. A
user, or a web page that a tool has read, could so end their message and begin one of the system's.
Here such a text is split after its first character by a mark, the template writes the prompt, and
the parts between marks are tokenized apart from each other: the text stays as it was, without the
token. The template's own special tokens have no mark in them.

In messages of users and tools every added token is text (``<tool_call>``, ``<think>``); elsewhere
only those that the tokenizer calls special are, since templates look for the others in answers.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from eaglegate.text.rendering.template import parse_arguments

WINDOW = 65_536
"""Characters searched at once: other threads wait meanwhile."""
UNTRUSTED = frozenset(("user", "tool", "function"))
"""Roles of messages that others than the application may have written."""
HIDING = ('"text":', r"\\u", r"\\/")
"""Signs in a request's JSON of content in parts, and of escapes inside a call's arguments."""
ESCAPED = re.compile(r'["\\\x00-\x1f]')
Messages = Sequence[Mapping[str, Any]]
Encode = Callable[[str], list[int]]
Decode = Callable[[list[int]], str]


class SpecialTextRefused(ValueError):
    """A special token's text that the renderer or tokenizer of a model cannot read as text."""

    def __init__(self) -> None:
        super().__init__(
            "a message has the text of a special token, which cannot be read as text with the "
            "tokenizer of this model: leave it out"
        )


@dataclass(frozen=True, slots=True)
class MarkedInput:
    """Input of a chat template. ``mark`` is empty where there was nothing to mark."""

    messages: Messages
    tools: Messages | None
    kwargs: Mapping[str, Any]
    mark: str = ""


class SpecialText:
    """Finds the texts of a tokenizer's special tokens. Thread-safe."""

    def __init__(
        self, special: Iterable[str], other: Iterable[str] = (), splits: bool = True
    ) -> None:
        special = [token for token in special if len(token) > 1]
        every = [*special, *(token for token in other if len(token) > 1)]
        self._longest = max(map(len, every), default=0)
        self._firsts = {token[0] for token in every}
        self._in_json = not any(map(ESCAPED.search, every))
        """JSON writes the tokens as they are."""
        self._special = _compile(special)
        self._every = _compile(every)
        self.splits = splits
        """Parts that are tokenized apart give their text again."""

    @classmethod
    def of(cls, added: Iterable[Any], encode: Encode, decode: Decode) -> SpecialText:
        """``added`` are the tokenizer's added tokens."""
        kinds: dict[bool, list[str]] = {True: [], False: []}
        for token in added:
            kinds[bool(token.special)].append(token.content)
        return cls(kinds[True], kinds[False], _splits(encode, decode))

    def mark(
        self, messages: Messages, tools: Messages | None, kwargs: Mapping[str, Any]
    ) -> MarkedInput:
        """Raises SpecialTextRefused."""
        if self._is_plain((messages, tools, kwargs)):
            return MarkedInput(messages, tools, kwargs)
        mark = secrets.token_hex(8)
        marked = [self._mark_message(message, mark) for message in messages]
        described = self._mark(tools, self._special, mark)
        given = self._mark(kwargs, self._special, mark)
        if all(map(_is, marked, messages)) and described is tools and given is kwargs:
            return MarkedInput(messages, tools, kwargs)
        if not self.splits:
            raise SpecialTextRefused
        return MarkedInput(marked, described, given, mark)

    def count(self, text: str) -> int:
        """The added tokens that a tokenizer would find in ``text``, or more."""
        return self._count(text, self._every)

    def _is_plain(self, given: Any) -> bool:
        """Whether certainly no text in it has a special token's: looks at all of it at once."""
        if not self._in_json:
            return False
        try:
            text = orjson.dumps(given).decode()
        except TypeError:
            return False
        if any(hiding in text for hiding in HIDING):
            return False
        return not any(first in text for first in self._firsts) or not self.count(text)

    def _count(self, text: str, pattern: re.Pattern[str] | None) -> int:
        return sum(1 for _ in _find(text, pattern, self._longest))

    def _mark_message(self, message: Mapping[str, Any], mark: str) -> Mapping[str, Any]:
        pattern = self._every if message.get("role") in UNTRUSTED else self._special
        marked: Mapping[str, Any] = self._mark(message, pattern, mark)
        return marked

    def _mark(self, value: Any, pattern: re.Pattern[str] | None, mark: str) -> Any:
        """The same object when there is nothing in it to mark."""
        if isinstance(value, str):
            return self._mark_text(value, pattern, mark)
        if isinstance(value, Mapping):
            return self._mark_mapping(value, pattern, mark)
        if isinstance(value, list | tuple):
            parts = [self._mark(inner, pattern, mark) for inner in self._part(value, pattern, mark)]
            return value if all(map(_is, parts, value)) else parts
        return value

    def _mark_mapping(
        self, value: Mapping[str, Any], pattern: re.Pattern[str] | None, mark: str
    ) -> Mapping[str, Any]:
        """Arguments of a call are JSON, where a text can be written in other characters."""
        out = {}
        for key, inner in value.items():
            given = inner
            if key == "arguments" and isinstance(inner, str):
                given = parse_arguments(inner)
            marked = self._mark(given, pattern, mark)
            out[self._mark(key, pattern, mark)] = inner if marked is given else marked
        same = all(map(_is, out, value)) and all(map(_is, out.values(), value.values()))
        return value if same else out

    def _part(
        self, parts: Sequence[Any], pattern: re.Pattern[str] | None, mark: str
    ) -> Sequence[Any]:
        """Parts of a content that form a special token between them are marked apart."""
        texts = [
            str(part["text"]) for part in parts if isinstance(part, Mapping) and "text" in part
        ]
        if len(texts) < max(2, len(parts)):
            return parts
        apart = sum(self._count(text, pattern) for text in texts)
        if apart == self._count("".join(texts), pattern):
            return parts
        return [{**part, "text": mark + part["text"]} for part in parts]

    def _mark_text(self, text: str, pattern: re.Pattern[str] | None, mark: str) -> str:
        """A mark after the first character of every occurrence, those that overlap too."""
        parts, at = [], 0
        for start in _find(text, pattern, self._longest):
            parts.append(text[at : start + 1])
            at = start + 1
        return mark.join((*parts, text[at:])) if parts else text


def _find(text: str, pattern: re.Pattern[str] | None, longest: int) -> Iterator[int]:
    """Yield the offsets at which tokens begin. Other threads get a turn between windows of text."""
    if pattern is None:
        return
    for begin in range(0, len(text), WINDOW):
        end = begin + WINDOW
        for found in pattern.finditer(text, begin, end + longest):
            if found.start() < end:
                yield found.start()


def _is(one: object, other: object) -> bool:
    return one is other


def _compile(tokens: Sequence[str]) -> re.Pattern[str] | None:
    """Matches nothing at each place where a token begins; linear in the text."""
    if not tokens:
        return None
    first = "".join(sorted({re.escape(token[0]) for token in tokens}))
    return re.compile(f"(?=[{first}])(?={_write_trie(sorted(set(tokens)), 0)})", re.DOTALL)


def _write_trie(tokens: Sequence[str], at: int) -> str:
    """A pattern of sorted tokens that have their first ``at`` characters in common."""
    if len(tokens[0]) == at:
        return ""  # what begins with a token need not be read further
    branches: dict[str, list[str]] = {}
    for token in tokens:
        branches.setdefault(token[at], []).append(token)
    parts = [re.escape(char) + _write_trie(some, at + 1) for char, some in branches.items()]
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


def _splits(encode: Encode, decode: Decode) -> bool:
    """Whether text tokenized in parts is still the same: some put a blank before each."""
    return decode([id for part in ("ab<", "|cd", "e") for id in encode(part)]) == "ab<|cde"
