"""docs/clients.md: a row per test, from the tests themselves and from what a run found.

A test names its client with the mark ``client`` and says in its docstring what it runs. Rows come
from collecting, so the committed page can be checked without running a client.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.clients.pins import BY_NAME, CLIENTS
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "clients.md"
HEAD = """\
# Clients

Read this page to see which clients work, at which version and in which mode. To write a client of
your own, begin with the [examples](examples/README.md) and [API](api.md).

CI runs these coding agents, SDKs, load generators and evaluation harnesses against the gateway, at
pinned versions. A scripted worker stands behind `--upstream` and calls tools from a script, so that
an agent goes through whole sessions. Everything between the client and the worker's tokens is real.
A row passes when the client reaches its goal and none of its requests is refused, unless the row is
about a refusal.

`make clients` writes this page; `make clients-newest` runs the newest versions and prints what
fails. The SDKs that run against the demo model itself (`openai`, `anthropic`, `openai-agents` and
`langchain-openai` for Python) are in `tests/e2e` and `tests/server`.

| client | version | API or mode | what runs | result |
|---|---|---|---|---|
"""
ROW = "clients-row"
Row = tuple[str, str, str, str]
"""Title, version, mode and what runs."""


def row_of(item: pytest.Function) -> Row | None:
    """The report's row of a test; None for a test of the harness itself."""
    mark = item.get_closest_marker("client")
    if mark is None:
        return None
    client = BY_NAME[mark.args[0]]
    spec = getattr(item, "callspec", None)
    texts = [v for k, v in (spec.params if spec else {}).items() if k != "client" and v]
    mode = ", ".join(f"`{text}`" for text in texts)
    return client.title, client.version, mode, " ".join((item.function.__doc__ or "").split())


def render(results: Mapping[Row, str]) -> str:
    order = {client.title: at for at, client in enumerate(CLIENTS)}
    rows = sorted(results.items(), key=lambda entry: order[entry[0][0]])
    lines = (f"| {' | '.join(row)} | {result} |\n" for row, result in rows)
    return HEAD + "".join(lines)


def committed() -> list[Row]:
    """The rows of the page as it stands."""
    cells = (
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in PAGE.read_text().splitlines()
        if line.startswith("| ")
    )
    return [(row[0], row[1], row[2], row[3]) for row in cells if row[0] != "client"]


class Reporter:
    """Keeps what became of every row and writes the page at the end of a whole run.

    Rows travel with the reports, for another process may collect and run the tests.
    """

    def __init__(self, page: Path | None) -> None:
        self.page = page
        self.rows: dict[str, Row] = {}
        self.results: dict[Row, str] = {}
        self._places: dict[Row, int] = {}

    def collect(self, items: Iterable[pytest.Item]) -> None:
        for at, item in enumerate(items):
            row = row_of(item) if isinstance(item, pytest.Function) else None
            if row is not None:
                self.rows[item.nodeid] = row
                item.user_properties.append((ROW, (at, *row)))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.collect(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties: dict[str, Any] = dict(report.user_properties)
        if ROW not in properties or (report.when != "call" and report.passed):
            return
        at, title, version, mode, what = properties[ROW]
        row: Row = (title, version, mode, what)
        self._places[row] = at
        if hasattr(report, "wasxfail"):
            self.results[row] = f"fails: {report.wasxfail}"
        else:
            self.results[row] = "passes" if report.passed else "fails"

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        ran = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if self.page is not None and ran and not hasattr(session.config, "workerinput"):
            rows = sorted(self.results, key=self._places.__getitem__)
            self.page.write_text(render({row: self.results[row] for row in rows}))
