"""The faults that mutation testing makes: each one changes something, and only one thing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.mutation.mutants import mutants_of
from tests.mutation.targets import TARGETS

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
SOURCE = '''
"""Text."""

def more(level, most=3):
    """More text."""
    if level < most and not level == 2:
        log(f"at {level + 1}")
        level += 1
    return min(level, most)
'''
EXPECTED = {
    "more: 3 -> 4",
    "more: level < most -> level <= most",
    "more: level < most and (not level == 2) -> level < most or not level == 2",
    "more: not level == 2 -> level == 2",
    "more: level == 2 -> level != 2",
    "more: 2 -> 3",
    "more: if level < most and (not level == 2): -> if True:",
    "more: if level < most and (not level == 2): -> if False:",
    "more: log(f'at {level + 1}') -> (left out)",
    "more: level += 1 -> (left out)",
    "more: level += 1 -> level -= 1",
    "more: 1 -> 2",
    "more: return min(level, most) -> return None",
    "more: min -> max",
}


def test_every_place_is_changed_once():
    names = {mutant.name for mutant in mutants_of(SOURCE)}
    assert names == EXPECTED


EXPLAINED = yaml.safe_load((Path(__file__).parent / "explained.yaml").read_text(encoding="utf-8"))


def scopes(node: ast.AST, outer: str = "") -> Iterator[str]:
    """The dotted names of all functions and classes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield outer + child.name
            yield from scopes(child, f"{outer}{child.name}.")
        else:
            yield from scopes(child, outer)


def test_explanations_are_of_functions_that_exist():
    """An explanation that outlives its function would excuse a new mutant of the same name."""
    for target, reasons in EXPLAINED.items():
        assert target in TARGETS
        known = {"(module)", *scopes(ast.parse((ROOT / target).read_text(encoding="utf-8")))}
        assert not {name.partition(": ")[0] for name in reasons} - known, target


def test_targets_and_their_tests_are_there():
    paths = {path.split("::")[0] for target in TARGETS for path in (target, *TARGETS[target])}
    assert not [path for path in paths if not (ROOT / path).exists()]


@pytest.mark.parametrize("target", TARGETS)
def test_mutants_compile_and_have_names_of_their_own(target):
    source = (ROOT / target).read_text(encoding="utf-8")
    mutants = list(mutants_of(source))
    assert len({mutant.name for mutant in mutants}) == len(mutants) > 10
    original = ast.unparse(ast.parse(source))
    for mutant in mutants[::50]:
        tree = mutant.tree()
        compile(tree, target, "exec")
        assert ast.unparse(tree) != original
