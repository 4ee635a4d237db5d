"""Mutation testing of the modules that guard isolation, billing, loss and duplication.

    python -m tests.mutation [--only PART] [--jobs N] [--sample N] [--list]

Each mutant is one small fault (tests/mutation/mutants.py). It is killed when a test of its module
fails, survives otherwise. A survivor that changes nothing a test could see is named with its reason
in tests/mutation/explained.yaml. Exit status 1 when less than 95 % are killed or one survives
without a reason. Heavy libraries are loaded once and every mutant runs in a fork, with the changed
tree put in by an import hook: no file is written.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.targets import TARGETS

ROOT = Path(__file__).parents[2]
EXPLAINED = Path(__file__).parent / "explained.yaml"
AIM = 0.95
PRELOADED = (
    "_hypothesis_pytestplugin", "_pytest.assertion.rewrite", "fastapi.openapi.utils", "httptools",
    "httpx", "hypothesis", "jsonschema", "numpy", "orjson", "prometheus_client", "pydantic",
    "pytest", "pytest_asyncio", "pytest_timeout", "sqlalchemy.dialects.sqlite", "sqlalchemy.orm",
    "starlette.applications", "tokenizers", "uvicorn.protocols.http.auto", "uvloop", "yaml",
)  # fmt: skip
PYTEST = (
    "-q", "-x", "-m", "not slow", "--no-header", "--tb=no", "-p", "no:cacheprovider",
    "-p", "pytest_asyncio.plugin", "-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin",
    "--hypothesis-seed=0", "--timeout=0",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    target: str
    mutant: Mutant
    killed: bool
    reason: str | None
    """Why it may survive; None when nobody has said."""


class Swap(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from a changed tree."""

    def __init__(self, target: str, tree: ast.Module) -> None:
        self._name = target.removesuffix(".py").replace("/", ".")
        self._path = str(ROOT / target)
        self._tree = tree

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        if name != self._name:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=self._path)

    def exec_module(self, module: object) -> None:
        exec(compile(self._tree, self._path, "exec"), vars(module))


def run_tests(target: str, tree: ast.Module, tests: Sequence[str], limit_s: float) -> bool:
    """In a fork: True when the tests pass. One that hangs is ended, and has failed."""
    child = os.fork()
    if child == 0:
        _run_in_child(target, tree, tests)
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _run_in_child(target: str, tree: ast.Module, tests: Sequence[str]) -> None:
    os.setsid()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.meta_path.insert(0, Swap(target, tree))  # type: ignore[arg-type]
    import pytest

    try:
        status = int(pytest.main([*PYTEST, *tests]))
    except BaseException:
        status = 1
    os._exit(status)


def judge(target: str, args: argparse.Namespace, explained: dict[str, str]) -> Iterator[Verdict]:
    source = (ROOT / target).read_text(encoding="utf-8")
    tests = TARGETS[target]
    started = time.monotonic()
    if not run_tests(target, ast.parse(source), tests, 600):
        raise SystemExit(f"{target}: its tests fail without any mutant")
    limit_s = 15 + 4 * args.jobs * (time.monotonic() - started)
    mutants = list(mutants_of(source))
    if args.sample and args.sample < len(mutants):
        mutants = random.Random(0).sample(mutants, args.sample)
    with ThreadPoolExecutor(args.jobs) as pool:
        passed = pool.map(lambda m: run_tests(target, m.tree(), tests, limit_s), mutants)
        for mutant, survived in zip(mutants, passed, strict=True):
            yield Verdict(target, mutant, not survived, explained.get(mutant.name))


def report(target: str, verdicts: Sequence[Verdict], seconds: float) -> None:
    killed = sum(verdict.killed for verdict in verdicts)
    print(f"{target}: {killed} of {len(verdicts)} killed in {seconds:.0f} s", flush=True)
    for verdict in verdicts:
        if not verdict.killed:
            said = verdict.reason or "NOT EXPLAINED"
            print(f"  {target}:{verdict.mutant.line} {verdict.mutant.name}  [{said}]", flush=True)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="targets whose path has this part")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--sample", type=int, default=0, help="so many mutants a module; 0: all")
    parser.add_argument("--list", action="store_true", help="name the mutants, run nothing")
    args = parser.parse_args(argv)
    targets = [target for target in TARGETS if args.only in target]
    if args.list:
        for target in targets:
            for mutant in mutants_of((ROOT / target).read_text(encoding="utf-8")):
                print(f"{target}:{mutant.line} {mutant.name}")
        return 0
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name in PRELOADED:
        importlib.import_module(name)
    explained = yaml.safe_load(EXPLAINED.read_text(encoding="utf-8")) or {}
    verdicts: list[Verdict] = []
    for target in targets:
        started = time.monotonic()
        judged = list(judge(target, args, explained.get(target) or {}))
        report(target, judged, time.monotonic() - started)
        verdicts += judged
    return conclude(verdicts)


def conclude(verdicts: Sequence[Verdict]) -> int:
    killed = sum(verdict.killed for verdict in verdicts)
    unexplained = sum(not verdict.killed and verdict.reason is None for verdict in verdicts)
    share = killed / max(1, len(verdicts))
    print(f"{killed} of {len(verdicts)} mutants killed ({share:.1%}), {unexplained} unexplained")
    return 0 if share >= AIM and not unexplained else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
