"""docs/methods.md is of the table, the tests and the vLLM that are there now."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from eaglegate.engine.speculation.methods import METHODS
from tests.engine.vllm_backend.drafters import READ, ROWS, ReadRow
from tests.engine.vllm_backend.methods_page import FAILS, PAGE, read_results, render


def test_the_page_is_of_the_table_and_of_a_run_that_passed():
    page = PAGE.read_text(encoding="utf-8")
    results = read_results(page)
    assert page == render(results), "run `make methods` and commit docs/methods.md"
    assert list(results) == [row.title for row in ROWS]
    assert FAILS not in results.values()


def test_every_method_of_the_table_has_a_row():
    assert METHODS.keys() <= {row.method for row in (*ROWS, *READ)}


@pytest.mark.parametrize("row", READ, ids=lambda row: row.title)
def test_quoted_lines_are_still_in_vllm(row: ReadRow):
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None
    assert row.words in (Path(spec.origin).parent / row.source).read_text(encoding="utf-8")
