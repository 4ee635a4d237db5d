"""Generator of the metric table in docs/metrics.md, from the declared groups.

``python -m scripts.metric_table docs/metrics.md`` rewrites the part between the two marks.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from prometheus_client import CollectorRegistry

from eaglegate.observability.labels import LABELS, TelemetrySettings
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.metrics.base import MetricDeclaration
from eaglegate.observability.telemetry import Telemetry
from eaglegate.server.cli.feature_table import list_metric_groups

BEGIN = "<!-- made by python -m scripts.metric_table: begin -->\n"
END = "<!-- end -->\n"


def list_metrics() -> list[MetricDeclaration]:
    """Return every metric."""
    groups = (*GROUPS, *list_metric_groups())
    return Telemetry(groups, TelemetrySettings(models=()), CollectorRegistry()).catalogue


def render_markdown(metrics: Iterable[MetricDeclaration]) -> str:
    """Render a section per group: its docstring, then its metrics."""
    groups = (*GROUPS, *list_metric_groups())
    about = {group.__name__: inspect.cleandoc(group.__doc__ or "") for group in groups}
    return "\n".join(
        _render_section(name, about[name], list(members))
        for name, members in groupby(metrics, key=lambda metric: metric.group)
    )


def _render_section(name: str, about: str, metrics: list[MetricDeclaration]) -> str:
    rows = "".join(
        f"| `{metric.name}` | {metric.kind} | {_render_labels(metric)} | {metric.help} |\n"
        for metric in metrics
    )
    head = "| metric | type | labels | meaning |\n|---|---|---|---|\n"
    return f"### {name}\n\n{about}\n\n{head}{rows}"


def _render_labels(metric: MetricDeclaration) -> str:
    names = metric.labels
    if names[: len(LABELS)] == LABELS:
        names = ("…", *names[len(LABELS) :])
    return ", ".join(names)


def rewrite_document(document: str) -> str:
    """Return ``document`` with an updated table."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{render_markdown(list_metrics())}\n{END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(rewrite_document(path.read_text(encoding="utf-8")), encoding="utf-8")
