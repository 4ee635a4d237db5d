"""Recording and alert rules: promtool runs the scenarios in rules/."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from eaglegate.observability.metrics import GROUPS
from eaglegate.server.cli.feature_table import list_metric_groups
from tests.observability.test_dashboards import ROOT, rules

ALERTS = {rule["alert"] for rule in rules() if "alert" in rule}
SCENARIOS = sorted((Path(__file__).parent / "rules").glob("*.yml"))

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        shutil.which("promtool") is None,
        reason="needs promtool of Debian's prometheus (.ci/packages)",
    ),
]


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_configuration_and_rules_are_valid():
    for name in ("prometheus.yml", "prometheus-tls.yml"):
        promtool("check", "config", ROOT / "deploy" / "prometheus" / name)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_scenarios(scenario):
    promtool("test", "rules", scenario)


def test_every_alert_fires_in_a_scenario():
    fired = {
        case["alertname"]
        for path in SCENARIOS
        for test in yaml.safe_load(path.read_text())["tests"]
        for case in test.get("alert_rule_test", ())
        if case["exp_alerts"]
    }
    assert fired == ALERTS


def test_every_alert_has_its_row_in_the_document():
    rows = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    assert {name for name in ALERTS if name not in rows} == set()


def test_the_promql_in_docstrings_parses(tmp_path):
    docs = " ".join(
        " ".join((group.__doc__ or "").split()) for group in (*GROUPS, *list_metric_groups())
    )
    asked = [text for text in re.findall(r"``([^`]+)``", docs) if "eaglegate_" in text]
    rules = [{"record": f"x:{at}", "expr": expr} for at, expr in enumerate(asked)]
    path = tmp_path / "docstrings.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "docstrings", "rules": rules}]}))
    assert len(rules) >= len((*GROUPS, *list_metric_groups()))
    promtool("check", "rules", path)
