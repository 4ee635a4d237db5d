"""Every tool format with every reasoning format: thinking first, then calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.text.parsing.golden_corpus import ALONE, Case, Format, Marker, corpus
from tests.text.parsing.golden_cuts import cuttings
from tests.text.parsing.golden_reading import check, output


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
    check(case, iter(list(cuttings(ids, own, eos))[::3]), case.format.tool_parsers[0])
