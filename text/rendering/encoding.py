"""Encoding of text to token ids in bounded memory and time.

A tokenizer takes up to 350 bytes of memory per byte of text and cannot be interrupted. Long text
is therefore encoded in overlapping windows. Neighbouring windows are joined where both have the
same tokens. Text that is too long for the limit whatever its tokens are is refused unread.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import Literal

from tokenizers import Encoding, Tokenizer

WHOLE = 131_072
"""Characters tokenized at once where no offsets are needed: computing offsets doubles the time."""
WINDOW = 32_768
"""Characters tokenized at once in longer text."""
OVERLAP = 1024
AGREED = 8
"""Number of consecutive tokens that two windows must share at the seam between them."""
NFC_SHRINKS = 3
"""Largest factor by which NFC shortens text, in UTF-8 bytes."""


class PromptTooLong(ValueError):
    """A prompt of more than ``RenderLimits.max_tokens``.

    ``num_tokens`` is the prompt's length if ``exact``, else a lower bound, because the text was
    not read to its end.
    """

    def __init__(self, num_tokens: int, exact: bool = False) -> None:
        super().__init__(f"the prompt has {'' if exact else 'at least '}{num_tokens} tokens")
        self.num_tokens = num_tokens
        self.exact = exact


class RenderingCancelled(Exception):
    """The client has left, or the time limit was reached."""


class EndSignal:
    """Flag that tells any thread that a result is no longer needed. Nothing waits for it."""

    __slots__ = ("_is_set",)

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """Limits of one rendering or tokenization; thread-safe."""

    max_tokens: int | None = None
    """Largest number of tokens in a prompt."""
    keep: int | None = None
    """Number of tokens to keep at one end, without a ``max_tokens`` check; None keeps all."""
    side: Literal["left", "right"] = "left"
    """The end at which tokens are dropped."""
    ended: EndSignal = field(default_factory=EndSignal)
    """Set when the result is no longer needed."""
    at_once: bool = False
    """True on the event loop, which waits for the result: a slow template is not run there."""

    def check(self, num_tokens: int, exact: bool = False) -> None:
        """Check a prompt of ``num_tokens``, or of at least that many if not ``exact``.

        Raises PromptTooLong or RenderingCancelled.
        """
        if self.ended.is_set():
            raise RenderingCancelled("the client has left")
        if self.max_tokens is not None and self.keep is None and num_tokens > self.max_tokens:
            raise PromptTooLong(num_tokens, exact)


NO_LIMITS = RenderLimits()


@dataclass(frozen=True, slots=True)
class TokenWindow:
    """Tokens of a part of the text; ``starts`` and ``ends`` are offsets in the whole text."""

    begin: int
    end: int
    ids: list[int]
    starts: list[int]
    ends: list[int]

    @classmethod
    def of(cls, encoding: Encoding, begin: int, end: int) -> TokenWindow:
        offsets = encoding.offsets
        starts, ends = ([begin + pair[side] for pair in offsets] for side in (0, 1))
        return cls(begin, end, encoding.ids, starts, ends)

    def is_fresh(self, index: int) -> bool:
        """Return True if token ``index`` begins with a character of no earlier token."""
        return index == 0 or self.starts[index] != self.starts[index - 1]


class TextEncoder:
    """Encodes text of any length. Thread-safe; releases the GIL while it tokenizes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.token_bytes = measure_longest_token(tokenizer)
        """Largest number of bytes that one token may stand for; None without a bound."""

    def encode(
        self, text: str, add_special_tokens: bool, limits: RenderLimits = NO_LIMITS
    ) -> list[int]:
        """Encode text, truncated as the limits say. Raises PromptTooLong or RenderingCancelled."""
        ids = self._encode_part(text, add_special_tokens, limits)
        limits.check(len(ids), exact=True)
        return truncate_ids(ids, limits)

    def _encode_part(self, text: str, add_special_tokens: bool, limits: RenderLimits) -> list[int]:
        """Encode text without a final check. Raises PromptTooLong or RenderingCancelled."""
        self._check_size(text, limits)
        text = self._keep_end(text, limits)
        if len(text) <= WHOLE:
            return self._encode_ids(text, add_special_tokens)
        return self._encode_long(text, add_special_tokens, limits)

    def encode_parts(self, text: str, mark: str, limits: RenderLimits) -> list[int]:
        """Encode a prompt split at marks, so that no token spans two parts.

        Raises PromptTooLong or RenderingCancelled.
        """
        if not mark or mark not in text:
            return self.encode(text, False, limits)
        parts = text.split(mark)
        ids = array("I")
        part_limits = replace(limits, keep=None)
        for number, part in enumerate(parts, 1):
            ids.extend(self._encode_part(part, False, part_limits))
            limits.check(len(ids), exact=number == len(parts))
        return truncate_ids(ids.tolist(), limits)

    def _check_size(self, text: str, limits: RenderLimits) -> None:
        """Raise PromptTooLong if the number of bytes alone exceeds the limit."""
        if limits.keep is not None or limits.max_tokens is None or self.token_bytes is None:
            return
        num_bytes = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if num_bytes > limits.max_tokens * self.token_bytes:
            raise PromptTooLong(-(-num_bytes // self.token_bytes))

    def _keep_end(self, text: str, limits: RenderLimits) -> str:
        """Return the end of the text that can contain the kept tokens."""
        if limits.keep is None or self.token_bytes is None:
            return text
        num_chars = limits.keep * self.token_bytes + OVERLAP
        return text[-num_chars:] if limits.side == "left" else text[:num_chars]

    def _encode_long(self, text: str, add_special_tokens: bool, limits: RenderLimits) -> list[int]:
        prefix, suffix = self._find_special_tokens() if add_special_tokens else ([], [])
        ids = array("I", prefix)
        window = self._encode_window(text, 0)
        while window.end < len(text):
            limits.check(len(ids))
            boundary = _find_boundary(window, window.end - OVERLAP)
            begin = window.ends[boundary - 1] if window.ids else window.end
            next_window = self._encode_window(text, begin)
            # Without a seam, the tokens still decode to the same text.
            seam = _find_seam(window, next_window) or (boundary, 0)
            ids.extend(window.ids[: seam[0]])
            window = _drop_tokens(next_window, seam[1])
        ids.extend(window.ids)
        ids.extend(suffix)
        return ids.tolist()

    def _encode_window(self, text: str, begin: int) -> TokenWindow:
        """Encode one window, as a batch of one: unlike ``encode``, a batch releases the GIL."""
        end = min(len(text), begin + WINDOW)
        encodings = self._tokenizer.encode_batch([text[begin:end]], add_special_tokens=False)
        return TokenWindow.of(encodings[0], begin, end)

    def _encode_ids(self, text: str, add_special_tokens: bool) -> list[int]:
        encodings = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encodings[0].ids
        return ids

    def _find_special_tokens(self) -> tuple[list[int], list[int]]:
        """Return the special tokens that the tokenizer adds before and after a text."""
        all_ids, text_ids = self._encode_ids("a", True), self._encode_ids("a", False)
        start = next(i for i in range(len(all_ids)) if all_ids[i : i + len(text_ids)] == text_ids)
        return all_ids[:start], all_ids[start + len(text_ids) :]


def truncate_ids(ids: list[int], limits: RenderLimits) -> list[int]:
    if limits.keep is None:
        return ids
    return ids[-limits.keep :] if limits.side == "left" else ids[: limits.keep]


def _find_boundary(window: TokenWindow, position: int) -> int:
    """Return a token near ``position`` that shares no character with the token before it."""
    index = max(1, bisect_left(window.starts, position))
    while index < len(window.ids) - 1 and window.starts[index] < window.ends[index - 1]:
        index += 1
    return index


def _find_seam(window: TokenWindow, next_window: TokenWindow) -> tuple[int, int] | None:
    """Return the first place in the second half of the overlap where both windows' tokens agree."""
    first_start = bisect_left(
        window.starts, next_window.begin + (window.end - next_window.begin) // 2
    )
    for i in range(first_start, len(window.ids) - AGREED):
        j = bisect_left(next_window.starts, window.starts[i])
        is_same = next_window.ids[j : j + AGREED] == window.ids[i : i + AGREED]
        starts = next_window.starts[j : j + AGREED] == window.starts[i : i + AGREED]
        if is_same and starts and window.is_fresh(i):
            return i, j
    return None


def _drop_tokens(window: TokenWindow, num: int) -> TokenWindow:
    return TokenWindow(
        window.begin, window.end, window.ids[num:], window.starts[num:], window.ends[num:]
    )


def measure_longest_token(tokenizer: Tokenizer) -> int | None:
    """Return the largest number of bytes that one token may stand for; None if there is no bound.

    There is no bound if normalization drops text, or if added tokens swallow white space.
    """
    spec = json.loads(tokenizer.to_str())
    kind = (spec.get("normalizer") or {"type": None})["type"]
    swallows_space = any(token["lstrip"] or token["rstrip"] for token in spec["added_tokens"])
    if kind not in (None, "NFC") or swallows_space or _drops_characters(spec.get("pre_tokenizer")):
        return None
    max_token_bytes = max(
        len(token.encode("utf-8", "surrogatepass")) for token in tokenizer.get_vocab()
    )
    return max_token_bytes * (NFC_SHRINKS if kind else 1)


def _drops_characters(pre_tokenizer: object) -> bool:
    """Return True if some characters become no token: white space, or a removed pattern."""
    if not isinstance(pre_tokenizer, dict):
        return False
    if pre_tokenizer["type"] == "Sequence":
        return any(map(_drops_characters, pre_tokenizer["pretokenizers"]))
    if pre_tokenizer["type"] == "Split":
        return bool(pre_tokenizer.get("behavior") == "Removed")
    return pre_tokenizer["type"] not in ("ByteLevel", "Digits", "Punctuation", "Metaspace")
