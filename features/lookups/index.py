"""Index of one request's text: earlier positions of its last tokens.

A *run* is three tokens. Each run is hashed, and the hash and the position of its last token are
packed into one integer, ``hash << POSITION_BITS | position``. The prompt's packed runs are sorted
by numpy, in slices, so that a long prompt does not delay a step. The answer's runs are in a dict
with chains of earlier positions, as in LZ77. Hashes may collide, so every candidate's tokens are
compared. The number of candidates is bounded, and with it the cost of hostile text.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

RUN = 3
"""Tokens that a position must share with an earlier one. Shorter matches are mostly wrong."""
MAX_POSITIONS = 8
"""Earlier positions compared per search, newest first."""
MAX_MATCH = 32
"""Tokens compared per position."""
SLICE = 4096
"""Prompt tokens sorted at once: about 0.2 ms."""
FACTORS = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
"""Odd multipliers of a run's tokens; those of xxHash and of Knuth's multiplicative hashing."""
HASH_MASK = (1 << 40) - 1
POSITION_BITS = 23
"""Positions fit texts of 8 million tokens. Hash and position together stay below 2**63."""
POSITION_MASK = (1 << POSITION_BITS) - 1

KINDS = 4
"""Kinds of matches of one length: see ``get_bucket``."""
BUCKETS = 5 * KINDS


class SortedRuns:
    """Runs of a text that only grows, packed and sorted, for the part of it that was added."""

    __slots__ = ("_parts", "end", "text")

    def __init__(self, text: Sequence[int]) -> None:
        """Index nothing yet. ``text`` is the live list of tokens, not a copy."""
        self.text = text
        self.end = 0
        """Number of indexed tokens."""
        self._parts: list[array[int]] = []

    def extend(self, end: int) -> None:
        """Index the tokens before ``end``."""
        tokens = np.frombuffer(array("q", self.text[max(0, self.end - RUN + 1) : end]), np.int64)
        first = max(self.end, RUN - 1)
        self.end = end
        if len(tokens) < RUN:
            return
        a, b, c = FACTORS
        hashes = (tokens[:-2] * a ^ tokens[1:-1] * b ^ tokens[2:] * c) & HASH_MASK
        self._append(np.sort(hashes << POSITION_BITS | np.arange(first, end)))

    def _append(self, packed: NDArray[np.int64]) -> None:
        # Parts of like sizes are merged, so a text has few of them, and each token is merged a few
        # times only. The stable sort is a merge sort, which is fast for two sorted halves.
        parts = self._parts
        while parts and len(parts[-1]) <= len(packed):
            part = np.frombuffer(parts.pop(), np.int64)
            packed = np.sort(np.concatenate([part, packed]), kind="stable")
        parts.append(array("q", packed.tobytes()))

    def merge(self) -> bool:
        """Merge all parts into one, which is searched faster. Return False if there is one."""
        if len(self._parts) < 2:
            return False
        packed = np.concatenate([np.frombuffer(part, np.int64) for part in self._parts])
        self._parts = [array("q", np.sort(packed, kind="stable").tobytes())]
        return True

    def list_positions(self, run_hash: int, limit: int) -> list[int]:
        """List at most ``limit`` positions of a run's hash, newest first."""
        positions: list[int] = []
        begin = run_hash << POSITION_BITS
        for part in reversed(self._parts):  # later parts have later positions
            index = bisect_left(part, begin + POSITION_MASK + 1) - 1
            while index >= 0 and part[index] >= begin and len(positions) < limit:
                positions.append(part[index] & POSITION_MASK)
                index -= 1
        return positions


class LookupIndex:
    """Index of one request's text and of further sources, with a match that is followed.

    While the text goes on as its match did, the match grows and nothing is searched.
    """

    __slots__ = ("_chain", "_heads", "_indexed", "_prompt", "_prompt_end", "_sources", "bucket",
                 "length", "position", "source", "text")  # fmt: skip

    def __init__(
        self, text: Any, prompt_tokens: int, sources: Sequence[Sequence[int]] = ()
    ) -> None:
        """``text`` is the request's live list of tokens, whose first ``prompt_tokens`` are there.

        ``sources`` are more texts that the answer may quote.
        """
        self.text: list[int] = text
        self._prompt = SortedRuns(text)
        self._prompt_end = prompt_tokens
        self._sources = [self._prompt, *(SortedRuns(source) for source in sources)]
        self._heads: dict[int, int] = {}
        self._chain: list[int] = []
        """For each token of the answer: position of the same run before, -1 without one."""
        self._indexed = prompt_tokens
        """Number of tokens of prompt and answer that are indexed, or are to be by ``build``."""
        self.source: Sequence[int] = text
        self.position = -1
        """Position in ``source`` of the token that the match predicts; -1 without a match."""
        self.length = 0
        self.bucket = -1

    def restart(self) -> LookupIndex:
        """Return a new index of the same texts."""
        sources = [runs.text for runs in self._sources if runs is not self._prompt]
        return LookupIndex(self.text, min(self._prompt_end, len(self.text)), sources)

    @property
    def size(self) -> int:
        """Indexed tokens."""
        return sum(source.end for source in self._sources) + len(self._chain)

    def build(self, limit: int) -> int:
        """Index at most ``limit`` tokens of prompt and sources. Return 0 if nothing is left."""
        for source in self._sources:
            end = self._prompt_end if source is self._prompt else len(source.text)
            if source.end < end:
                start = source.end
                source.extend(min(end, start + limit))
                return source.end - start
            if source.merge():
                return 1
        return 0

    def follow(self) -> int:
        """Index the text's new tokens. Return how many of them the match had predicted."""
        text, start = self.text, self._indexed
        end = len(text)
        source, position = self.source, self.position
        hits = 0
        if position >= 0:
            # Both are read from the live text, so a match may overlap the tokens it predicts.
            limit = min(end - start, len(source) - position)
            while hits < limit and source[position + hits] == text[start + hits]:
                hits += 1
        self._index_answer(start, end)
        if hits == end - start and position >= 0 and position + hits < len(source):
            self.position = position + hits
            self.length += hits
            kind = self.bucket % KINDS
            self.bucket = get_bucket(self.length, kind)
        else:
            self._search()
        return hits

    def _index_answer(self, start: int, end: int) -> None:
        text, heads, chain = self.text, self._heads, self._chain
        a, b, c = FACTORS
        for index in range(start, end):
            if index < RUN - 1:
                chain.append(-1)
                continue
            key = (text[index - 2] * a ^ text[index - 1] * b ^ text[index] * c) & HASH_MASK
            chain.append(heads.get(key, -1))
            heads[key] = index
        self._indexed = end

    def _search(self) -> None:
        """Find the longest match, the newest of several."""
        text, chain, prompt_end = self.text, self._chain, self._prompt_end
        end = len(text) - 1
        self.position = self.bucket = -1
        self.length = 0
        if end < RUN - 1:
            return
        successors: list[int] = []
        # The answer's own runs come first, because they are the newest ones.
        position = chain[-1] if chain else -1
        positions: list[int] = []
        while position >= 0 and len(positions) < MAX_POSITIONS:
            positions.append(position)
            position = chain[position - prompt_end]
        self._compare(text, positions, successors)
        a, b, c = FACTORS
        run_hash = (text[end - 2] * a ^ text[end - 1] * b ^ text[end] * c) & HASH_MASK
        for runs in self._sources:
            limit = MAX_POSITIONS - len(successors)
            if limit <= 0 or self.length >= MAX_MATCH:
                break
            self._compare(runs.text, runs.list_positions(run_hash, limit), successors)
        if self.position < 0:
            return
        votes, num_positions = successors.count(successors[-1]), len(successors)
        kind = (
            0 if num_positions == 1
            else 1 if votes == num_positions
            else 2 if 2 * votes >= num_positions
            else 3
        )  # fmt: skip
        self.bucket = get_bucket(self.length, kind)

    def _compare(
        self, source: Sequence[int], positions: Sequence[int], successors: list[int]
    ) -> None:
        """Keep the longest match of the text's end with these positions of a source.

        Adds the token behind each match to ``successors``, that of the longest one last.
        """
        text = self.text
        end, source_end = len(text) - 1, len(source) - 1
        for position in positions:
            if position >= source_end:
                continue
            best, length = self.length, 0
            limit = min(MAX_MATCH, position + 1, end + 1)
            # A match that is not longer only votes, so the token beyond the best match decides
            # first whether to compare the others.
            is_longer = best < limit and source[position - best] == text[end - best]
            limit = limit if is_longer else RUN
            while length < limit and source[position - length] == text[end - length]:
                length += 1
            if length < RUN:
                continue
            if length > best:
                successors.append(source[position + 1])
                self.length, self.source, self.position = length, source, position + 1
                if length >= MAX_MATCH:
                    return
            else:
                successors.insert(-1, source[position + 1])

    def copy(self, count: int) -> list[int]:
        """Return the next ``count`` tokens that the match predicts, or fewer at a source's end.

        Behind the end of the request's own text the copy goes on with itself.
        """
        source, position = self.source, self.position
        tokens = list(source[position : position + count])
        if len(tokens) < count and source is self.text:
            period = len(source) - position
            while len(tokens) < count:
                tokens.append(tokens[len(tokens) - period])
        return tokens


def get_bucket(length: int, kind: int) -> int:
    """Return the bucket of a match: lengths 3, 4 to 7, 8 to 15, 16 to 31 and from 32, by kind.

    Kinds: one earlier position (0), several that agree on the next token (1), at least half of them
    agree (2), fewer (3).
    """
    return (min(length, MAX_MATCH).bit_length() - 2) * KINDS + kind
