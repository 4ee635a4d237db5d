"""Rules of the source tree that no linter has: names and imports (docs/architecture.md)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import LONGEST

ROOT = Path(__file__).parent.parent
PACKAGES = ("server", "engine", "text", "observability", "features")
ALL_PACKAGES = (*PACKAGES, "lab/improve", "lab/measure", "lab/prove", "lab/training")
FOLDERS = ("http", "access", "apis", "generation", "store", "backends", "cli")
DOCS = ("docs/architecture.md", "CONTRIBUTING.md", "README.md")


def _modules() -> dict[str, Path]:
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {
        ".".join(("eaglegate", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path
        for path in sorted(paths)
    }


MODULES = _modules()


@cache
def parse(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@cache
def imports_of(module: str) -> frozenset[str]:
    """Modules of ours that a module imports, under TYPE_CHECKING and in functions too."""
    found: set[str] = set()
    for node in ast.walk(parse(module)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & MODULES.keys()
            if node.module in MODULES and names - MODULES.keys():
                found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & MODULES.keys()
    return frozenset(found - {module})


def cycle_from(module: str, path: tuple[str, ...] = ()) -> tuple[str, ...] | None:
    """The first import cycle reached from a module, as a path; None without one."""
    if module in path:
        return (*path[path.index(module) :], module)
    for imported in sorted(imports_of(module)):
        if imported not in _without_cycle and (found := cycle_from(imported, (*path, module))):
            return found
    _without_cycle.add(module)
    return None


_without_cycle: set[str] = set()


def test_no_import_cycles() -> None:
    """Imports under TYPE_CHECKING count as well."""
    for module in MODULES:
        assert cycle_from(module) is None


def test_context_variables_are_in_observability_only() -> None:
    """Elsewhere a request's data are arguments."""
    users = {module for module, path in MODULES.items() if "ContextVar" in path.read_text("utf-8")}
    assert users == {"eaglegate.observability.middleware"}


def test_no_public_class_name_twice() -> None:
    homes = defaultdict(list)
    for folder in ALL_PACKAGES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].append(str(path.relative_to(ROOT)))
    assert not {name: places for name, places in homes.items() if len(places) > 1}


GLOSSARY = {"Step", "Event", "Draft", "Target", "Lane", "Slice", "Job", "Prompt"}


def test_no_glossary_word_is_an_alias() -> None:
    """``Step = ...`` and ``import X as Step`` hide what the word means."""
    found = [
        f"{module}:{node.lineno}"
        for module in MODULES
        if module != "eaglegate.engine.events"
        for node in ast.walk(parse(module))
        if (
            isinstance(node, ast.Assign) and {getattr(t, "id", "") for t in node.targets} & GLOSSARY
        )
        or (isinstance(node, ast.ImportFrom) and {a.asname for a in node.names} & GLOSSARY)
    ]
    assert not found


@pytest.mark.parametrize("folder", [*PACKAGES, *(f"server/{n}" for n in FOLDERS)])
def test_a_top_folder_says_what_it_is(folder: str) -> None:
    """The docstring has room for the purpose, the callers and the place of new code
    (docs/architecture.md)."""
    source = (ROOT / folder / "__init__.py").read_text(encoding="utf-8")
    assert len((ast.get_docstring(ast.parse(source)) or "").splitlines()) >= 4


@pytest.mark.parametrize("page", DOCS)
def test_pages_name_files_that_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(
        r"`((?:server|engine|text|observability|features|lab|tests|deploy|docs)/[\w./]*)`",
        text,
    )
    assert not [path for path in named if not (ROOT / path).exists()]


def test_architecture_names_functions_that_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    calls = re.findall(r"^\| \d+ \|.*", page, re.MULTILINE)
    named = re.findall(r"`([\w/]+\.py)`: `(\w+)`", page)
    assert len(named) >= len(calls) > 20
    for file, name in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^(class|def|async def) {name}\b", source, re.MULTILINE), (file, name)


def test_docstrings_name_files_that_exist() -> None:
    """A file is named by its path from the root, or relative to the folder of its reader; vLLM's
    files begin with ``vllm/``."""
    folders = (*PACKAGES, "lab", "tests")
    files = {path for folder in folders for path in (ROOT / folder).rglob("*.py")}
    wrong = []
    for path in sorted(files):
        for name in set(re.findall(r"``([\w/]+\.py)``", path.read_text(encoding="utf-8"))):
            below = (file for file in files if path.parent in file.parents)
            known = (ROOT / name).exists() or any(str(one).endswith(f"/{name}") for one in below)
            if not known and not name.startswith("vllm/"):
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert not wrong, "name the file by its path from the root"


def test_names_of_tests_are_sentences() -> None:
    """``test_unsupported_fields_are_rejected``, not ``test_what_is_rejected``."""
    names = (
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in re.findall(r"def (test_what_\w+)", path.read_text(encoding="utf-8"))
    )
    assert not list(names)


def test_the_longest_test_files_exist_and_are_slow() -> None:
    """A file that was renamed would begin among the last."""
    assert len(set(LONGEST)) == len(LONGEST)
    assert not [
        file for file in LONGEST if "mark.slow" not in (ROOT / "tests" / file).read_text("utf-8")
    ]
