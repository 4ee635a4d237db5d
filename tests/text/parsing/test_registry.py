"""Every parser of the registry has golden cases and a row in the names of docs/parsers.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eaglegate.text.parsing.registry import REASONING_PARSERS, TOOL_PARSERS, tool_format
from tests.text.parsing.golden_corpus import formats

PAGE = Path(__file__).parents[3] / "docs" / "parsers.md"


@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_a_tool_parser_has_golden_cases(name: str) -> None:
    covered = [tool_format(parser) for form in formats().values() for parser in form.tool_parsers]
    assert tool_format(name) in covered, (
        "add tests/text/parsing/golden/FORMAT.yaml (README.md there)"
    )


@pytest.mark.parametrize("name", [*TOOL_PARSERS, *REASONING_PARSERS])
def test_a_parser_has_a_row(name: str) -> None:
    assert re.search(rf"`{re.escape(name)}`", PAGE.read_text(encoding="utf-8")), f"add {name}"
