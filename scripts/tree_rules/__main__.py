"""Check every rule of the tree: ``python -m scripts.tree_rules``."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from . import budget, dependencies, glossary, house, layers, pages, readers
from .tree import Rule, Tree

SUBJECTS = (layers, house, readers, dependencies, glossary, pages, budget)
RULES: tuple[Rule, ...] = tuple(rule for subject in SUBJECTS for rule in subject.RULES)


def find_faults(tree: Tree) -> list[str]:
    return [fault for rule in RULES for fault in rule(tree)]


def main(root: Path) -> int:
    """Print the lines by folder and every fault; 1 with a fault."""
    tree = Tree(root)
    faults = find_faults(tree)
    print(budget.describe(tree))
    print(*faults, sep="\n", end="\n" if faults else "", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    gc.disable()  # syntax trees are many small objects that all stay
    sys.exit(main(Path(__file__).parents[2]))
