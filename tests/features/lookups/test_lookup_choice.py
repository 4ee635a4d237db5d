"""Lookups are chosen where they bring more than the draft, by what both have brought."""

from __future__ import annotations

import random

from eaglegate.features.lookups.acceptance import LookupAcceptance
from eaglegate.features.lookups.chooser import REFRESH_STEPS, LookupChooser

FILE = [random.Random(0).randrange(1000) for _ in range(400)]


def begin(chooser: LookupChooser, text: list[int], name: str = "a", tenant: str = "") -> None:
    chooser.begin(name, text, len(text), "edit", tenant)
    for _ in range(3):
        chooser.begin_step()


def run(draft_hits: int, copies: bool, steps: int = 60, seed: int = 0) -> LookupChooser:
    """Decode beside a draft that is right for ``draft_hits`` of 3 tokens. With ``copies`` the
    answer copies its prompt, else it leaves it after each token beside a match."""
    chooser, rng = LookupChooser(8, 3), random.Random(seed)
    text = [*FILE, *FILE[:3]] if copies else [1, 2, 3] * 20
    begin(chooser, text)
    for step in range(steps):
        truth = FILE[3 + 4 * step : 7 + 4 * step] if copies else [rng.randrange(2000, 9999)] * 4
        drafts = truth[:draft_hits] + [-1] * (3 - draft_hits)
        chooser.begin_step()
        chooser.choose("a", drafts, 3, 8)
        text += truth if copies else [truth[0], 1, 2, 3]
    return chooser


def test_a_copy_is_looked_up() -> None:
    assert run(draft_hits=1, copies=True).num_lookups > 55


def test_lookups_that_fail_give_way_to_the_draft() -> None:
    chooser = run(draft_hits=1, copies=False)
    assert chooser.num_lookups < 10
    assert chooser.num_drafts > 40


def test_both_are_scored_at_every_step() -> None:
    chooser = run(draft_hits=3, copies=True)
    lookups, drafts = (
        chooser.acceptance._count(counts, 0, width)
        for counts, width in (
            (chooser.acceptance._lookup_counts, 8),
            (chooser.acceptance._draft_counts, 3),
        )
    )
    assert lookups[0, :, 0].sum() == drafts[0, :, 0].sum() == 59
    assert lookups[1, :, 3].sum() == 59  # four committed tokens a step, so no trial is longer
    assert lookups[0, :, 4].sum() == 0
    assert drafts[1, :, 2].sum() == 59


def test_no_lookup_is_longer_than_its_limit() -> None:
    chooser = LookupChooser(8, 3)
    begin(chooser, [*FILE, *FILE[:40]])
    assert chooser.choose("a", [1], 1, 2) == FILE[40:42]
    assert chooser.choose("a", [1], 1, 0) is None


def test_sure_requests_are_in_a_run() -> None:
    chooser = run(draft_hits=1, copies=True)
    assert chooser.are_sure(["a"])
    assert not chooser.are_sure(["a", "b"])
    assert not run(draft_hits=1, copies=False).are_sure(["a"])


def test_the_shortest_match_that_pays_follows_acceptance() -> None:
    fresh = LookupChooser(8, 3)
    begin(fresh, FILE.copy())
    assert [fresh.find_min_length("a", 8, depth) for depth in (3, 0)] == [4, 3]
    assert fresh.find_min_length("a", 0, 0) is None
    failing = run(draft_hits=1, copies=False)  # its matches have three tokens
    assert failing.find_min_length("a", 8, 0) == 4


def test_a_draft_that_copies_as_well_is_kept() -> None:
    chooser = run(draft_hits=3, copies=True)
    assert chooser.find_min_length("a", 3, 3) is None
    assert chooser.find_min_length("a", 8, 3) == 8


def test_late_widths_pay_in_a_run() -> None:
    copying, leaving = (run(draft_hits=1, copies=copies) for copies in (True, False))
    assert copying.pays_late("a", 8, 3)
    assert not copying.pays_late("a", 3, 3)
    assert not leaving.pays_late("a", 8, 3)


def test_tenants_share_nothing() -> None:
    chooser = run(draft_hits=1, copies=False)
    for name, tenant in (("b", "other"), ("c", "")):
        begin(chooser, [*[1, 2, 3] * 20, 7777, 1, 2, 3], name, tenant)
    assert chooser.choose("b", [], 0, 8) is not None
    assert chooser.choose("c", [], 0, 8) is None


def test_acceptance_follows_traffic_that_changes() -> None:
    tables = LookupAcceptance(8, 3)
    row = tables.take_slice("edit", "")
    for hits in [1] * 4000 + [0] * 1000:
        tables.score_lookup(row, 1, hits)
        tables.score_draft(row, 1, 1 - hits)
        tables.refresh()
    assert tables.lookup_values[row + 1] < 0.3
    assert tables.draft_values[row + 1] > 0.6


def test_ended_requests_leave_nothing() -> None:
    chooser = LookupChooser(8, 3)
    chooser.begin("a", FILE.copy(), len(FILE))
    chooser.end("a")
    for _ in range(REFRESH_STEPS):
        chooser.begin_step()
    assert chooser.size == 0
    assert not chooser.uses_lookup("a")


def test_another_draft_begins_anew() -> None:
    chooser = run(draft_hits=3, copies=True)
    chooser.acceptance.forget_draft()
    assert not any(chooser.acceptance._draft_counts)
    assert any(chooser.acceptance._lookup_counts)
    chooser.acceptance.refresh()
    fresh = LookupChooser(8, 3).acceptance
    fresh.price = chooser.acceptance.price
    fresh.take_slice("edit", "")
    assert chooser.acceptance.draft_values == fresh.draft_values


def test_tokens_that_are_taken_back_restart_the_index() -> None:
    chooser = LookupChooser(8, 3)
    text = [*FILE, *FILE[:40]]
    begin(chooser, text)
    assert chooser.choose("a", [], 0, 8) == FILE[40:48]
    del text[-5:]
    chooser.choose("a", [], 0, 8)
    for _ in range(3):
        chooser.begin_step()
    assert chooser.choose("a", [], 0, 8) == FILE[35:43]
