"""docs/clients.md is of the clients, versions and tests that are there now."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.clients.report import committed
from tests.conftest import ROOT

pytestmark = pytest.mark.thorough

COLLECT = """
import json, sys, pytest
from tests.clients.report import Reporter
reporter = Reporter(None)
pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "tests/clients"], plugins=[reporter])
print("ROWS", json.dumps([*reporter.rows.values()]), file=sys.stderr)
"""


def test_every_test_of_a_client_has_its_row_and_no_other_is_there():
    command = [sys.executable, "-c", COLLECT]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = [line for line in ran.stderr.splitlines() if line.startswith("ROWS ")]
    rows = sorted(map(tuple, json.loads(line.removeprefix("ROWS "))))
    assert rows, ran.stdout
    assert sorted(committed()) == rows, "run `make clients` and commit docs/clients.md"
    assert all(row[3] for row in rows), "a client's test says in its docstring what it runs"
