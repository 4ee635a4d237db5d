"""Choice between a lookup and the draft model's tokens, for every request and step.

The expected tokens of both, less the price of verifying them, come from tables by slice and bucket
of the match (``acceptance.py``). The draft's value is that of its tokens *beside such a match*, not
its mean: a draft model finds copies easy, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from eaglegate.features.lookups.acceptance import ROWS, LookupAcceptance
from eaglegate.features.lookups.index import SLICE, LookupIndex

BUILD_TOKENS = 200
"""Tokens whose indexing takes as long as the fixed part of one call."""
REFRESH_STEPS = 4
"""Steps between updates of a slice's tables."""


class _Request:
    """State of one request: its index, and its proposals for the tokens to come."""

    __slots__ = ("drafts", "first_row", "index", "num_seen", "row", "sure", "uses_lookup")

    def __init__(self, index: LookupIndex, first_row: int, num_seen: int) -> None:
        self.index = index
        self.first_row = first_row
        self.num_seen = num_seen
        """Tokens that were there at the last choice."""
        self.row = -1
        """Row of the last choice; -1 before the first one."""
        self.drafts: Sequence[int] = ()
        """The draft model's last tokens, verified or not."""
        self.uses_lookup = self.sure = False


class LookupChooser:
    """Lookups of all requests of one engine. Not thread-safe; the scheduler makes every call."""

    def __init__(self, width: int, depth: int) -> None:
        self.acceptance = LookupAcceptance(width, depth)
        self._requests: dict[str, _Request] = {}
        self._unbuilt: dict[str, LookupIndex] = {}
        """Indexes whose prompts are not indexed yet, in the order of their requests."""
        self._steps = 0
        self.num_lookups = self.num_drafts = 0
        """Choices of a lookup, and of the draft although there was a match."""

    def __contains__(self, request: str) -> bool:
        return request in self._requests

    def begin(
        self,
        request: str,
        text: Any,
        prompt_tokens: int,
        traffic: str = "",
        tenant: str = "",
        sources: Sequence[Sequence[int]] = (),
    ) -> None:
        """Add a request. ``text`` is its live list of tokens; see ``LookupIndex``."""
        index = LookupIndex(text, prompt_tokens, sources)
        first_row = self.acceptance.take_slice(traffic, tenant)
        self._requests[request] = _Request(index, first_row, len(text))
        self._unbuilt[request] = index

    def end(self, request: str) -> None:
        if (state := self._requests.pop(request, None)) is not None:
            self.acceptance.release_slice(state.first_row)
        self._unbuilt.pop(request, None)

    def begin_step(self) -> None:
        """Do a step's share of the work that is not a request's: one slice of a prompt or a few
        short prompts, and every few steps the tables of one slice of traffic."""
        room = SLICE
        while self._unbuilt and room > 0:
            request, index = next(iter(self._unbuilt.items()))
            num_built = index.build(room)
            if not num_built:
                del self._unbuilt[request]
            room -= num_built + BUILD_TOKENS * (num_built > 0)
        self._steps += 1
        if self._steps % REFRESH_STEPS == 0:
            self.acceptance.refresh()

    def choose(self, request: str, drafts: list[int], depth: int, limit: int) -> list[int] | None:
        """Return a lookup of at most ``limit`` tokens; None if the draft's tokens are worth more.

        Scores the proposals of the last choice with the tokens committed since. ``depth`` is the
        number of ``drafts`` that would be verified.
        """
        state, acceptance = self._requests[request], self.acceptance
        index = state.index
        last_row, start = state.row, state.num_seen
        text = index.text
        end = len(text)
        count = end - start
        if count < 0:
            # A failed transfer of KV takes tokens back.
            state.index = index = self._unbuilt[request] = index.restart()
            state.num_seen, state.row, count, last_row = end, -1, 0, -1
        if count > 0 and last_row >= 0 and (last_drafts := state.drafts):
            hits, size = 0, len(last_drafts)
            size = count if count < size else size
            while hits < size and last_drafts[hits] == text[start + hits]:
                hits += 1
            acceptance.score_draft(last_row, hits + 1 if hits < size else size, hits)
        had_match = index.position >= 0
        hits = index.follow()
        if count > 0 and had_match and last_row >= 0:
            width = acceptance.width
            size = count if count < width else width
            acceptance.score_lookup(
                last_row, hits + 1 if hits < size else size, hits if hits < size else size
            )
        bucket = index.bucket
        row = state.first_row + (bucket if bucket >= 0 else ROWS - 1)
        state.row, state.num_seen = row, end
        state.drafts = drafts if len(drafts) <= acceptance.depth else drafts[: acceptance.depth]
        state.uses_lookup = state.sure = False
        if bucket < 0:
            return None
        width = acceptance.lookup_widths[row]
        if width > limit:
            width = limit
        if depth > acceptance.depth:
            depth = acceptance.depth
        value = acceptance.lookup_values[row * (acceptance.width + 1) + width]
        if value <= acceptance.draft_values[row * (acceptance.depth + 1) + depth]:
            self.num_drafts += 1
            return None
        self.num_lookups += 1
        state.uses_lookup, state.sure = True, acceptance.sure[row]
        return index.copy(width)

    def note_proposal(self, request: str, drafts: list[int], uses_lookup: bool) -> None:
        """Note what was proposed after the last ``choose``, where only the worker knows it."""
        state = self._requests[request]
        state.drafts, state.uses_lookup = drafts, uses_lookup

    def find_min_length(self, request: str, width: int, depth: int) -> int | None:
        """Return the length of a match from which a lookup of ``width`` tokens is worth more than
        ``depth`` drafts; None if no length is."""
        return self.acceptance.find_min_length(self._requests[request].first_row, width, depth)

    def pays_late(self, request: str, width: int, depth: int) -> bool:
        """Return True if verifying ``width`` tokens instead of ``depth`` pays in the step after the
        next one, whose lookup exists if the match holds for the next step's tokens."""
        acceptance, row = self.acceptance, self._requests[request].row
        if width <= depth:
            return False
        first = row * (acceptance.width + 1)
        values = acceptance.lookup_values[first : first + width + 1]
        position = min(depth + 1, width)  # the next step's tokens, its bonus token included
        survival = values[position] - values[position - 1] + acceptance.price
        waste = acceptance.price * (width - depth)
        return survival * (values[width] - values[depth]) > (1 - survival) * waste

    def copy(self, request: str, count: int) -> list[int] | None:
        """Return a lookup of ``count`` tokens after ``choose``, whatever its value; None without a
        match."""
        state = self._requests[request]
        if count <= 0 or state.index.position < 0:
            return None
        state.uses_lookup = True
        return state.index.copy(count)

    def uses_lookup(self, request: str) -> bool:
        """Return True if the request's last choice was a lookup."""
        state = self._requests.get(request)
        return state is not None and state.uses_lookup

    def are_sure(self, requests: Iterable[str]) -> bool:
        """Return True if every one of these requests uses a lookup, and will probably do so in the
        step after the next one."""
        states = self._requests
        return all(request in states and states[request].sure for request in requests)

    @property
    def size(self) -> int:
        """Indexed tokens of all requests."""
        return sum(state.index.size for state in self._requests.values())

    def describe(self) -> dict[str, object]:
        """Describe choices and their sums, as JSON types."""
        return {
            "width": self.acceptance.width,
            "lookups": self.num_lookups,
            "drafts_beside_match": self.num_drafts,
            "indexed_tokens": self.size,
            "verified_token_price": round(self.acceptance.price, 4),
        }
