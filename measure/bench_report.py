"""The report of a bench: figures, comparisons with the baseline, categories; JSON, table, page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measure.bench import BenchPlan
from measure.charts import Line, Point, draw_lines
from measure.figures import (
    AcceptanceFigures,
    Block,
    Figures,
    compute_figures,
    split_categories,
    sum_decoding,
)
from measure.report import (
    Page,
    format_estimate,
    format_number,
    format_ratio,
    format_share,
    format_table,
    write_json,
)
from measure.statistics import Estimate, Finding, Summary, Verdict, judge_ratio, paired_ratio

MARGIN = 0.02


@dataclass(frozen=True, slots=True)
class Comparison:
    """A setting over the baseline at one load point; ratios are paired by repeat."""

    setting: str
    baseline: str
    load: str
    user_speed: Estimate | None
    throughput: Estimate | None
    ttft: Estimate | None
    finding: Finding
    """On the speed per user."""


@dataclass(frozen=True, slots=True)
class BenchReport:
    run: dict[str, Any]
    plan: dict[str, Any]
    figures: tuple[Figures, ...]
    comparisons: tuple[Comparison, ...]
    categories: dict[str, tuple[Figures, ...]]
    notes: tuple[str, ...]

    def write(self, folder: Path) -> None:
        write_json(folder / "report.json", asdict(self))
        (folder / "report.html").write_text(self.render_page(), encoding="utf-8")

    def render_text(self) -> str:
        lines = [f"$ {self.run['command']}", "", format_table(*self.rows())]
        lines += ["", format_table(*self.latency_rows())]
        if any(f.acceptance for f in self.figures):
            lines += ["", format_table(*self.acceptance_rows())]
        if len(self.categories) > 1:
            lines += ["", format_table(*self.category_rows())]
        lines += ["", *(self._format_finding(found) for found in self.comparisons)]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    @staticmethod
    def _format_finding(found: Comparison) -> str:
        where = f"{found.setting} at {found.load}"
        return f"{where}: {found.finding.verdict} ({found.finding.reason})"

    def _compare(self, setting: str, load: str) -> Comparison | None:
        return next((c for c in self.comparisons if (c.setting, c.load) == (setting, load)), None)

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """The published table."""
        head = ["load", "setting", "tokens/s per user", "over baseline"]
        head += ["tokens/s total", "over baseline", "goodput/s", "requests", "failed"]
        rows = []
        for f in self.figures:
            against = self._compare(f.setting, f.load)
            rows.append([
                f.load, f.setting, format_estimate(f.user_speed),
                format_ratio(against.user_speed) if against else "",
                format_estimate(f.throughput),
                format_ratio(against.throughput) if against else "",
                format_number(f.goodput), str(f.requests), str(f.failed),
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
        page = Page("eaglegate bench", self.run["command"])
        page.add_list([self._format_finding(found) for found in self.comparisons])
        page.add_list([f"Note: {note}" for note in self.notes])
        page.add_heading("Throughput")
        page.add_table(*self.rows())
        page.add_charts(self._throughput_charts())
        page.add_heading("Latency, in milliseconds")
        page.add_table(*self.latency_rows())
        page.add_charts(self._latency_charts())
        page.add_heading("Acceptance")
        page.add_table(*self.acceptance_rows())
        page.add_charts([self._acceptance_chart()])
        if len(self.categories) > 1:
            page.add_heading("By category")
            page.add_table(*self.category_rows())
        page.add_heading("Run", source=False)
        page.add_list([f"{name}: {value}" for name, value in (self.run | self.plan).items()])
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
        def at(name: str, part: str) -> Callable[[Figures], Point | None]:
            def read(f: Figures) -> Point | None:
                summary = getattr(f, name)
                return None if summary is None else Point(self._x(f), getattr(summary, part))

            return read

        axis = self.plan["axis"]
        return [
            draw_lines(f"{title} {part}", self._lines(at(name, part)), axis, "ms", log_x=True)
            for title, name in (("TTFT", "ttft"), ("TPOT", "tpot"))
            for part in ("median", "p99")
        ]

    def _acceptance_chart(self) -> str:
        lines = [
            Line(
                f"{f.setting} at {f.load}",
                [Point(at + 1, share) for at, share in enumerate(f.acceptance.per_position)],
            )
            for f in self.figures
            if f.acceptance is not None
        ]
        return draw_lines(
            "Accepted, of the drafts that reached the position", lines, "position", "share"
        )

    def _x(self, figures: Figures) -> float:
        return float(self.plan["x"][figures.load])


def _to_point(x: float, estimate: Estimate | None) -> Point | None:
    return None if estimate is None else Point(x, estimate.value, estimate.low, estimate.high)


def _format_summary(summary: Summary | None) -> list[str]:
    if summary is None:
        return ["", "", ""]
    return [format_number(value) for value in (summary.mean, summary.median, summary.p99)]


def _format_acceptance(found: AcceptanceFigures | None) -> list[str]:
    if found is None:
        return ["", "", "", ""]
    positions = ", ".join(f"{share:.2f}" for share in found.per_position)
    return [format_number(found.length), format_share(found.fallback), positions, found.source]


def make_report(plan: BenchPlan, blocks: Sequence[Block], run: dict[str, Any]) -> BenchReport:
    groups = [
        [b for b in blocks if (b.setting, b.load) == (setting.name, load.name)]
        for load in plan.loads
        for setting in plan.settings
    ]
    groups = [group for group in groups if group]
    figures = tuple(compute_figures(group, plan.goal) for group in groups)
    axis = "concurrency" if plan.loads[0].concurrency else "sessions per second"
    described: dict[str, Any] = {
        **plan.digest(),
        "sessions": len(plan.sessions),
        "axis": axis,
        "x": {load.name: load.x for load in plan.loads},
    }
    return BenchReport(
        run,
        described,
        figures,
        tuple(compare_settings(plan, blocks)),
        _compute_categories(groups, plan),
        tuple(find_notes(figures)),
    )


def _compute_categories(
    groups: Sequence[Sequence[Block]], plan: BenchPlan
) -> dict[str, tuple[Figures, ...]]:
    out: dict[str, list[Figures]] = {}
    for group in groups:
        for name, blocks in split_categories(group).items():
            out.setdefault(name, []).append(compute_figures(blocks, plan.goal))
    return {name: tuple(figures) for name, figures in sorted(out.items())}


def compare_settings(plan: BenchPlan, blocks: Sequence[Block]) -> list[Comparison]:
    if plan.baseline is None:
        return []
    found = {(block.setting, block.load, block.number): block for block in blocks}
    out = []
    for load in plan.loads:
        for setting in plan.settings[:-1]:
            pairs = [
                (base, other)
                for repeat in range(plan.repeats)
                if (base := found.get((plan.baseline.name, load.name, repeat)))
                and (other := found.get((setting.name, load.name, repeat)))
            ]
            speed = _pair(pairs, _mean_speed)
            out.append(
                Comparison(
                    setting.name,
                    plan.baseline.name,
                    load.name,
                    speed,
                    _pair(pairs, _throughput),
                    _pair(pairs, _mean_ttft),
                    judge_ratio(speed, lower_is_better=False, margin=MARGIN, unit="repeats"),
                )
            )
    return out


def _pair(pairs: Sequence[tuple[Block, Block]], value: Callable[[Block], float]) -> Estimate | None:
    both = [(value(base), value(other)) for base, other in pairs]
    whole = [(a, b) for a, b in both if a > 0 and b > 0]
    return paired_ratio([a for a, _ in whole], [b for _, b in whole])


def _mean_speed(block: Block) -> float:
    tokens, seconds = sum_decoding(block.completed)
    return tokens / seconds if seconds else 0.0


def _throughput(block: Block) -> float:
    tokens = sum(result.output_tokens for result in block.completed)
    return tokens / block.duration if block.duration else 0.0


def _mean_ttft(block: Block) -> float:
    times = [result.ttft for result in block.completed if result.ttft]
    return sum(times) / len(times) if times else 0.0


def find_notes(figures: Sequence[Figures]) -> list[str]:
    notes = []
    for f in figures:
        where = f"{f.setting} at {f.load}"
        if f.failed:
            said = "; ".join(f"{count} x {text}" for text, count in f.errors.items())
            notes.append(f"{where}: {f.failed} requests failed: {said}")
        if f.bunched:
            notes.append(
                f"{where}: the chunks of {f.bunched} of {f.requests} answers came together, after "
                "a stall of the client or the network: they have no speed per user, and make TPOT "
                "and ITL too low"
            )
        if f.requests and f.output_tokens == 0:
            notes.append(f"{where}: no usage in the answers, so there is no TPOT")
        if f.acceptance and f.acceptance.source == "counters":
            notes.append(
                f"{where}: acceptance is that of the server's counters, other traffic included"
            )
    return list(dict.fromkeys(notes))


def is_worse(comparisons: Sequence[Comparison]) -> bool:
    return any(found.finding.verdict is Verdict.WORSE for found in comparisons)
