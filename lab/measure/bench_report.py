"""Report of a bench: conclusion, figures and categories, as JSON, text and an HTML page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eaglegate.lab.measure.bench import BenchPlan, LoadPoint
from eaglegate.lab.measure.bench_compare import (
    Comparison,
    compare_settings,
    conclude,
    describe_missing,
)
from eaglegate.lab.measure.charts import Line, Point, draw_lines
from eaglegate.lab.measure.depths import (
    COST_TABLE,
    conclude_depths,
    list_depth_notes,
    measure_step_costs,
    name_depth,
)
from eaglegate.lab.measure.figures import (
    MS,
    AcceptanceFigures,
    Block,
    Figures,
    compute_figures,
    share_answers,
    split_categories,
)
from eaglegate.lab.measure.report import (
    Conclusion,
    Page,
    format_estimate,
    format_number,
    format_ratio,
    format_share,
    format_table,
    write_json,
)
from eaglegate.lab.measure.statistics import Estimate, Summary

Table = tuple[list[str], list[list[str]]]


@dataclass(frozen=True, slots=True)
class BenchReport:
    run: dict[str, Any]
    plan: dict[str, Any]
    conclusion: Conclusion | None
    """Conclusion, or None if nothing was compared."""
    figures: tuple[Figures, ...]
    comparisons: tuple[Comparison, ...]
    categories: dict[str, tuple[Figures, ...]]
    notes: tuple[str, ...]
    step_costs: dict[str, Any] | None = None
    """Time of a step by concurrency and depth, in milliseconds, with ``--depths``."""

    def write(self, folder: Path) -> list[Path]:
        """Write the report and return its files."""
        write_json(folder / "report.json", asdict(self))
        (folder / "report.html").write_text(self.render_page(), encoding="utf-8")
        files = [folder / "report.json", folder / "report.html"]
        if self.step_costs is not None:
            write_json(folder / COST_TABLE, self.step_costs)
            files.append(folder / COST_TABLE)
        return files

    def render_text(self) -> str:
        lines = [*(self.conclusion.lines if self.conclusion else ())]
        lines += [f"note: {note}" for note in self.notes]
        parts = ["\n".join(lines)] if lines else []
        for title, (head, rows) in self.tables():
            parts += [title, format_table(head, rows)]
        return "\n\n".join([*parts, f"$ {self.run['command']}"])

    def tables(self) -> list[tuple[str, Table]]:
        tables = [("Throughput", self.depth_rows() if self.depths else self.rows())]
        tables.append(("Latency, in milliseconds", self.latency_rows()))
        if any(f.acceptance for f in self.figures):
            tables.append(("Acceptance", self.acceptance_rows()))
        if len(self.categories) > 1:
            tables.append(("By category", self.category_rows()))
        return tables

    @property
    def depths(self) -> list[int]:
        return list(self.plan.get("depths", ()))

    def _compare(self, f: Figures) -> tuple[str, str]:
        """Return a setting's speed per user and throughput over the baseline; empty for the
        baseline.
        """
        for c in self.comparisons:
            if (c.setting, c.load) == (f.setting, f.load):
                placeholder = describe_missing(c.repeats)
                return tuple(format_ratio(r) or placeholder for r in (c.user_speed, c.throughput))  # type: ignore[return-value]
        return "", ""

    def rows(self) -> Table:
        """Return the published table."""
        head = ["load", "setting", "tokens/s per user", "over baseline"]
        head += ["tokens/s total", "over baseline", "goodput/s", "requests", "failed"]
        rows = []
        for f in self.figures:
            speed, total = self._compare(f)
            rows.append([
                f.load, f.setting, format_estimate(f.user_speed), speed,
                format_estimate(f.throughput), total,
                format_number(f.goodput), str(f.requests), str(f.failed),
            ])  # fmt: skip
        return head, rows

    def depth_rows(self) -> Table:
        """Return a row per load and depth, smallest depth first."""
        head = ["load", "depth", "tokens/s per user", "over depth 0", "tokens/s total"]
        head += ["over depth 0", "TPOT ms", "acceptance length", "fallback", "requests", "failed"]
        rows = []
        for load in dict.fromkeys(f.load for f in self.figures):
            of_load = {f.setting: f for f in self.figures if f.load == load}
            for depth in self.depths:
                f = of_load[name_depth(depth)]
                speed, total = self._compare(f)
                rows.append([
                    load, str(depth), format_estimate(f.user_speed), speed,
                    format_estimate(f.throughput), total, format_number(_pooled_tpot_ms(f)),
                    *_format_acceptance(f.acceptance)[:2], str(f.requests), str(f.failed),
                ])  # fmt: skip
        return head, rows

    def latency_rows(self) -> tuple[list[str], list[list[str]]]:
        head = ["load", "setting"]
        for name in ("TTFT", "TPOT", "ITL", "E2EL"):
            head += [f"{name} mean", "p50", "p99"]
        rows = []
        for f in self.figures:
            row = [f.load, f.setting]
            for summary in (f.ttft, f.tpot, f.itl, f.e2el):
                row += _format_summary(summary)
            rows.append(row)
        return head, rows

    def acceptance_rows(self) -> tuple[list[str], list[list[str]]]:
        head = ["load", "setting", "acceptance length", "fallback", "at position 1, 2, ...", "from"]
        rows = [
            [f.load, f.setting, *_format_acceptance(f.acceptance)]
            for f in self.figures
            if f.acceptance is not None
        ]
        return head, rows

    def category_rows(self) -> tuple[list[str], list[list[str]]]:
        head = ["category", "load", "setting", "tokens/s per user", "TPOT mean"]
        head += ["acceptance length", "requests"]
        rows = [
            [
                name, f.load, f.setting, format_estimate(f.user_speed),
                format_number(f.tpot.mean if f.tpot else None),
                format_number(f.acceptance.length if f.acceptance else None), str(f.requests),
            ]
            for name, figures in self.categories.items()
            for f in figures
        ]  # fmt: skip
        return head, rows

    def render_page(self) -> str:
        page = Page("eaglegate bench", self.conclusion)
        page.add_list([f"Note: {note}" for note in self.notes])
        charts = {
            "Throughput": self._throughput_charts,
            "Latency, in milliseconds": self._latency_charts,
            "Acceptance": self._acceptance_charts,
        }
        for title, table in self.tables():
            page.add_heading(title)
            page.add_table(*table)
            if title in charts:
                page.add_charts(charts[title]())
        page.add_run(self.run | self.plan)
        return page.render()

    def _lines(self, value: Callable[[Figures], Point | None]) -> list[Line]:
        names = dict.fromkeys(f.setting for f in self.figures)
        return [
            Line(name, [p for f in self.figures if f.setting == name and (p := value(f))])
            for name in names
        ]

    def _throughput_charts(self) -> list[str]:
        axis = self.plan["axis"]
        return [
            draw_lines(
                "Tokens per second, per user",
                self._lines(lambda f: _to_point(self._x(f), f.user_speed)),
                axis, "tokens/s", log_x=True,
            ),
            draw_lines(
                "Tokens per second, total",
                self._lines(lambda f: _to_point(self._x(f), f.throughput)),
                axis, "tokens/s", log_x=True,
            ),
        ]  # fmt: skip

    def _latency_charts(self) -> list[str]:
        def make_reader(name: str, part: str) -> Callable[[Figures], Point | None]:
            def read(f: Figures) -> Point | None:
                summary = getattr(f, name)
                return None if summary is None else Point(self._x(f), getattr(summary, part))

            return read

        axis = self.plan["axis"]
        return [
            draw_lines(
                f"{title} {part}", self._lines(make_reader(name, part)), axis, "ms", log_x=True
            )
            for title, name in (("TTFT", "ttft"), ("TPOT", "tpot"))
            for part in ("median", "p99")
        ]

    def _acceptance_charts(self) -> list[str]:
        lines = [
            Line(
                f"{f.setting} at {f.load}",
                [Point(index + 1, share) for index, share in enumerate(f.acceptance.per_position)],
            )
            for f in self.figures
            if f.acceptance is not None
        ]
        title = "Accepted, of the drafts that reached the position"
        return [draw_lines(title, lines, "position", "share")]

    def _x(self, figures: Figures) -> float:
        return float(self.plan["x"][figures.load])


def _to_point(x: float, estimate: Estimate | None) -> Point | None:
    return None if estimate is None else Point(x, estimate.value, estimate.low, estimate.high)


def _format_summary(summary: Summary | None) -> list[str]:
    if summary is None:
        return ["", "", ""]
    return [format_number(value) for value in (summary.mean, summary.median, summary.p99)]


def _format_acceptance(acceptance: AcceptanceFigures | None) -> list[str]:
    if acceptance is None:
        return ["", "", "", ""]
    positions = ", ".join(f"{share:.2f}" for share in acceptance.per_position)
    return [
        format_number(acceptance.length),
        format_share(acceptance.fallback),
        positions,
        acceptance.source,
    ]


def _pooled_tpot_ms(figures: Figures) -> float | None:
    """Return 1 / tokens/s per user, so that its ratios are the same."""
    return MS / figures.user_speed.value if figures.user_speed else None


def make_report(plan: BenchPlan, blocks: Sequence[Block], run: dict[str, Any]) -> BenchReport:
    blocks = share_answers(blocks) if len(plan.settings) > 1 else blocks
    groups = [
        [b for b in blocks if (b.setting, b.load) == (setting.name, load.name)]
        for load in plan.loads
        for setting in plan.settings
    ]
    groups = [group for group in groups if group]
    figures = tuple(compute_figures(group, plan.goal) for group in groups)
    axis = "concurrency" if plan.loads[0].concurrency else "sessions per second"
    plan_description: dict[str, Any] = {
        **plan.digest(),
        "sessions": len(plan.sessions),
        "depths": list(plan.depths),
        "axis": axis,
        "x": {load.name: load.x for load in plan.loads},
    }
    comparisons = compare_settings(plan, blocks)
    places = name_places(plan.loads)
    return BenchReport(
        run,
        plan_description,
        conclude_depths(plan, blocks, comparisons, places)
        if plan.depths
        else conclude(comparisons, places),
        figures,
        tuple(comparisons),
        _compute_categories(groups, plan),
        (*find_notes(figures), *list_depth_notes(plan.depths, blocks)),
        measure_step_costs(plan, blocks) if plan.depths else None,
    )


def name_places(loads: Sequence[LoadPoint]) -> dict[str, str]:
    """Return the beginnings of sentences about each load point; empty for a single point."""
    if len(loads) == 1:
        return {loads[0].name: ""}
    return {
        load.name: f"At concurrency {load.name}: " if load.concurrency else f"At {load.name}: "
        for load in loads
    }


def _compute_categories(
    groups: Sequence[Sequence[Block]], plan: BenchPlan
) -> dict[str, tuple[Figures, ...]]:
    out: dict[str, list[Figures]] = {}
    for group in groups:
        for name, blocks in split_categories(group).items():
            out.setdefault(name, []).append(compute_figures(blocks, plan.goal))
    return {name: tuple(figures) for name, figures in sorted(out.items())}


def find_notes(figures: Sequence[Figures]) -> list[str]:
    notes = []
    for f in figures:
        place = f"{f.setting} at {f.load}"
        if f.failed:
            messages = "; ".join(f"{count} x {text}" for text, count in f.errors.items())
            notes.append(f"{place}: {f.failed} requests failed: {messages}")
        if f.bunched:
            notes.append(
                f"{place}: the chunks of {f.bunched} of {f.requests} answers came together, after "
                "a stall of the client or the network: they have no speed per user, in any "
                "setting, and make mean TPOT and ITL too low"
            )
        if f.requests and f.output_tokens == 0:
            notes.append(f"{place}: no usage in the answers, so there is no TPOT")
        if f.recomputed_tokens:
            share = 100 * f.recomputed_tokens / max(1, f.prompt_tokens)
            notes.append(
                f"{place}: because of the draft, {f.recomputed_tokens} cached prompt tokens were "
                f"computed again ({share:.0f} % of the prompts); TTFT and throughput above "
                "include that"
            )
        if f.acceptance and f.acceptance.source == "counters":
            notes.append(
                f"{place}: acceptance is from the server's counters and includes other traffic"
            )
    return list(dict.fromkeys(notes))
