"""docs/methods.md says what the table of methods, the tests and the installed vLLM say."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from eaglegate.engine.speculation.drafts.methods import METHODS, Runner, StepBehaviour, StepDepth
from eaglegate.engine.speculation.drafts.methods import find_method as find
from tests.engine.vllm_backend.drafters import PAGE, READ, ROWS, MethodRow, ReadRow

FIRST, _, REST = PAGE.read_text(encoding="utf-8").partition("## On the second")
SECOND, _, NOT_RUN = REST.partition("## Not run")


def describe(behaviour: StepBehaviour) -> str:
    fixed = behaviour.depth is StepDepth.FIXED
    skips = "there is none" if fixed else "skips" if behaviour.skips else "runs"
    return f"{behaviour.depth} | {skips} |"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_a_method_has_its_behaviour_on_both_runners(row: MethodRow):
    method = find({"method": row.method, "parallel_drafting": row.parallel})
    assert f"| {row.title} | {row.draft} | {describe(method.on(Runner.FIRST))} pass |" in FIRST
    has_second = method.second and method.is_known
    second = describe(method.second) if has_second else "not there: vLLM takes the first | |"
    assert f"| {row.title} | {second}\n" in SECOND


def test_every_method_of_the_table_has_a_row():
    assert METHODS.keys() <= {row.method for row in (*ROWS, *READ)}


@pytest.mark.parametrize("row", READ, ids=lambda row: row.title)
def test_quoted_lines_are_still_in_vllm(row: ReadRow):
    method = find({"method": row.method})
    depth = method.on(Runner.SECOND).depth if method.runs else ""
    line = f"| {row.title} | {depth} | `{row.source}`: `{row.words}` | {row.finding} |\n"
    assert line in NOT_RUN
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None
    assert row.words in (Path(spec.origin).parent / row.source).read_text(encoding="utf-8")
