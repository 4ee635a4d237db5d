"""The budget of lines of Python by top folder.

Raise a number only in a commit whose subject says so. Lower it when lines have gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .tree import ROOMS, Tree

LINES = {
    "server": 21_400,
    "engine": 23_720,
    "observability": 4_540,
    "features": 12_280,
    "text": 13_430,
    "lab": 14_490,
    "src": 100,
    "tests": 69_850,
    "scripts": 2_110,
    "deploy": 1_150,
    "docs": 200,
    ".ci": 100,
    "requirements": 10,
}
"""Most lines of each folder: ``git ls-files 'FOLDER/*.py' | xargs cat | wc -l``."""
PRODUCT = (*ROOMS, "src")


def count_lines(tree: Tree) -> Counter[str]:
    counts = Counter[str]()
    for module in tree.modules.values():
        counts[module.room] += module.source.count("\n")
    return counts


def check_budget(tree: Tree) -> Iterator[str]:
    for folder, lines in sorted(count_lines(tree).items()):
        if lines > LINES.get(folder, 0):
            yield f"{folder}/: {lines:,} lines, and {LINES.get(folder, 0):,} in its budget"


def describe(tree: Tree) -> str:
    counts = count_lines(tree)
    rows = [(folder, counts[folder], budget) for folder, budget in LINES.items()]
    product = (
        "product",
        sum(counts[folder] for folder in PRODUCT),
        sum(LINES[folder] for folder in PRODUCT),
    )
    return "\n".join(
        f"{name:14}{lines:>8,} lines of {budget:>8,}" for name, lines, budget in [product, *rows]
    )


RULES = (check_budget,)
