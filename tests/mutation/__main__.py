"""Mutation testing of the modules that guard isolation, billing, loss and duplication.

    python -m tests.mutation [--only PART] [--jobs N] [--sample N] [--all] [--list]

Each mutant is one small fault (tests/mutation/mutants.py). It is killed when a test of its module
fails, survives otherwise. A survivor that changes nothing a test could see is named with its reason
in tests/mutation/explained.yaml, and run only with --all. Exit status 1 when less than 95 % are
killed or explained. A mutant in a function runs in a fork of one collected session
(tests/mutation/session.py), one outside functions in a fork that imports the changed module. No
file is written.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.abc
import importlib.machinery
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from tests.mutation.forks import call_in_fork, run_forks
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.targets import TARGETS

ROOT = Path(__file__).parents[2]
EXPLAINED = Path(__file__).parent / "explained.yaml"
AIM = 0.95
PRELOADED = (
    "_hypothesis_pytestplugin", "_pytest.assertion.rewrite", "coverage", "fastapi.openapi.utils",
    "httptools", "httpx", "hypothesis.stateful", "jsonschema", "numpy", "orjson",
    "prometheus_client", "pydantic", "pytest", "pytest_asyncio", "pytest_timeout",
    "sqlalchemy.dialects.sqlite", "sqlalchemy.orm", "starlette.applications", "tokenizers",
    "uvicorn.protocols.http.auto", "uvloop", "yaml",
)  # fmt: skip
PYTEST = (
    "-q", "-x", "-s", "-m", "not slow", "--no-header", "--no-summary", "--tb=no",
    "-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin", "-p", "pytest_timeout",
    "-p", "_hypothesis_pytestplugin", "--hypothesis-seed=0", "--timeout=0", "-k", "not vllm",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
"""Tests with vLLM's own renderer are left out: it is loaded in every fork, and the clock runs."""
Mutants = Mapping[str, Sequence[Mutant]]


class Swap(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from a changed tree."""

    def __init__(self, target: str, tree: ast.Module) -> None:
        self._name = "eaglegate." + target.removesuffix(".py").replace("/", ".")
        self._path = str(ROOT / "src" / "eaglegate" / target)
        self._tree = tree

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        if name != self._name:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=self._path)

    def exec_module(self, module: object) -> None:
        exec(compile(self._tree, self._path, "exec", dont_inherit=True), vars(module))


class FastestFirst:
    """A pytest plugin: runs only these tests, in this order, each for so long at most."""

    def __init__(self, limits: Mapping[str, float]) -> None:
        self._limits = limits

    def pytest_collection_modifyitems(self, items: list) -> None:
        order = list(self._limits)
        items[:] = [item for item in items if item.nodeid in self._limits]
        items.sort(key=lambda item: order.index(item.nodeid))

    def pytest_runtest_protocol(self, item: object) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, self._limits[item.nodeid])


def load() -> None:
    """Import once, for all forks, the modules that no mutant changes."""
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name in PRELOADED:
        importlib.import_module(name)
    from hypothesis import HealthCheck, Phase, settings

    phases = (Phase.explicit, Phase.generate)
    slow = (HealthCheck.too_slow, HealthCheck.differing_executors)
    settings.register_profile("mutation", database=None, phases=phases, suppress_health_check=slow)
    settings.load_profile("mutation")


def run_session(mutants: Mutants, jobs: int) -> tuple[object, list]:
    """The survey, and what became of the mutants in functions."""
    import pytest

    from tests.mutation.session import MutationSession

    tests = sorted({test for target in mutants for test in TARGETS[target]})
    session = MutationSession(mutants, is_test_of, jobs)
    pytest.main([*PYTEST, *tests], plugins=[session])
    return session.survey, session.outcomes


def is_test_of(target: str, test: str) -> bool:
    return any(test.startswith(path) for path in TARGETS[target])


def run_imported(survey: object, outcomes: Sequence, jobs: int) -> list:
    """The mutants that no swap of a function's code can make: constants, defaults, class bodies."""
    from tests.mutation.session import NOT_SWAPPED, Outcome

    done = [outcome for outcome in outcomes if outcome.status != NOT_SWAPPED]

    def works() -> Iterator[tuple[Callable[[], int], Callable[[int], None]]]:
        for outcome in outcomes:
            if outcome.status != NOT_SWAPPED:
                continue
            target, mutant = outcome.target, outcome.mutant
            tests = [test for test in survey.tests_of(target) if is_test_of(target, test)]
            limits = {test: 30 + 10 * survey.seconds[test] for test in tests}

            def end(
                status: int,
                target: str = target,
                mutant: Mutant = mutant,
                num_tests: int = len(tests),
            ) -> None:
                done.append(Outcome(target, mutant, status, num_tests))

            yield lambda t=target, m=mutant, limits=limits: run_changed(t, m, limits), end

    run_forks(works(), jobs, 900)
    return done


def run_changed(target: str, mutant: Mutant, limits: Mapping[str, float]) -> int:
    sys.meta_path.insert(0, Swap(target, mutant.tree()))
    import pytest

    files = sorted({test.split("::")[0] for test in limits})
    return int(pytest.main([*PYTEST, *files], plugins=[FastestFirst(limits)])) if files else 0


def report(target: str, outcomes: Sequence, explained: Mapping[str, str]) -> None:
    survivors = [outcome for outcome in outcomes if not outcome.killed]
    killed = len(outcomes) - len(survivors)
    hung = sum(outcome.status < 0 for outcome in outcomes)
    unexplained = [outcome for outcome in survivors if outcome.mutant.name not in explained]
    print(
        f"{target}: {killed} killed ({hung} by the clock), {len(explained)} explained,"
        f" {len(unexplained)} survive"
    )
    for outcome in unexplained:
        print(f"  line {outcome.mutant.line} {outcome.mutant.name}  [{outcome.tests} tests run it]")
    for outcome in outcomes:
        if outcome.killed and outcome.mutant.name in explained:
            print(f"  explained, yet killed: {outcome.mutant.name}")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="targets whose path has this part")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--sample", type=int, default=0, help="so many mutants a module; 0: all")
    parser.add_argument("--all", action="store_true", help="run those that are explained, too")
    parser.add_argument("--list", action="store_true", help="name the mutants, run nothing")
    args = parser.parse_args(argv)
    mutants = {t: choose_mutants(t, args.sample) for t in TARGETS if args.only in t}
    if args.list:
        for target, each in mutants.items():
            print(*(f"{target}:{mutant.line} {mutant.name}" for mutant in each), sep="\n")
        return 0
    explained = read_explained(mutants)
    if not args.all:
        mutants = {t: [m for m in ms if m.name not in explained[t]] for t, ms in mutants.items()}
    load()
    started = time.monotonic()
    survey, outcomes = call_in_fork(lambda: run_session(mutants, args.jobs))
    if survey is None or survey.failed:
        print("tests fail without any mutant:", *(survey.failed if survey else ()), sep="\n  ")
        return 1
    outcomes = run_imported(survey, outcomes, args.jobs)
    print(f"{time.monotonic() - started:.0f} s")
    return conclude(explained, outcomes)


def choose_mutants(target: str, sample: int) -> list[Mutant]:
    mutants = list(mutants_of((ROOT / target).read_text(encoding="utf-8")))
    return random.Random(0).sample(mutants, sample) if 0 < sample < len(mutants) else mutants


def read_explained(mutants: Mutants) -> dict[str, dict[str, str]]:
    """The reasons for survivors that are among the mutants; says which are of none."""
    reasons = yaml.safe_load(EXPLAINED.read_text(encoding="utf-8"))
    explained = {}
    for target, each in mutants.items():
        given = reasons.get(target) or {}
        names = {mutant.name for mutant in each}
        explained[target] = {name: why for name, why in given.items() if name in names}
        gone = given.keys() - {mutant.name for mutant in choose_mutants(target, 0)}
        print(*(f"{target}: no mutant is called {name!r}" for name in sorted(gone)), sep="\n")
    return explained


def conclude(explained: Mapping[str, Mapping[str, str]], outcomes: Sequence) -> int:
    for target, reasons in explained.items():
        those = [outcome for outcome in outcomes if outcome.target == target]
        report(target, sorted(those, key=lambda outcome: outcome.mutant.line), reasons)
    survive = [o for o in outcomes if not o.killed and o.mutant.name not in explained[o.target]]
    num_explained = sum(map(len, explained.values()))
    names = {(o.target, o.mutant.name) for o in outcomes if o.mutant.name in explained[o.target]}
    num_all = len(outcomes) + num_explained - len(names)
    share = (num_all - len(survive)) / max(1, num_all)
    print(f"{num_all} mutants: {share:.1%} killed or explained, {len(survive)} survive")
    return 0 if share >= AIM else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
