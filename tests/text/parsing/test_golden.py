"""Every golden case is read as its format defines: at a few cuttings, and thoroughly at all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.text.parsing.golden_corpus import Case, by_format
from tests.text.parsing.golden_cuts import cuttings, every_split, few
from tests.text.parsing.golden_reading import check, check_all, check_steps, main_parser, output

LONG = 1500
"""Number of tokens above which a case is cut in fewer ways."""
SHORT = 250
"""Most bytes of an output that is split in two at every place."""

formats = pytest.mark.parametrize("cases", by_format())


@formats
def test_every_case_reads_as_the_format_defines(cases: Sequence[Case]) -> None:
    def read(case: Case) -> None:
        ids, eos, own = output(case)
        check(case, few(ids, own, eos), main_parser(case))

    check_all(cases, read)


@pytest.mark.slow
@formats
def test_every_cutting_reads_as_the_format_defines(cases: Sequence[Case]) -> None:
    def read(case: Case) -> None:
        ids, eos, own = output(case)
        cuts = list(cuttings(ids, own, eos))
        check(case, iter(cuts[3::4] if len(ids) > LONG else cuts), main_parser(case))

    check_all(cases, read)


@pytest.mark.thorough
@formats
def test_outputs_with_a_source_in_words_and_letters(cases: Sequence[Case]) -> None:
    check_all([case for case in cases if case.source], check_steps)


@pytest.mark.slow
@formats
def test_every_split_in_two(cases: Sequence[Case]) -> None:
    def split(case: Case) -> None:
        ids, eos, _ = output(case)
        check(case, every_split(ids, eos), main_parser(case))

    check_all([case for case in cases if case.defined and case.size <= SHORT], split)


@pytest.mark.thorough
@formats
def test_aliases_read_the_same(cases: Sequence[Case]) -> None:
    def read_as_aliases(case: Case) -> None:
        ids, eos, own = output(case)
        for alias in case.format.tool_parsers[1:]:
            check(case, few(ids, own, eos), alias)

    check_all(cases, read_as_aliases)
