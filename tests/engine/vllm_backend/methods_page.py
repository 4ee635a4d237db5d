"""docs/methods.md: what was run of every drafting method, and what was read.

    python -m tests.engine.vllm_backend.methods_page

runs ``test_methods.py`` and writes the page. A method that did not pass stands there as such.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from eaglegate.engine.speculation.methods import (
    DraftMethod,
    Runner,
    StepBehaviour,
    StepDepth,
    find_method,
)
from tests.conftest import ROOT
from tests.engine.vllm_backend.drafters import READ, ROWS

PAGE = ROOT / "docs" / "methods.md"
PROPERTY = "method"
FAILS = "fails"
HEAD = """\
# Drafting methods

Read this page before you use another drafting method than EAGLE 3. To choose a depth, read
[speculation](speculation.md).

This page lists the drafting methods of vLLM 0.32, how each behaves at a step that wants fewer than
K draft tokens, and which were run. `make methods` runs real engines on the CPU and writes the page.
The facts come from the table in `engine/speculation/methods.py`, which the scheduler, the warm-up,
the planner, `eaglegate check` and the banner read.

- **per step**: a step drafts as deep as its deepest request, and each request verifies as many
  tokens as its own depth.
- **by verifying fewer**: a step that drafts at all drafts K tokens. Each request verifies as many
  as its own depth.
- **not at all**: every request drafts and verifies K tokens at every step. A method that is not in
  the table behaves like this, with one warning at the start. A request that asks for a depth gets a
  400, and `--depth auto` does not plan.

At a step in which no request wants a draft, the drafter is skipped or runs all the same. A drafter
that follows the text (suffix, n-gram on the GPU) must run. vLLM uses its first model runner on a
CPU and its second one on a GPU, unless only the other one supports the method.

## Run on the first model runner

Each method ran on one engine, and its greedy text was compared with that of an engine without a
draft (float32, six answers at a time): at depths K, 0 and 1, with mixed depths in one batch, at
random depths and under the planner. Its accounts were compared with vLLM's own counters of verify
steps, draft tokens and accepted tokens. Some requests were cancelled and one ended at a stop token
while others continued. Then another draft was offered: only EAGLE 3 and 3.1 drafts can be
exchanged, and other methods refuse with the reason.

| method | its draft | depth varies | step at depth 0 | text, accounts, early ends | exchange |
|---|---|---|---|---|---|
"""
SECOND = """
## On the second model runner

This table comes from reading the source; `make test-gpu-path` runs EAGLE 3.1 on this runner
([GPU code path](gpu-path.md)).

| method | depth varies | step at depth 0 |
|---|---|---|
"""
READ_HEAD = """
On this runner an MTP draft of several layers has a speculator of its own, which drafts K tokens.

## Not run

These do not run on a CPU. A test checks that vLLM's source still has the quoted words.

| method | depth varies | in vLLM's source | found |
|---|---|---|---|
"""
Results = Mapping[str, str]
"""Outcome of each method's draft exchange, or ``fails``, by the title of its row."""


def record(node: pytest.Item, title: str, exchange: str) -> None:
    """Note that a method's test has passed."""
    node.user_properties.append((PROPERTY, (title, exchange)))


def render(results: Results) -> str:
    """The page. ``results``: a method's row by its title."""
    return "".join([HEAD, *list_run(results), SECOND, *list_second(), READ_HEAD, *list_read()])


def list_run(results: Results) -> list[str]:
    lines = []
    for row in ROWS:
        method = find_method({"method": row.method, "parallel_drafting": row.parallel})
        exchange = results.get(row.title, FAILS)
        passed = FAILS if exchange == FAILS else "pass"
        cells = (row.title, row.draft, *describe(method.on(Runner.FIRST)), passed, exchange)
        lines.append(f"| {' | '.join(cells)} |\n")
    return lines


def list_second() -> list[str]:
    methods: dict[str, DraftMethod] = {}
    for row in ROWS:
        method = find_method({"method": row.method, "parallel_drafting": row.parallel})
        methods.setdefault(row.title, method)
    return [
        f"| {title} | {' | '.join(describe(method.second))} |\n"
        if method.second and method.is_known
        else f"| {title} | not there: vLLM takes the first | |\n"
        for title, method in methods.items()
    ]


def list_read() -> list[str]:
    lines = []
    for row in READ:
        method = find_method({"method": row.method})
        behaviour = method.on(Runner.SECOND) if method.runs else None
        cells = (
            row.title,
            str(behaviour.depth) if behaviour else "",
            f"`{row.source}`: `{row.words}`",
        )
        lines.append(f"| {' | '.join(cells)} | {row.finding} |\n")
    return lines


def describe(behaviour: StepBehaviour) -> tuple[str, str]:
    fixed = behaviour.depth is StepDepth.FIXED
    return str(
        behaviour.depth
    ), "there is none" if fixed else "skips" if behaviour.skips else "runs"


def read_results(page: str) -> dict[str, str]:
    """The results that a page states, by title."""
    part = page.partition("## On the second")[0]
    rows = re.findall(r"^\| ([^|]+) \|(?:[^|]+\|){3} ([^|]+) \| ([^|]+) \|$", part, re.MULTILINE)
    return {title: exchange for title, _, exchange in rows if title != "method"}


class Reporter:
    """Gathers what tests have recorded."""

    def __init__(self) -> None:
        self.results: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found: dict[str, Any] = dict(report.user_properties)
        if report.when == "call" and report.passed and PROPERTY in found:
            title, exchange = found[PROPERTY]
            self.results[title] = exchange


def main(arguments: list[str]) -> int:
    reporter = Reporter()
    tests = str(ROOT / "tests" / "engine" / "vllm_backend" / "test_methods.py")
    imported = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    status = pytest.main([tests, "-q", *imported, *arguments], plugins=[reporter])
    PAGE.write_text(render(reporter.results), encoding="utf-8")
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
