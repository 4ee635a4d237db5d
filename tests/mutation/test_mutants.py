"""The faults that mutation testing makes: each one changes something, and only one thing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("target", TARGETS)
def test_targets_and_their_tests_are_there(target):
    paths = (path.split("::")[0] for path in (target, *TARGETS[target]))
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert not missing


@pytest.mark.parametrize("target", TARGETS)
def test_mutants_compile_and_have_names_of_their_own(target):
    source = (ROOT / target).read_text(encoding="utf-8")
    mutants = list(mutants_of(source))
    assert len({mutant.name for mutant in mutants}) == len(mutants) > 10
    original = ast.unparse(ast.parse(source))
    for mutant in mutants[::10]:
        compile(mutant.tree(), target, "exec")
        assert ast.unparse(mutant.tree()) != original
