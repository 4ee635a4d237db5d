"""Every parser of the registry has golden cases and a row in the names of docs/parsers.md."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("package", "parsers"),
    [("tool_parsers", TOOL_PARSERS), ("reasoning", REASONING_PARSERS)],
)
def test_every_name_of_the_installed_vllm_has_a_parser(package, parsers) -> None:
    """``hf`` and ``beam``, which read a grammar from the checkpoint, are the exceptions."""
    vllm = find_spec("vllm")
    if vllm is None or vllm.origin is None:
        pytest.skip("vLLM is not installed")
    source = Path(vllm.origin).with_name(package) / "__init__.py"
    registered = {
        key.value
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        for key in node.value.keys
        if isinstance(key, ast.Constant)
    }
    assert len(registered) > 30
    assert registered - set(parsers) <= {"hf", "beam"}
