from __future__ import annotations

from collections import Counter

from eaglegate.observability.labels import NO_TEMPLATE, OTHER, TopTemplates


def test_the_first_ones_are_named_and_the_rest_is_other():
    top = TopTemplates(2)
    assert [top.name(x)[0] for x in ("a", "b", "c", "", "a")] == ["a", "b", OTHER, NO_TEMPLATE, "a"]


def test_a_newcomer_seen_more_often_takes_the_place_of_the_rarest():
    top = TopTemplates(2)
    for fingerprint in ("a", "a", "b", "c"):
        top.name(fingerprint)
    assert top.name("c") == ("c", "b")
    assert top.name("b")[0] == OTHER


def test_a_flood_of_one_time_templates_displaces_nothing_seen_twice():
    top = TopTemplates(3)
    for _ in range(2):
        for fingerprint in ("a", "b", "c"):
            top.name(fingerprint)
    names = Counter(top.name(f"{at:08x}")[0] for at in range(10_000))
    assert names == {OTHER: 10_000}
    assert top.name("a")[0] == "a"
