"""Protection of special tokens: their texts in messages are encoded as ordinary text.

A tokenizer turns the text ``<|im_end|>`` into the token that ends a message, wherever it occurs. A
user, or a web page that a tool has read, could thus end the message and begin a system message.
This module inserts a mark after the first character of such a text. The template then writes the
prompt, and the parts between marks are tokenized separately, so that the text stays the same but
the token does not appear. The template's own special tokens contain no mark.

In messages of users and tools every added token is protected (``<tool_call>``, ``<think>``).
Elsewhere only special tokens are, because templates look for the other tokens in answers.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from eaglegate.text.rendering.template import IMAGE, parse_arguments

WINDOW = 65_536
"""Characters searched at once. Other threads wait during a search."""
UNTRUSTED = frozenset(("user", "tool", "function"))
"""Roles of messages that someone other than the application may have written."""
HIDING = ('"text":', r"\\u", r"\\/")
"""Substrings of a request's JSON that indicate content in parts, or escapes in arguments."""
ESCAPED = re.compile(r'["\\\x00-\x1f]')
Messages = Sequence[Mapping[str, Any]]
Encode = Callable[[str], list[int]]
Decode = Callable[[list[int]], str]


class SpecialTextRefused(ValueError):
    """Text of a special token that the model's tokenizer or renderer cannot treat as text."""

    def __init__(self) -> None:
        super().__init__(
            "a message has the text of a special token, which cannot be read as text with the "
            "tokenizer of this model: leave it out"
        )


@dataclass(frozen=True, slots=True)
class MarkedInput:
    """Input of a chat template. ``mark`` is empty if there was nothing to mark."""

    messages: Messages
    tools: Messages | None
    kwargs: Mapping[str, Any]
    mark: str = ""


class SpecialText:
    """Finder of the texts of a tokenizer's special tokens. Thread-safe."""

    def __init__(
        self, special_tokens: Iterable[str], other_tokens: Iterable[str] = (), splits: bool = True
    ) -> None:
        special_tokens = [token for token in special_tokens if len(token) > 1]
        tokens = [*special_tokens, *(token for token in other_tokens if len(token) > 1)]
        self._longest = max(map(len, tokens), default=0)
        self._firsts = {token[0] for token in tokens}
        self._in_json = not any(map(ESCAPED.search, tokens))
        """True if JSON writes the tokens without escapes."""
        self._special = _compile(special_tokens)
        self._every = _compile(tokens)
        self.splits = splits
        """True if parts tokenized separately decode to the original text."""

    @classmethod
    def of(cls, added_tokens: Iterable[Any], encode: Encode, decode: Decode) -> SpecialText:
        """Make a finder for the tokenizer's added tokens."""
        kinds: dict[bool, list[str]] = {True: [], False: []}
        for token in added_tokens:
            kinds[bool(token.special)].append(token.content)
        return cls(kinds[True], kinds[False], _keeps_text(encode, decode))

    def mark(
        self, messages: Messages, tools: Messages | None, kwargs: Mapping[str, Any]
    ) -> MarkedInput:
        """Mark the texts of special tokens in a request. Raises SpecialTextRefused."""
        if self._is_plain((messages, tools, kwargs)):
            return MarkedInput(messages, tools, kwargs)
        mark = secrets.token_hex(8)
        marked_messages = [self._mark_message(message, mark) for message in messages]
        marked_tools = self._mark(tools, self._special, mark)
        marked_kwargs = self._mark(kwargs, self._special, mark)
        if (
            all(map(_is, marked_messages, messages))
            and marked_tools is tools
            and marked_kwargs is kwargs
        ):
            return MarkedInput(messages, tools, kwargs)
        if not self.splits:
            raise SpecialTextRefused
        return MarkedInput(marked_messages, marked_tools, marked_kwargs, mark)

    def count(self, text: str) -> int:
        """Return an upper bound for the number of added tokens in ``text``."""
        return self._count(text, self._every)

    def _is_plain(self, value: Any) -> bool:
        """Return True if no text in ``value`` can contain a special token's text."""
        if not self._in_json:
            return False
        try:
            text = orjson.dumps(value).decode()
        except TypeError:
            return False
        if any(mark_text in text for mark_text in HIDING):
            return False
        return not any(first_char in text for first_char in self._firsts) or not self.count(text)

    def _count(self, text: str, pattern: re.Pattern[str] | None) -> int:
        return sum(1 for _ in _find(text, pattern, self._longest))

    def _mark_message(self, message: Mapping[str, Any], mark: str) -> Mapping[str, Any]:
        pattern = self._every if message.get("role") in UNTRUSTED else self._special
        copy: Mapping[str, Any] = self._mark(message, pattern, mark)
        return copy

    def _mark(self, value: Any, pattern: re.Pattern[str] | None, mark: str) -> Any:
        """Mark all texts in a value. Return the same object if there is nothing to mark."""
        if isinstance(value, str):
            return self._mark_text(value, pattern, mark)
        if isinstance(value, Mapping):
            return self._mark_mapping(value, pattern, mark)
        if isinstance(value, list | tuple):
            parts = [self._mark(item, pattern, mark) for item in self._part(value, pattern, mark)]
            return value if all(map(_is, parts, value)) else parts
        return value

    def _mark_mapping(
        self, value: Mapping[str, Any], pattern: re.Pattern[str] | None, mark: str
    ) -> Mapping[str, Any]:
        """Mark a mapping. Arguments of a call are parsed first, because JSON may escape a text."""
        out = {}
        for key, item in value.items():
            content = item
            if key == "arguments" and isinstance(item, str):
                content = parse_arguments(item)
            marked_content = self._mark(content, pattern, mark)
            out[self._mark(key, pattern, mark)] = (
                item if marked_content is content else marked_content
            )
        is_same = all(map(_is, out, value)) and all(map(_is, out.values(), value.values()))
        return value if is_same else out

    def _part(
        self, parts: Sequence[Any], pattern: re.Pattern[str] | None, mark: str
    ) -> Sequence[Any]:
        """Separate parts of a content that form a special token together.

        A template may leave an image between two of them out.
        """
        texts = [
            str(part["text"]) for part in parts if isinstance(part, Mapping) and "text" in part
        ]
        if len(texts) < 2 or len(texts) + parts.count(IMAGE) < len(parts):
            return parts
        num_apart = sum(self._count(text, pattern) for text in texts)
        if num_apart == self._count("".join(texts), pattern):
            return parts
        return [part if part == IMAGE else {**part, "text": mark + part["text"]} for part in parts]

    def _mark_text(self, text: str, pattern: re.Pattern[str] | None, mark: str) -> str:
        """Insert a mark after the first character of every occurrence, even overlapping ones."""
        parts, position = [], 0
        for start in _find(text, pattern, self._longest):
            parts.append(text[position : start + 1])
            position = start + 1
        return mark.join((*parts, text[position:])) if parts else text


def _find(text: str, pattern: re.Pattern[str] | None, max_length: int) -> Iterator[int]:
    """Yield the offsets at which tokens begin. Other threads can run between windows of text."""
    if pattern is None:
        return
    for begin in range(0, len(text), WINDOW):
        end = begin + WINDOW
        for match in pattern.finditer(text, begin, end + max_length):
            if match.start() < end:
                yield match.start()


def _is(first: object, second: object) -> bool:
    return first is second


def _compile(tokens: Sequence[str]) -> re.Pattern[str] | None:
    """Compile a pattern that matches the empty string wherever a token begins, in linear time."""
    if not tokens:
        return None
    first_chars = "".join(sorted({re.escape(token[0]) for token in tokens}))
    return re.compile(f"(?=[{first_chars}])(?={_write_trie(sorted(set(tokens)), 0)})", re.DOTALL)


def _write_trie(tokens: Sequence[str], depth: int) -> str:
    """Write a pattern for sorted tokens that share their first ``depth`` characters."""
    if len(tokens[0]) == depth:
        return ""  # longer tokens with this prefix need no branch of their own
    branches: dict[str, list[str]] = {}
    for token in tokens:
        branches.setdefault(token[depth], []).append(token)
    parts = [re.escape(char) + _write_trie(group, depth + 1) for char, group in branches.items()]
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


def _keeps_text(encode: Encode, decode: Decode) -> bool:
    """Return True if text tokenized in parts decodes unchanged, without added blanks."""
    return decode([id for part in ("ab<", "|cd", "e") for id in encode(part)]) == "ab<|cde"
