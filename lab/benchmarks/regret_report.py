"""Plots of a run of ``lab.benchmarks.regret_engine --out FILE.json``: every lane over time.

    python -m eaglegate.lab.benchmarks.regret_report FILE.json --out FILE.html

Per phase: tokens per second of each lane in tenths of its blocks, and, of the planner, the depth
and the tokens per request of each step. Nothing to install, nothing to fetch.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from eaglegate.lab.measure.charts import Line, Point, draw_lines
from eaglegate.lab.measure.report import Page

PARTS = 10
SHOWN = ("none", "K=0", "K=7", "right", "auto")
Row = dict[str, Any]


def draw_rates(phase: str, blocks: Sequence[Row], lanes: Iterable[str]) -> str:
    lines = [
        Line(lane, list(find_rates([one for one in blocks if one["lane"] == lane])))
        for lane in lanes
    ]
    return draw_lines(f"{phase}: tokens per second", lines, "tenth of the block", "tokens/s")


def find_rates(blocks: Sequence[Row]) -> Iterable[Point]:
    """Tokens per CPU second in each tenth of the blocks, the mean over blocks."""
    for part in range(PARTS):
        rates = []
        for block in blocks:
            length = block["wall_s"] / PARTS
            inside = (n for at, n in block["arrivals"] if part <= at / length < part + 1)
            rates.append(sum(inside) * PARTS / block["seconds"])
        if rates:
            yield Point(part + 1, fmean(rates))


def draw_depths(phase: str, block: Row) -> str:
    """Draw the depths of one block: ten points, each the mean of a tenth of its steps."""
    steps = block["planner"]["recent"]
    size = max(1, len(steps) // PARTS)
    depths, tokens = [], []
    for at in range(0, size * PARTS, size):
        part = steps[at : at + size]
        if part:
            depths.append(Point(at, fmean(depth for *_, depth, _ in part)))
            tokens.append(Point(at, fmean(made / max(1, batch) for _, made, batch, *_ in part)))
    lines = [Line("depth", depths), Line("tokens per request", tokens)]
    return draw_lines(f"{phase}: the planner's steps", lines, "step", "")


def make_page(blocks: Sequence[Row], command: str) -> str:
    page = Page("Depth: fixed, none and auto")
    rows, charts = [], []
    lanes = list(dict.fromkeys(block["lane"] for block in blocks))
    for phase in dict.fromkeys(block["phase"] for block in blocks):
        mine = [block for block in blocks if block["phase"] == phase]
        rates = {
            lane: sum(b["tokens"] for b in mine if b["lane"] == lane)
            / sum(b["seconds"] for b in mine if b["lane"] == lane)
            for lane in lanes
        }
        rows.append([phase, *(f"{rates[lane] / rates['none']:.2f}" for lane in lanes)])
        charts.append(draw_rates(phase, mine, [lane for lane in lanes if lane in SHOWN]))
        charts.append(draw_depths(phase, next(b for b in mine if b["lane"] == "auto")))
    page.add_heading("Tokens per second over an engine without a draft")
    page.add_table(["phase", *lanes], rows)
    page.add_heading("Over time")
    page.add_charts(charts)
    page.add_run({"command": command})
    return page.render()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    blocks = json.loads(options.file.read_text())
    name = "eaglegate.lab.benchmarks.regret_report"
    command = f"python -m {name} {options.file.name} --out {options.out.name}"
    options.out.write_text(make_page(blocks, command))


if __name__ == "__main__":
    main()
