"""Lookups at every position of a captured answer, by the index that serves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from eaglegate.engine.speculation.lookup.index import LookupIndex

STRONG_MATCH = 8
"""Tokens of a match that is seldom a coincidence."""


class Proposal(NamedTuple):
    """A lookup at one position of a captured answer."""

    bucket: int
    """Kind of the match (``get_bucket``)."""
    is_strong: bool
    hits: int
    """Leading tokens that are those of the answer, up to the horizon."""


def propose(context: Sequence[int], answer: Sequence[int], horizon: int) -> list[Proposal | None]:
    """Look up every position of an answer, knowing the tokens before it."""
    known, text = [*context], [*context, *answer]
    index = LookupIndex(known, len(context))
    while index.build(len(context)):
        pass
    proposals: list[Proposal | None] = []
    for position in range(len(context), len(text)):
        index.follow()
        if index.position < 0:
            proposals.append(None)
        else:
            # A proposal that reaches the text's end goes on with its own tokens. As long as it is
            # right these are the answer's, so both can be read from the whole text (LZ77).
            hits, source = 0, index.position
            limit = min(horizon, len(text) - position)
            while hits < limit and text[source + hits] == text[position + hits]:
                hits += 1
            proposals.append(Proposal(index.bucket, index.length >= STRONG_MATCH, hits))
        known.append(text[position])
    return proposals
