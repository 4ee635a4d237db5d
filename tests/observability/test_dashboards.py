"""Dashboards, rules and the document ask only for metrics that exist; promtool runs the rules."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import yaml

from eaglegate.observability.metrics import GROUPS
from eaglegate.server.cli.feature_table import list_metric_groups
from scripts.metric_table import list_metrics, rewrite_document
from tests.deploy.test_pods import list_pod_metrics
from tests.observability.scene import make_telemetry

ROOT = Path(__file__).parents[2]
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
RULES = sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))
OURS = re.compile(r"\beaglegate[_:][a-z0-9_:]+")


def panels(dashboard: Path) -> list[dict]:
    return [p for p in orjson.loads(dashboard.read_bytes())["panels"] if p["type"] != "row"]


def rules() -> list[dict]:
    groups = (group for path in RULES for group in yaml.safe_load(path.read_text())["groups"])
    return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Every name a query may use: declared metrics, their parts, and recorded series."""
    declared = make_telemetry((*GROUPS, *list_metric_groups())).catalogue
    parts = ("", "_bucket", "_sum", "_count")
    names = {
        metric.name + part
        for metric in declared
        for part in (parts if metric.kind == "histogram" else ("",))
    }
    names |= {rule["record"] for rule in rules() if "record" in rule}
    return names | list_pod_metrics().keys()


def test_the_files_are_what_the_code_makes():
    script = ROOT / "deploy/grafana/generate.py"
    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_ask_for_what_exists(dashboard, known):
    ids = [panel["id"] for panel in panels(dashboard)]
    assert len(set(ids)) == len(ids)
    for panel in panels(dashboard):
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters) > 0
        asked = {name for target in panel["targets"] for name in OURS.findall(target["expr"])}
        assert asked <= known, panel["title"]


def test_annotations_ask_for_what_exists(known):
    asked = [
        row["expr"]
        for dashboard in DASHBOARDS
        for row in orjson.loads(dashboard.read_bytes())["annotations"].get("list", ())
    ]
    assert asked
    assert {name for expr in asked for name in OURS.findall(expr)} <= known


def test_rules_ask_for_what_exists(known):
    for rule in rules():
        assert set(OURS.findall(rule["expr"])) <= known, rule


def test_panels_cover_the_width():
    for dashboard in DASHBOARDS:
        for panel in panels(dashboard):
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24, panel["title"]


def test_objectives_lie_on_bucket_bounds(known):
    from eaglegate.observability.metrics.base import LONG_S, SHORT_S

    bounds = {str(float(bound)) for bound in (*LONG_S, *SHORT_S)}
    used = {bound for rule in rules() for bound in re.findall(r'le="([^"]+)"', rule["expr"])}
    assert used <= bounds


DOCUMENT = Path(__file__).parents[2] / "docs/metrics.md"


def test_the_document_lists_what_is_declared():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == rewrite_document(text), "run python -m scripts.metric_table docs/metrics.md"


def test_everything_registered_is_declared_with_base_units():
    telemetry = make_telemetry((*GROUPS, *list_metric_groups()))
    names = {metric.name for metric in telemetry.catalogue}
    registered = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in telemetry.registry.collect()
    }
    assert registered == names
    assert not [name for name in names if re.search(r"_(ms|millis|percent|kb|mb)(_|$)", name)]


def test_every_metric_has_a_meaning():
    assert all(metric.help for metric in list_metrics())
