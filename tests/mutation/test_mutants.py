"""The faults that mutation testing makes: each one changes something, and only one thing."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.mutation.__main__ import Swap
from tests.mutation.forks import call_in_fork
from tests.mutation.mutants import mutants_of
from tests.mutation.session import PACKAGE, find_functions
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


CLEANED = """
def answer(place):
    try:
        place.work()
        return 1
    except OSError:
        place.fail()
    finally:
        place.pay()
        if place:
            place.leave()
"""


def test_each_statement_of_a_finally_is_moved_out_of_it():
    moved = {m.name: m for m in mutants_of(CLEANED) if m.change == "out of finally"}
    assert set(moved) == {
        "answer: place.pay() -> (out of finally)",
        "answer: if place: -> (out of finally)",
    }
    tree = moved["answer: place.pay() -> (out of finally)"].tree()
    (tried,) = (node for node in ast.walk(tree) if isinstance(node, ast.Try))
    assert [ast.unparse(node) for node in tried.body][-1] == "place.pay()"
    assert [type(node) for node in tried.finalbody] == [ast.If]
    assert moved["answer: place.pay() -> (out of finally)"].lines == range(9, 10)


@pytest.mark.parametrize(("raises", "paid"), [(True, 0), (False, 1)])
def test_code_moved_out_of_a_finally_is_skipped_after_an_exception(raises, paid):
    source = "def f(raises, pay):\n    try:\n        raises()\n    finally:\n        pay()\n"
    (mutant,) = (m for m in mutants_of(source) if m.change == "out of finally")
    made: dict[str, Any] = {}
    exec(compile(mutant.tree(), "x", "exec"), made)
    calls: list[int] = []

    def work() -> None:
        if raises:
            raise OSError

    with suppress(OSError):
        made["f"](work, lambda: calls.append(1))
    assert len(calls) == paid


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


def test_a_mutant_takes_the_place_of_the_module_and_of_its_functions():
    target, name = "server/access/prompt_turns.py", "eaglegate.server.access.prompt_turns"
    module = importlib.import_module(name)
    names = [function for _, function, _ in find_functions({str(PACKAGE / target)})]
    assert "PromptTurns._fits" in names
    mutants = mutants_of((ROOT / target).read_text(encoding="utf-8"))
    (mutant,) = (mutant for mutant in mutants if mutant.name == "(module): 10.0 -> 11.0")

    def read_changed() -> float:
        del sys.modules[name]
        sys.meta_path.insert(0, Swap(target, mutant.tree()))
        return importlib.import_module(name).LONGEST_S

    assert (module.LONGEST_S, call_in_fork(read_changed)) == (10.0, 11.0)


@pytest.mark.parametrize("target", TARGETS)
def test_mutants_compile_and_have_names_of_their_own(target):
    source = (ROOT / target).read_text(encoding="utf-8")
    mutants = list(mutants_of(source))
    assert len({mutant.name for mutant in mutants}) == len(mutants) > 10
    original = ast.unparse(ast.parse(source))
    for mutant in mutants[::10]:
        compile(mutant.tree(), target, "exec")
        assert ast.unparse(mutant.tree()) != original
