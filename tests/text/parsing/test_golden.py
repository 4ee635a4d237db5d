"""Every golden case, at every cutting, is read as its format defines."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.text.parsing.golden_corpus import Case, by_format
from tests.text.parsing.golden_cuts import Cutting, cuttings, every_split
from tests.text.parsing.golden_reading import check, check_all, check_steps, main_parser, output

LONG = 1500
"""Number of tokens above which a case is cut in fewer ways."""
SHORT = 250
"""Most bytes of an output that is split in two at every place."""

formats = pytest.mark.parametrize("cases", by_format())


def usual_cuttings(case: Case) -> list[Cutting]:
    ids, eos, own = output(case)
    cuts = list(cuttings(ids, own, eos))
    return cuts[3::4] if len(ids) > LONG else cuts


@formats
def test_outputs_with_a_source_in_words_and_letters(cases: Sequence[Case]) -> None:
    check_all([case for case in cases if case.source], check_steps)


@pytest.mark.thorough
@pytest.mark.sample
@formats
def test_cuttings_by_turns_read_as_the_format_defines(cases: Sequence[Case]) -> None:
    """A case is read at a third of the cuttings, the next case at the next third."""
    turns = {case.id: turn % 3 for turn, case in enumerate(cases)}

    def read_in_turn(case: Case) -> None:
        cuts = usual_cuttings(case)[turns[case.id] :: 3]
        check(case, iter(cuts), main_parser(case))

    check_all(cases, read_in_turn)


@pytest.mark.slow
@formats
def test_every_cutting_reads_as_the_format_defines(cases: Sequence[Case]) -> None:
    check_all(cases, lambda case: check(case, iter(usual_cuttings(case)), main_parser(case)))


@pytest.mark.slow
@formats
def test_every_split_in_two(cases: Sequence[Case]) -> None:
    def split(case: Case) -> None:
        ids, eos, _ = output(case)
        check(case, every_split(ids, eos), main_parser(case))

    check_all([case for case in cases if case.defined and case.size <= SHORT], split)


@formats
def test_aliases_read_the_same(cases: Sequence[Case]) -> None:
    def read_as_aliases(case: Case) -> None:
        ids, eos, own = output(case)
        for alias in case.format.tool_parsers[1:]:
            check(case, iter(list(cuttings(ids, own, eos))[2:4]), alias)

    check_all(cases, read_as_aliases)
