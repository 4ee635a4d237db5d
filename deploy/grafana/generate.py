"""Write the dashboards of boards/ as Grafana JSON: ``python deploy/grafana/generate.py``.

With ``--check`` nothing is written and the exit status says whether the files are up to date.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from string import ascii_uppercase

from boards import DASHBOARDS
from grafana_foundation_sdk.builders import common, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import GraphDrawStyle, LegendDisplayMode, StackingMode
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef
from panels import Annotation, Dashboard, Panel

FOLDER = Path(__file__).parent / "dashboards"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
HEIGHTS = {"number": 4, "lines": 8, "stacked": 8}
Builder = stat.Panel | timeseries.Panel


def dashboard(made_of: Dashboard) -> str:
    """One dashboard as JSON text."""
    page = (
        build.Dashboard(made_of.title)
        .uid(made_of.uid)
        .description(made_of.about)
        .tags(["eaglegate"])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(build.DatasourceVariable("datasource").label("Source").type("prometheus"))
        .with_variable(choice("model"))
        .with_variable(choice("lane"))
        .link(build.DashboardLink("eaglegate").tags(["eaglegate"]).as_dropdown(True))
    )
    for each in made_of.annotations:
        page = page.annotation(annotation(each))
    ids = itertools.count(1)
    for heading, panels in made_of.rows.items():
        page = page.with_row(build.Row(heading).id(next(ids)))
        for each in panels:
            page = page.with_panel(panel(each).id(next(ids)))
    return JSONEncoder(sort_keys=True, indent=2).encode(page.build()) + "\n"


def choice(label: str) -> build.QueryVariable:
    """A selector for every value a label has."""
    return (
        build.QueryVariable(label)
        .label(label.capitalize())
        .datasource(SOURCE)
        .query(f"label_values(eaglegate_requests_total, {label})")
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def annotation(spec: Annotation) -> build.AnnotationQuery:
    made = build.AnnotationQuery().name(spec.name).datasource(SOURCE).enable(True)
    return made.expr(spec.expr).icon_color(spec.colour)


def panel(spec: Panel) -> Builder:
    made: Builder = stat.Panel() if spec.kind == "number" else lines(spec)
    made = made.title(spec.title).unit(spec.unit).datasource(SOURCE)
    made = made.span(spec.width).height(HEIGHTS[spec.kind])
    about = " ".join(part for part in (spec.about, spec.conditional) if part)
    if about:
        made = made.description(about)
    if spec.least is not None and spec.kind != "number":
        made = made.min(spec.least)
    for letter, query in zip(ascii_uppercase, spec.queries, strict=False):
        target = prometheus.Dataquery().ref_id(letter).expr(query.expr).datasource(SOURCE)
        made = made.with_target(target.legend_format(query.legend or spec.title))
    return made


def lines(spec: Panel) -> timeseries.Panel:
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).show_legend(True)
    made = timeseries.Panel().draw_style(GraphDrawStyle.LINE).line_width(2).legend(legend)
    if spec.kind == "stacked":
        made = made.stacking(common.StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(25)
    return made


def main() -> int:
    stale = []
    for each in DASHBOARDS:
        path = FOLDER / f"{each.uid.removeprefix('eaglegate-')}.json"
        text = dashboard(each)
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
    if stale:
        print(f"out of date: {', '.join(stale)}; run python {Path(__file__).name}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
