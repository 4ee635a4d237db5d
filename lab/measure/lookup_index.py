"""Lookups in a conversation's own text: what followed its last tokens at an earlier position.

Hash chains over runs of three tokens, as in LZ77. Costs: docs/drafts-compare.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

NGRAM = 3
"""Tokens that a position must share with an earlier one. Shorter matches are mostly wrong."""
MAX_POSITIONS = 8
"""Earlier positions compared per lookup, newest first: the bound of its cost."""
MAX_MATCH = 32
"""Tokens compared per position."""
Bucket = tuple[int, int, bool]
"""Kind of a match: bits of its length, agreement of the positions (0 to 2), several positions."""


STRONG_MATCH = 8
"""Tokens of a match that is seldom a coincidence."""


class Match(NamedTuple):
    """Longest match of a text's end with an earlier position. The proposal begins behind it."""

    position: int
    """Index of the match's last token."""
    length: int
    bucket: Bucket


class LookupIndex:
    """Text of one request, with chains of the earlier ends of every run of ``NGRAM`` tokens."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.text: list[int] = []
        self._heads: dict[tuple[int, int, int], int] = {}
        self._chain: list[int] = []
        """Position before, with the same run; -1 for the first."""
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        text, heads, chain = self.text, self._heads, self._chain
        start = max(NGRAM - 1, len(text))
        text.extend(tokens)
        chain.extend([-1] * (min(NGRAM - 1, len(text)) - len(chain)))
        for end in range(start, len(text)):
            run = (text[end - 2], text[end - 1], text[end])
            chain.append(heads.get(run, -1))
            heads[run] = end

    def find_match(self) -> Match | None:
        """Return the longest match, the newest of several; None without one."""
        text, chain, end = self.text, self._chain, len(self.text) - 1
        position = chain[end] if text else -1
        best_position, best_length = -1, 0
        successors: list[int] = []
        while position >= 0 and len(successors) < MAX_POSITIONS and best_length < MAX_MATCH:
            # Only a match that is longer counts, so its token before the best one's is compared
            # first: most positions end here.
            limit = min(MAX_MATCH, position + 1)
            if limit > best_length and text[position - best_length] == text[end - best_length]:
                length = NGRAM
                while length < limit and text[position - length] == text[end - length]:
                    length += 1
                if length > best_length:
                    best_position, best_length = position, length
            successors.append(text[position + 1])
            position = chain[position]
        if best_position < 0:
            return None
        agreement = successors.count(text[best_position + 1]) / len(successors)
        bucket = (
            best_length.bit_length(),
            (agreement == 1) + (agreement >= 0.5),
            len(successors) > 1,
        )
        return Match(best_position, best_length, bucket)


class Proposal(NamedTuple):
    """A lookup at one position of a captured answer."""

    bucket: Bucket
    is_strong: bool
    hits: int
    """Leading tokens that are those of the answer, up to the horizon."""


def propose(context: Sequence[int], answer: Sequence[int], horizon: int) -> list[Proposal | None]:
    """Look up every position of an answer, knowing the tokens before it."""
    index, text = LookupIndex(context), [*context, *answer]
    proposals: list[Proposal | None] = []
    for position in range(len(context), len(text)):
        match = index.find_match()
        if match is None:
            proposals.append(None)
        else:
            # A proposal that reaches the text's end goes on with its own tokens. As long as it is
            # right these are the answer's, so both can be read from the whole text (LZ77).
            hits, source = 0, match.position + 1
            limit = min(horizon, len(text) - position)
            while hits < limit and text[source + hits] == text[position + hits]:
                hits += 1
            proposals.append(Proposal(match.bucket, match.length >= STRONG_MATCH, hits))
        index.extend((text[position],))
    return proposals
