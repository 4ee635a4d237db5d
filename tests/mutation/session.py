"""One pytest session for many mutants: tests are collected once, every mutant runs in a fork of it.

A survey first runs each test alone under coverage. A mutant then meets only those tests of its
target that run its line, the fastest first, until one fails.
"""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from _pytest.runner import runtestprotocol
from coverage import Coverage

from tests.mutation.forks import call_in_fork, run_forks, silence
from tests.mutation.mutants import Mutant

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "eaglegate"
"""The path by which modules are imported. It links to the folders of the tree."""
SURVIVED, KILLED, NOT_SWAPPED = 0, 1, 77
"""Exit statuses of a mutant's fork. Any other, or a signal, is a kill as well."""
GRACE_S = 5
FACTOR = 10
"""A test hangs when it takes longer than GRACE_S and FACTOR times what it took in the survey."""
LIMIT_S = 900
Definition = tuple[str, str, int]
"""A function's file, qualified name and first line."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The lines that each test ran, and the time it took."""

    seconds: Mapping[str, float]
    lines: Mapping[str, Mapping[int, frozenset[str]]]
    """The tests that run a line, by target and line."""
    failed: Sequence[str]

    def tests_of(self, target: str, lines: Iterable[int] | None = None) -> list[str]:
        """The tests that run any of these lines, or any line at all; the fastest first."""
        by_line = self.lines[target]
        wanted = by_line if lines is None else lines
        tests = {test for line in wanted for test in by_line.get(line, ())}
        return sorted(tests, key=lambda test: (self.seconds[test], test))


@dataclass(frozen=True, slots=True)
class Outcome:
    target: str
    mutant: Mutant
    status: int
    tests: int
    """Number of tests that run its line."""

    @property
    def killed(self) -> bool:
        return self.status != SURVIVED


class MutationSession:
    """A pytest plugin: in place of the tests it runs the survey, then the mutants."""

    def __init__(
        self,
        mutants: Mapping[str, Sequence[Mutant]],
        allowed: Callable[[str, str], bool],
        jobs: int,
    ) -> None:
        self._mutants = mutants
        self._allowed = allowed
        self._jobs = jobs
        self._functions: Mapping[Definition, list[FunctionType]] = {}
        self.survey: Survey | None = None
        self.outcomes: list[Outcome] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        self.survey = survey = call_in_fork(lambda: make_survey(items, self._mutants))
        if not survey.failed:
            print(f"{len(items)} tests in {sum(survey.seconds.values()):.0f} s", flush=True)
            self._functions = find_functions({str(PACKAGE / target) for target in self._mutants})
            gc.freeze()  # a collection in a fork would copy every page
            run_forks(self._works(items, survey), self._jobs, LIMIT_S)
        return True

    def _works(
        self, items: Mapping[str, pytest.Item], survey: Survey
    ) -> Iterator[tuple[Callable[[], int], Callable[[int], None]]]:
        for target, mutants in self._mutants.items():
            for mutant in mutants:
                tests = survey.tests_of(target, mutant.lines) if mutant.function else []
                chosen = [items[test] for test in tests if self._allowed(target, test)]
                limits = [GRACE_S + FACTOR * survey.seconds[item.nodeid] for item in chosen]

                def work(
                    target: str = target,
                    mutant: Mutant = mutant,
                    chosen: Sequence[pytest.Item] = tuple(chosen),
                    limits: Sequence[float] = tuple(limits),
                ) -> int:
                    if not self._swap_code(str(PACKAGE / target), mutant):
                        return NOT_SWAPPED
                    return run_until_failure(chosen, limits)

                def end(
                    status: int,
                    target: str = target,
                    mutant: Mutant = mutant,
                    num_tests: int = len(chosen),
                ) -> None:
                    self.outcomes.append(Outcome(target, mutant, status, num_tests))
                    if status == SURVIVED:
                        print(f"  survives: {target}:{mutant.line} {mutant.name}", flush=True)

                yield work, end

    def _swap_code(self, path: str, mutant: Mutant) -> bool:
        """Gives every function made from the mutant's definition the changed code."""
        if mutant.function is None:
            return False
        definition = (path, *mutant.function)
        functions = self._functions.get(definition, [])
        module = compile(mutant.tree(), path, "exec", dont_inherit=True)
        changed = next((c for c in _codes(module) if _definition(c) == definition), None)
        if changed is None or not functions:
            return False
        try:
            for function in functions:
                function.__code__ = changed
        except ValueError:  # other closures than before
            return False
        return True


def make_survey(items: Mapping[str, pytest.Item], targets: Iterable[str]) -> Survey:
    """Runs every test once, under coverage of the targets."""
    silence()
    paths = {target: str(ROOT / target) for target in targets}
    coverage = Coverage(data_file=None, config_file=False, include=list(paths.values()))
    seconds: dict[str, float] = {}
    failed: list[str] = []
    coverage.start()
    for item, following in _with_next(list(items.values())):
        coverage.switch_context(item.nodeid)
        started = time.monotonic()
        if not passes(item, following):
            failed.append(item.nodeid)
        seconds[item.nodeid] = time.monotonic() - started
    coverage.stop()
    data = coverage.get_data()
    lines = {
        target: {
            line: frozenset(contexts) & seconds.keys()
            for line, contexts in data.contexts_by_lineno(path).items()
        }
        for target, path in paths.items()
    }
    return Survey(seconds, lines, failed)


def passes(item: pytest.Item, following: pytest.Item | None) -> bool:
    reports = runtestprotocol(item, log=False, nextitem=following)
    return not any(report.failed for report in reports)


def run_until_failure(items: Sequence[pytest.Item], limits: Sequence[float]) -> int:
    """The alarm has no handler: it ends a test that hangs, and with it the fork."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for (item, following), limit_s in zip(_with_next(items), limits, strict=True):
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        if not passes(item, following):
            return KILLED
    return SURVIVED


def _with_next(
    items: Sequence[pytest.Item],
) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    return zip(items, [*items[1:], None], strict=True) if items else iter(())


def find_functions(paths: Collection[str]) -> dict[Definition, list[FunctionType]]:
    """All functions defined in these files, by their definition."""
    found: dict[Definition, list[FunctionType]] = {}
    gc.unfreeze()  # tests/conftest.py: what is frozen is not listed
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename in paths:
            found.setdefault(_definition(thing.__code__), []).append(thing)
    return found


def _definition(code: CodeType) -> Definition:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
