"""Markers in plain text: what is held back, where one may stand, and what must follow."""

from __future__ import annotations

import pytest

from eaglegate.text.parsing.markers import JSON, LONGEST_BLANK, NAME, Lexicon, Quotes, follows


def find(text: str, *, has_more: bool) -> tuple[int, int, str | None]:
    return Lexicon(()).delimiters("</think>", "<think>").find(text, 0, has_more)


@pytest.mark.parametrize("size", range(1, len("</think>")))
def test_every_beginning_of_a_marker_waits_and_nothing_else(size):
    begun = "</think>"[:size]
    assert find(f"text {begun}", has_more=True) == (5, 5, None)
    whole = len(f"text {begun}")
    assert find(f"text {begun}", has_more=False) == (whole, whole, None)
    assert find(f"text {begun}.", has_more=True) == (whole + 1, whole + 1, None)


@pytest.mark.parametrize("has_more", [True, False])
def test_a_marker_is_found_from_its_first_to_its_last_character(has_more):
    assert find("</think>", has_more=has_more) == (0, 8, "</think>")
    assert find("a</think><", has_more=has_more) == (1, 9, "</think>")


def test_a_beginning_before_a_whole_marker_goes_first():
    stops = Lexicon(()).delimiters("<a<b<c", "<b")
    assert stops.find("<a<b", 0, True) == (0, 0, None)
    assert stops.find("<a<b", 0, False) == (2, 4, "<b")


@pytest.mark.parametrize("more", [True, False])
def test_so_many_blanks_belong_between_two_tags_and_not_one_more(more):
    assert LONGEST_BLANK == 100
    follow = {"</call>": None}
    assert follows(" " * 100 + "</call>", 0, follow, more) is True
    assert follows(" " * 101 + "</call>", 0, follow, more) is False
    assert follows("x" + " " * 100 + "</call>", 1, follow, more) is True
    assert follows(" " * 101, 0, follow, more) is False
    assert follows(" " * 100, 0, follow, more) is (None if more else True)


def test_a_whole_marker_counts_where_a_longer_one_may_begin():
    stops = Lexicon(()).delimiters("<a", "<a>b")
    assert stops.find("x<a", 0, True) == (1, 3, "<a")
    assert stops.find("x<", 0, True) == (1, 1, None)


@pytest.mark.parametrize("then", [None, {"(": None}])
def test_a_name_that_reaches_the_end_is_not_known_yet(then):
    assert follows("a name", 1, {NAME: then}, True) is None
    assert follows("a name", 1, {NAME: then}, False) is False
    assert follows("a name(", 1, {NAME: {"(": None}}, True) is True


@pytest.mark.parametrize(
    ("text", "with_more", "at_the_end"),
    [
        ('{"a": "}"} <next>', True, True),
        ('{"a": 1} and so on', False, False),
        ('{"a": 1}', None, True),
        ('{"a": ', None, True),
        ('{\\"a', False, False),
        ("<next>", False, False),
        ("{" * 4097, True, True),
        ("{" * 4096, None, True),
    ],
)
def test_an_object_is_followed_to_its_end(text, with_more, at_the_end):
    follow = {JSON: {"<next>": None}}
    assert follows(f"x{text}", 1, follow, True) is with_more
    assert follows(f"x{text}", 1, follow, False) is at_the_end


def test_a_marker_of_one_character_never_waits():
    stops = Lexicon(()).delimiters("|")
    assert stops.find("ab", 0, True) == (2, 2, None)
    assert stops.find("a|b", 0, True) == (1, 2, "|")


def test_objects_of_a_vocabulary_are_made_once():
    lexicon, made = Lexicon(()), []
    for _ in range(2):
        lexicon.remember("key", lambda: made.append(1))
    assert made == [1]
    stops = lexicon.delimiters("<a>")
    assert lexicon.delimiters("<a>") is stops
    quotes = Quotes(lexicon, {"<b>": None})
    assert quotes.add_to(stops) is quotes.add_to(stops)
    assert quotes.add_to(stops).markers == {"<a>", "<b>"}
    assert Quotes(lexicon, {}).add_to(stops) is stops
