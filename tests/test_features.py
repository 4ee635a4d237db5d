"""Each folder of ``features/``, and ``lab/``, can be removed: the rest passes tests and answers."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from scripts.tree_rules.tree import ROOMS
from tests.conftest import ROOT, RunningGateway
from tests.forks import fork_python
from tests.workers import GATEWAY, WorkerProcess, scripted_worker

pytestmark = pytest.mark.slow

FEATURES = sorted(f"features/{path.parent.name}" for path in ROOT.glob("features/*/__init__.py"))
PLUGINS = [folder for folder in FEATURES if (ROOT / folder / "engine").is_dir()]
SCHEDULING = tuple(f"tests/engine/vllm_backend/test_{name}.py" for name in (
    "scheduler", "planning", "answer_accounts", "translate",
))  # fmt: skip
"""Tests of vLLM's own scheduler with ours, without a model."""
CHOSEN = (
    "tests/observability/test_pages.py",
    "tests/observability/test_problems.py",
    "tests/server/apis/operations/test_admin.py",
    "tests/server/access/test_door.py",
    "tests/server/apis/shared/test_steps.py",
)
"""A sample of every room that might miss a feature, for the time it takes. Dashboards and alerts
name the metrics of all.
"""
REPORT = re.compile(r"(\d+) passed")
ADDRESS = re.compile(r"eaglegate serves (http://[^/\s]+)")


def find_names(path: Path) -> set[str]:
    """The modules that a file imports, and those that it names in strings."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value.partition(":")[0])
    return names


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the tree, with links to the folders that stay as they are."""
    for name in (*ROOMS, "src", "tests", "docs"):
        ignored = shutil.ignore_patterns("demo")
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=ignored)
    (tmp_path / "engine" / "demo").symlink_to(ROOT / "engine" / "demo")
    for name in ("pyproject.toml", "deploy", "scripts", "README.md", "requirements"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def remove(tree: Path, folder: str) -> None:
    """Remove a folder and the tests that import it."""
    shutil.rmtree(tree / folder)
    shutil.rmtree(tree / "tests" / folder, ignore_errors=True)
    gone = {f"eaglegate.{folder.replace('/', '.')}"}
    files = {path: find_names(path) for path in sorted((tree / "tests").rglob("*.py"))}
    while importing := [path for path, names in files.items() if _is_any_in(names, gone)]:
        for path in importing:
            path.unlink()
            del files[path]
            gone.add(".".join(path.relative_to(tree).with_suffix("").parts))


def _is_any_in(names: set[str], packages: set[str]) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for name in names for package in packages)


@contextmanager
def serving(tree: Path, *arguments: str) -> Iterator[str]:
    """A gateway of the tree; its address."""
    command = ["-m", "eaglegate.server", "serve", "--port", "0", *arguments]
    log = tree / "serve.log"
    with log.open("w") as errors:
        process = fork_python(command, environment(tree), errors)
    try:
        found = next(filter(None, map(ADDRESS.search, process.stdout)), None)
        assert found is not None, log.read_text()
        yield found[1]
    finally:
        process.terminate()
        process.wait(30)


def check_answers(url: str) -> str:
    """Return an answer's text, after a look at what an operator reads."""
    messages = [{"role": "user", "content": "Hi"}]
    body = {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 60}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert httpx.get(f"{url}/debug/speculation").status_code == 200
    assert "eaglegate_requests_total" in httpx.get(f"{url}/metrics").text
    text: str = answer.json()["choices"][0]["message"]["content"]
    assert text
    return text


def run_tests(tree: Path, *arguments: str) -> int:
    """Run the fast tests that ``arguments`` select, and return the number that passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=short", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", "not slow and not thorough", *arguments], cwd=tree, env=environment(tree),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    passed = REPORT.search(done.stdout)
    assert passed is not None
    return int(passed[1])


def environment(tree: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": ""}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with scripted_worker(tmp_path_factory.mktemp("worker") / "log") as started:
        started.until_healthy()
        yield started


@pytest.mark.timeout(900)
@pytest.mark.parametrize("folder", [*FEATURES, "lab"])
def test_a_folder_can_be_removed(copy: Path, worker: WorkerProcess, folder: str) -> None:
    shutil.rmtree(copy / folder)
    with serving(copy, *GATEWAY, "--upstream", worker.url) as url:
        check_answers(url)


@pytest.mark.timeout(900)
def test_tests_of_the_rest_pass_without_any_of_them(copy: Path) -> None:
    for folder in (*FEATURES, "lab"):
        remove(copy, folder)
    chosen = [name for name in CHOSEN if (copy / name).exists()]
    assert run_tests(copy, *chosen) > 20


@pytest.mark.timeout(900)
def test_an_engine_runs_without_its_plug_ins(copy: Path, demo_gateway: RunningGateway) -> None:
    """The scheduler runs, and the text stays."""
    for folder in PLUGINS:
        remove(copy, folder)
    assert run_tests(copy, *SCHEDULING) > 40
    with serving(copy, "--dtype=float32") as url:
        assert check_answers(url) == check_answers(demo_gateway.url)


def run_command(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "eaglegate.server", *words], cwd=tree, env=environment(tree),
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_names_of_tests_are_those_of_files() -> None:
    assert [name for name in (*CHOSEN, *SCHEDULING) if not (ROOT / name).exists()] == []


def test_measuring_needs_no_feature(copy: Path) -> None:
    for feature in FEATURES:
        shutil.rmtree(copy / feature)
    for command in (["bench"], ["replay"], ["drafts", "compare"]):
        done = run_command(copy, *command, "--help")
        assert done.stdout.startswith("usage: eaglegate "), done.stderr


def test_only_commands_of_the_lab_need_it(copy: Path) -> None:
    shutil.rmtree(copy / "lab")
    for command in ("bench", "replay", "drafts", "improve", "prove"):
        done = run_command(copy, command, "--help")
        assert done.returncode == 2
        assert "needs eaglegate.lab" in done.stderr
        assert "Traceback" not in done.stderr
    for command in ("serve", "check"):
        assert run_command(copy, command, "--help").stdout.startswith(f"usage: eaglegate {command}")
    done = run_command(copy, "check", *GATEWAY, "--upstream", "http://127.0.0.1:1")
    assert "Traceback" not in done.stderr
    assert "http://127.0.0.1:1" in done.stdout
