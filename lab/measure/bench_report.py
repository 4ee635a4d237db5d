"""Report of a bench: conclusion, figures and categories, as JSON, text and an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from eaglegate.lab.measure.bench import BenchPlan, LoadPoint
from eaglegate.lab.measure.bench_compare import (
    COST_TABLE,
    Comparison,
    compare_settings,
    conclude,
    conclude_depths,
    describe_missing,
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
    Report,
    Section,
    format_estimate,
    format_number,
    format_ratio,
    write_json,
)
from eaglegate.lab.measure.statistics import Summary


@dataclass(frozen=True)
class BenchReport(Report):
    TITLE: ClassVar[str] = "eaglegate bench"
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

    def conclude(self) -> Conclusion | None:
        return self.conclusion

    def describe_run(self) -> dict[str, Any]:
        return self.run | self.plan

    def list_notes(self) -> list[str]:
        return [f"note: {note}" for note in self.notes]

    def write(self, folder: Path) -> list[Path]:
        files = super().write(folder)
        if self.step_costs is not None:
            files.append(folder / COST_TABLE)
            write_json(files[-1], self.step_costs)
        return files

    def make_sections(self) -> Iterator[Section]:
        yield self._section_of_throughput()
        yield self._section_of_latency()
        if any(f.acceptance for f in self.figures):
            yield self._section_of_acceptance()
        if len(self.categories) > 1:
            yield self._section_of_categories()

    def _compare(self, f: Figures) -> list[str]:
        """Return a setting's speed per user and throughput over the baseline; empty for the
        baseline.
        """
        for c in self.comparisons:
            if (c.setting, c.load) == (f.setting, f.load):
                placeholder = describe_missing(c.repeats)
                return [format_ratio(r) or placeholder for r in (c.user_speed, c.throughput)]
        return ["", ""]

    def _section_of_throughput(self) -> Section:
        """Return the published table; with ``--depths``, a row per depth, smallest first."""
        depths = self.plan.get("depths")
        over = "over depth 0" if depths else "over baseline"
        head = ["load", "depth" if depths else "setting"]
        head += ["tokens/s per user", over, "tokens/s total", over]
        head += ["TPOT ms", "acceptance length", "fallback"] if depths else ["goodput/s"]
        rows = []
        for f in self._sort_by_depth() if depths else self.figures:
            speed, total = self._compare(f)
            row = [f.load, f.setting.removeprefix("depth ") if depths else f.setting]
            row += [format_estimate(f.user_speed), speed, format_estimate(f.throughput), total]
            if depths:
                row += [format_number(_pooled_tpot_ms(f)), *_format_acceptance(f.acceptance)[:2]]
            else:
                row.append(format_number(f.goodput))
            rows.append([*row, str(f.requests), str(f.failed)])
        return Section("Throughput", [*head, "requests", "failed"], rows)

    def _sort_by_depth(self) -> list[Figures]:
        loads = list(dict.fromkeys(f.load for f in self.figures))
        names = [name_depth(depth) for depth in self.plan["depths"]]
        return sorted(self.figures, key=lambda f: (loads.index(f.load), names.index(f.setting)))

    def _section_of_latency(self) -> Section:
        head = ["load", "setting"]
        for name in ("TTFT", "TPOT", "ITL", "E2EL"):
            head += [f"{name} mean", "p50", "p99"]
        rows = [
            [
                f.load,
                f.setting,
                *(
                    cell
                    for item in (f.ttft, f.tpot, f.itl, f.e2el)
                    for cell in _format_summary(item)
                ),
            ]
            for f in self.figures
        ]
        return Section("Latency, in milliseconds", head, rows)

    def _section_of_acceptance(self) -> Section:
        head = ["load", "setting", "acceptance length", "fallback", "at position 1, 2, ...", "from"]
        rows = [
            [f.load, f.setting, *_format_acceptance(f.acceptance)]
            for f in self.figures
            if f.acceptance is not None
        ]
        return Section("Acceptance", head, rows)

    def _section_of_categories(self) -> Section:
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
        return Section("By category", head, rows)


def _format_summary(summary: Summary | None) -> list[str]:
    if summary is None:
        return ["", "", ""]
    return [format_number(value) for value in (summary.mean, summary.median, summary.p99)]


def _format_acceptance(acceptance: AcceptanceFigures | None) -> list[str]:
    if acceptance is None:
        return ["", "", "", ""]
    fallback = "" if acceptance.fallback is None else f"{acceptance.fallback:.1%}"
    positions = ", ".join(f"{share:.2f}" for share in acceptance.per_position)
    return [format_number(acceptance.length), fallback, positions, acceptance.source]


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
    plan_description: dict[str, Any] = {
        **plan.digest(),
        "sessions": len(plan.sessions),
        "depths": list(plan.depths),
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
