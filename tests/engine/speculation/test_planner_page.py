"""docs/planner.md: its example is run, and its numbers are those of the planner."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from eaglegate.engine.types import DepthReason

PAGE = (Path(__file__).parents[3] / "docs" / "planner.md").read_text("utf-8")
EXAMPLE = r"```python\n(.*?)```.*?```text\n(.*?)```(.*?)\n## "
((PROGRAM, OUTPUT, EXPLANATION),) = re.findall(EXAMPLE, PAGE, re.DOTALL)
REASONS = re.findall(r"^\| `(\w+)` \|", PAGE.partition("## A worked example")[0], re.MULTILINE)


@pytest.fixture(scope="module")
def output() -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(PROGRAM, "docs/planner.md", "exec"), {})
    return printed.getvalue()


def test_example_prints_the_output_on_the_page(output: str) -> None:
    assert output == OUTPUT


def test_planner_chooses_the_depth_with_the_highest_rate_of_the_table(output: str) -> None:
    rows = [line.split() for line in output.splitlines()[5:]]
    best = max(rows, key=lambda row: float(row[-1]))
    assert output.startswith(f"depth {best[0]}, widths [2, 1], reason cost\n")
    assert f"above {best[-1]} x" in output


def test_explanation_quotes_only_printed_numbers(output: str) -> None:
    quotes = re.findall(r"\d+\.\d{3}", EXPLANATION)
    assert quotes and set(quotes) <= set(re.findall(r"\d+\.\d+", output))


def test_page_explains_every_reason_once() -> None:
    assert sorted(REASONS) == sorted(DepthReason)
