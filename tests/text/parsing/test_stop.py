"""Stop strings against a naive matcher, for every cut of the text, and in linear time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglegate.server.apis.shared.to_job import MAX_STOP_CHARS, read_stops
from eaglegate.server.errors import InvalidRequest
from eaglegate.text.parsing.stop import StopText

LETTERS = st.text("ab", max_size=40)
STOPS = st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=4, unique=True)


def naive(text: str, wanted: list[str], include: bool) -> tuple[str, str | None]:
    """The stop that starts first, of those the shortest."""
    found = [(text.find(stop), len(stop), stop) for stop in wanted if stop in text]
    if not found:
        return text, None
    at, size, stop = min(found)
    return text[: at + size * include], stop


def read(pieces: list[str], wanted: list[str], include: bool) -> tuple[str, str | None]:
    out: list[str] = []
    matcher = StopText(tuple(wanted), out.append, include)
    for piece in pieces:
        matcher.text(piece)
        if matcher.stopped is not None:
            break
    else:
        matcher.settle()
    return "".join(out), matcher.stopped


@pytest.mark.thorough
@given(text=LETTERS, wanted=STOPS, include=st.booleans(), cuts=st.lists(st.integers(1, 5)))
def test_equals_the_naive_matcher_for_every_cut(text, wanted, include, cuts):
    pieces, at = [], 0
    for cut in [*cuts, len(text) + 1]:
        pieces.append(text[at : at + cut])
        at += cut
    assert read(pieces, wanted, include) == naive(text, wanted, include)


@given(text=LETTERS, stops=STOPS, start=st.integers(0, 40), cut=st.integers(1, 5))
def test_only_stops_that_end_after_the_switch_count(text, stops, start, cut):
    matcher, out = begin(*stops)
    for half, is_off in ((text[:start], True), (text[start:], False)):
        matcher.is_off = is_off
        for at in range(0, len(half), cut):
            if matcher.stopped is None:
                matcher.text(half[at : at + cut])
    if matcher.stopped is None:
        matcher.settle()
    ends = [
        (at, len(stop), stop)
        for stop in stops
        for at in range(len(text))
        if text.startswith(stop, at) and at + len(stop) > start
    ]
    at, _, stop = min(ends, default=(len(text), 0, None))
    assert ("".join(out), matcher.stopped) == (text[:at], stop)


def test_a_whole_stop_is_found_where_a_longer_one_that_began_before_it_stays_open():
    assert read(["ab"], ["abcX", "b"], include=False) == ("a", "b")


def begin(*stops: str) -> tuple[StopText, list[str]]:
    """A matcher, and the pieces of text that it has passed on."""
    out: list[str] = []
    return StopText(stops, out.append), out


@pytest.mark.parametrize(
    ("stop", "text", "passed", "stopped"),
    [
        ("\n\nHuman:", "some text\n\nHu", ["some text"], None),
        ("ab", "xab", ["x"], "ab"),
        ("x", "abc", ["abc"], None),
    ],
)
def test_text_is_passed_on_at_once_up_to_a_stop_or_its_beginning(stop, text, passed, stopped):
    matcher, out = begin(stop)
    matcher.text(text)
    assert (out, matcher.stopped) == (passed, stopped)


@pytest.mark.parametrize(
    ("pieces", "wanted", "found"),
    [
        (["abcd"], ["abcX", "b", "bcd"], ("a", "b")),
        (["zzab", "cX"], ["abcX", "b"], ("zz", "abcX")),
        (["zzab", "cY"], ["abcX", "b"], ("zza", "b")),
        (["zzab"], ["abcX", "b"], ("zza", "b")),
        (["ab"], ["abc", "ab"], ("", "ab")),
    ],
)
def test_of_stops_that_tie_the_first_and_of_those_the_shortest_counts(pieces, wanted, found):
    assert read(pieces, wanted, include=False) == found


def test_empty_text_is_not_passed_on():
    matcher, out = begin("ab")
    matcher.settle()
    matcher.text("ab")
    assert (matcher.stopped, out) == ("ab", [])


def test_a_stop_before_a_marker_counts_and_a_marker_without_one_does_not_stop():
    matcher, out = begin("abcX", "b", "end")
    matcher.text("z")
    assert not matcher.marker("<|im_start|>")
    assert matcher.stopped is None
    matcher.text("ab")
    assert matcher.marker("<|im_end|>")
    assert (matcher.stopped, "".join(out)) == ("b", "za")


def seconds(size: int) -> float:
    """The worst text for one stop of the greatest length: each character may begin it."""
    wanted = "a" * (MAX_STOP_CHARS - 1) + "b"
    matcher = StopText((wanted,), lambda text: None)
    began = time.process_time()
    for _ in range(size):
        matcher.text("aaaa")
    return time.process_time() - began


def test_time_is_linear_in_the_text():
    few = min(seconds(5_000) for _ in range(3))
    many = min(seconds(20_000) for _ in range(3))
    assert many < 10 * few


def test_length_is_bounded_and_the_rule_is_said():
    assert read_stops("x" * MAX_STOP_CHARS) == ("x" * MAX_STOP_CHARS,)
    with pytest.raises(InvalidRequest, match=f"at most {MAX_STOP_CHARS} characters.*400000"):
        read_stops(["ok", "x" * 400_000])


def test_a_marker_is_text_of_its_own():
    matcher, out = begin("_end|>x", "end", "y<|")
    matcher.text("y")
    assert matcher.marker("<|im_end|>")
    assert (matcher.stopped, out) == ("end", ["y"])
