from __future__ import annotations

import re
from pathlib import Path

from eaglegate.observability.metrics import GROUPS
from eaglegate.server.cli.feature_table import list_metric_groups
from scripts.metric_table import list_metrics, rewrite_document
from tests.observability.scene import make_telemetry

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
