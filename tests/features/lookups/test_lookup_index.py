"""The index finds what a search through the whole text finds, within its bounds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from eaglegate.features.lookups import index as module
from eaglegate.features.lookups.index import (
    MAX_MATCH,
    MAX_POSITIONS,
    RUN,
    LookupIndex,
    get_bucket,
)


def build(text: list[int], prompt: int, sources: Sequence[Sequence[int]] = ()) -> LookupIndex:
    index = LookupIndex(text, prompt, sources)
    while index.build(64):
        pass
    index.follow()
    return index


def find_longest(text: Sequence[int]) -> tuple[int, int]:
    """Search the newest ``MAX_POSITIONS`` positions of the last run, without an index."""
    best, num_positions, length = (-1, 0), 0, len(text)
    for end in range(length - 1, RUN - 1, -1):
        if text[end - RUN : end] != text[length - RUN :]:
            continue
        count = 0
        limit = min(MAX_MATCH, end)
        while count < limit and text[end - 1 - count] == text[length - 1 - count]:
            count += 1
        best = max(best, (end, count), key=lambda pair: pair[1])
        num_positions += 1
        if num_positions == MAX_POSITIONS:
            break
    return best


@pytest.mark.parametrize("symbols", [1, 2, 4, 30])
def test_searches_equal_a_search_without_an_index(symbols: int) -> None:
    rng = random.Random(symbols)
    for prompt in (0, 2, 3, 50, 200, 300):
        text = [rng.randrange(symbols) for _ in range(prompt + rng.randrange(1, 40))]
        index = build(text, prompt)
        assert (index.position, index.length) == find_longest(text)


class CountingList(list[int]):
    reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("symbols", [1, 2, 100_000])
def test_a_search_in_a_long_text_reads_a_bounded_number_of_tokens(symbols: int) -> None:
    rng = random.Random(0)
    text = CountingList(rng.randrange(symbols) for _ in range(100_000))
    index = LookupIndex(text, len(text) - 100)
    while index.build(4096):
        pass
    index.follow()
    text.reads = 0
    index._search()
    assert text.reads <= 2 * MAX_POSITIONS * (MAX_MATCH + 2)


def test_a_match_is_followed_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    index = build(text, 11)
    assert index.copy(4) == [4, 5, 6, 7]
    monkeypatch.setattr(LookupIndex, "_search", pytest.fail)
    text += [4, 5]
    assert index.follow() == 2
    assert (index.length, index.copy(3)) == (5, [6, 7, 8])


def test_hits_end_at_the_first_other_token() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    index = build(text, 10)
    text += [4, 5, 9, 7]
    assert index.follow() == 2
    assert index.position == -1


def test_a_copy_goes_on_with_itself() -> None:
    index = build([5, 6, 5, 6, 5, 6], 5)
    assert index.copy(7) == [5, 6, 5, 6, 5, 6, 5]


def test_other_sources_are_searched_and_end() -> None:
    index = build([10, 11, 12], 2, sources=[[9, 10, 11, 12, 13, 14]])
    assert index.copy(8) == [13, 14]
    index.text += [13, 14]
    assert index.follow() == 2
    assert index.position == -1


def test_a_prompt_is_indexed_in_slices() -> None:
    text = [*range(1000), 10, 11, 12]
    index = LookupIndex(text, 1000)
    index.follow()
    assert index.position == -1
    counts = []
    while count := index.build(300):
        counts.append(count)
    assert counts == [300, 300, 300, 100, 1]  # the last one merges
    assert index.size == 1003
    index.follow()
    assert index.copy(2) == [13, 14]


def test_collisions_of_hashes_are_no_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HASH_MASK", 1)
    rng = random.Random(0)
    text = [rng.randrange(1000) for _ in range(200)]
    assert build(text, 150).position == -1


def test_disagreement_of_positions_is_in_the_bucket() -> None:
    def kind(*successors: int) -> int:
        text = [token for successor in successors for token in (1, 2, 3, successor)]
        return build([*text, 1, 2, 3], len(text)).bucket

    assert [kind(4), kind(4, 4), kind(4, 4, 5), kind(4, 5, 6, 7)] == [
        get_bucket(3, 0),
        get_bucket(7, 1),  # 3, 4, 1, 2, 3 is a longer match
        get_bucket(3, 3),
        get_bucket(3, 3),
    ]
