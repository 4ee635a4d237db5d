"""Arguments stream as they are written."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from eaglegate.text.events import ToolCallDelta
from tests.text.parsing.golden_corpus import Case, by_format
from tests.text.parsing.golden_reading import check_all, main_parser, output, parser_of


@pytest.mark.parametrize("cases", by_format())
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
