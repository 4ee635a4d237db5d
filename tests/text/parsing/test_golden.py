"""Every golden case is read as its format defines: at a few cuttings, and thoroughly at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import pytest

from eaglegate.text.events import ToolCallDelta
from tests.text.parsing.golden_corpus import ALONE, Case, Format, Marker, by_format, corpus
from tests.text.parsing.golden_cuts import cuttings, every_split, few
from tests.text.parsing.golden_reading import (
    check,
    check_all,
    check_steps,
    main_parser,
    output,
    parser_of,
)

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
            check(case, islice(few(ids, own, eos), 1, 2), alias)

    check_all(cases, read_as_aliases)


@formats
def test_arguments_stream(cases: Sequence[Case]) -> None:
    check_all([case for case in cases if "long_argument_5k" in case.name], check_streaming)


def check_streaming(case: Case) -> None:
    """One token a step: nearly every token of a long argument brings its piece."""
    parser, (ids, _, _) = parser_of(case, main_parser(case)), output(case)
    pieces = [
        event.arguments
        for token_id in ids
        for event in parser.feed([token_id])
        if isinstance(event, ToolCallDelta)
    ]
    assert len(pieces) > 0.8 * len(ids)
    assert max(map(len, pieces)) < 100


def found(name: str) -> dict[Format, Case]:
    return {case.format: case for case in corpus() if case.name == name}


def composed(thinking: Case, calling: Case) -> Case:
    """The thinking of one case, cut off where its answer begins, before the calls of the other."""
    own = [piece.token for piece in thinking.pieces if isinstance(piece, Marker)]
    special = [marker for marker in own if marker in thinking.format.special]
    markers = [marker for marker in own if marker in thinking.format.markers]
    last = thinking.pieces[-1]
    assert isinstance(last, str)
    form = replace(
        calling.format,
        name=f"{calling.format.name}-with-{thinking.format.name}",
        reasoning_parser=thinking.format.reasoning_parser,
        markers=tuple(dict.fromkeys((*markers, *calling.format.markers))),
        special=tuple(dict.fromkeys((*special, *calling.format.special))),
    )
    opening = (*thinking.pieces[:-1], last.removesuffix(thinking.content))
    return replace(
        calling, format=form, pieces=(*opening, *calling.pieces), reasoning=thinking.reasoning
    )


def pairs() -> Iterator[Case]:
    for thinking in found("short").values():
        for calling in found("two_calls").values():
            if not {thinking.format.name, calling.format.name} & ALONE:
                yield composed(thinking, calling)


@pytest.mark.thorough
@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in pairs()])
def test_thinking_then_calls(case: Case) -> None:
    ids, eos, own = output(case)
    check(case, iter(list(cuttings(ids, own, eos))[::6]), case.format.tool_parsers[0])
