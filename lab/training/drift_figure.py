"""Figure of attention drift, with one column per set and one line per draft."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

SHOWN = (
    ("fed-back norm", "norm relative to depth 0", True),
    ("attention on own tokens", "attention on own tokens", False),
    ("attention on prompt", "attention on prompt", False),
    ("conditional acceptance", "conditional acceptance", False),
)
"""Measure, axis label, and True to divide by the first value."""


def draw(curves: Mapping[str, Mapping[str, Mapping[str, list[float]]]], path: Path) -> None:
    groups = list(next(iter(curves.values())))
    figure, axes = pyplot.subplots(
        len(SHOWN),
        len(groups),
        figsize=(3.4 * len(groups), 2.2 * len(SHOWN)),
        sharex=True,
        sharey="row",
        squeeze=False,
    )
    for row, (name, label, relative) in zip(axes, SHOWN, strict=True):
        row[0].set_ylabel(label, fontsize=8)
        for axis, group in zip(row, groups, strict=True):
            for draft, curves_by_group in curves.items():
                curve = curves_by_group[group][name]
                values = [value / curve[0] for value in curve] if relative else curve
                axis.plot(range(len(values)), values, marker="o", markersize=3, label=draft)
            axis.grid(alpha=0.3)
    for axis, group in zip(axes[0], groups, strict=True):
        axis.set_title(f"{group} prompts", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("speculation depth", fontsize=8)
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
