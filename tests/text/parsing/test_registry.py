"""Every parser of the registry has golden cases and a row in the names of docs/parsers.md."""

from __future__ import annotations

from pathlib import Path

from eaglegate.text.parsing.registry import REASONING_PARSERS, TOOL_PARSERS, tool_format
from tests.text.parsing.golden_corpus import formats

PAGE = Path(__file__).parents[3] / "docs" / "parsers.md"


def test_every_tool_parser_has_golden_cases() -> None:
    covered = [tool_format(parser) for form in formats().values() for parser in form.tool_parsers]
    missing = [name for name in TOOL_PARSERS if tool_format(name) not in covered]
    assert missing == [], "add tests/text/parsing/golden/FORMAT.yaml (README.md there)"


def test_every_parser_has_a_row() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in (*TOOL_PARSERS, *REASONING_PARSERS) if f"`{name}`" not in page] == []
