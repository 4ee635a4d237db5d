"""The rules of docs/architecture.md on imports between folders."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from eaglegate.engine import FOR_WORKERS

ROOT = Path(__file__).parent.parent
FOLDERS = ("server", "engine", "text", "observability", "features", "lab")
KNOWS_ALL = {
    "server/cli/serve.py",
    "server/cli/feature.py",
    "server/app.py",
}
HTTP_CLIENTS = ("engine/remote/", "engine/machine.py", "lab/")
LIGHT = ("engine/remote/", "text/rendering/", "engine/fleet/", "server/backends/remote")
"""The parts of a gateway in front of workers."""
VLLM = ("engine/vllm_backend/", "lab/training/", "lab/benchmarks/")
"""Adapters of vLLM, and scripts that run it; keep this short."""
PROMETHEUS = ("observability/", "lab/benchmarks/")
MAY_NOT = {
    "server": ("features",),
    "text": ("server", "engine", "observability", "features", "fastapi"),
    "engine": ("server", "observability", "features", "fastapi"),
    "observability": ("server", "features"),
    "lab/measure": ("server", "fastapi"),
    "lab/improve": ("server", "fastapi"),
}
"""The folders, and the folders and packages that each may not import."""
CLIENT = "eaglegate.server.cli.client"
"""The HTTP client of a running gateway, which imports nothing of the server. The lab may use it."""
FLOORS = {
    "server": (
        {"errors"},
        {"flags"},
        {"http", "store"},
        {"access"},
        {"settings", "feature_settings"},
        {"generation"},
        {"apis", "backends"},
        {"app"},
        {"cli"},
        {"__main__"},
    ),
    "engine": (
        {"bounded_yaml", "errors", "gpus", "logs", "orphan", "stop_signals"},
        {"totals", "types", "vllm_contract", "vllm_flags"},
        {"base", "events", "machine", "steps", "vllm_fields"},
        {"speculation", "wrapper"},
        {"preflight", "remote", "scripted", "supervision", "vllm_backend"},
        {"fleet"},
    ),
}
"""The parts of a folder, from the bottom up. A part imports parts of lower floors only."""
CLASSES_OF_WORKERS = {name: f"vllm_backend.{module}" for name, (module, _) in FOR_WORKERS.items()}
"""The modules behind the names that ``engine/__init__.py`` offers to vLLM."""
BY_NAME = {
    "engine/vllm_backend/grammar_probe.py": ("engine",),
    "server/__main__.py": ("lab",),
    "server/cli/feature_table.py": ("features",),
    "features/improve/feature.py": ("lab",),
}
"""The files that import upwards by a module's name, so that nothing is loaded before it is used:
the commands, the table of features, and the improvement loop. Keep this short.
"""
MODULE_NAME = re.compile(r"eaglegate(?:\.\w+)+(?:\.|\.\w+|:\w+)")
"""A string that names a module: ``eaglegate.x.y``, ``eaglegate.x:Class``, or the constant part of
``f"eaglegate.x.{name}"``.
"""


def sources() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def imports(path: Path) -> set[str]:
    """The dotted names a file imports, at any depth of its code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def find_module_names(source: str) -> set[str]:
    """The modules of ours that strings in Python code name."""
    texts = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return {text.partition(":")[0].rstrip(".") for text in texts if MODULE_NAME.fullmatch(text)}


@cache
def imports_by_name(path: Path) -> set[str]:
    """The modules of ours that a file names in strings, except the allowed ones."""
    allowed = BY_NAME.get(path.relative_to(ROOT).as_posix(), ())
    found = find_module_names(path.read_text(encoding="utf-8"))
    return {name for name in found if name.split(".")[1] not in allowed}


def names(path: Path, package: str) -> list[str]:
    """The imports of ``path`` that belong to ``package``, ours or another's."""
    full = f"eaglegate.{package}" if package in FOLDERS else package
    found = imports(path) | imports_by_name(path)
    return [name for name in found if name == full or name.startswith(full + ".")]


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_layers(path: Path) -> None:
    inside = path.relative_to(ROOT).as_posix()
    for folder, others in MAY_NOT.items():
        if inside.startswith(folder + "/"):
            upward = [found for other in others for found in names(path, other)]
            if inside.startswith("lab/"):
                upward = [name for name in upward if not name.startswith(CLIENT)]
            assert not upward
    if not inside.startswith("lab/"):
        assert not names(path, "lab"), "the gateway runs without the lab"
    if not inside.startswith(VLLM):
        assert not names(path, "vllm"), "vLLM lives in engine/vllm_backend"
    if not inside.startswith(HTTP_CLIENTS):
        assert not names(path, "httpx"), "workers are talked to in engine/remote"
    if inside.startswith(LIGHT):
        assert not names(path, "eaglegate.engine.vllm_backend")
        assert not names(path, "torch")
        assert not names(path, "transformers")
    if inside.startswith("server/") and inside not in KNOWS_ALL:
        assert not names(path, "observability")
    if not inside.startswith(PROMETHEUS):
        assert not names(path, "prometheus_client")


@pytest.mark.parametrize(
    "source, name",
    [
        ('import_module("eaglegate.lab.improve")', "eaglegate.lab.improve"),
        ('import_module(f"eaglegate.lab.{name}")', "eaglegate.lab"),
        ('TABLE = {"x": "eaglegate.lab.improve:Loop"}', "eaglegate.lab.improve"),
        ('TABLE = {"x": "eaglegate.lab:Loop"}', "eaglegate.lab"),
    ],
)
def test_a_module_in_a_string_is_an_import(source: str, name: str) -> None:
    assert find_module_names(source) == {name}


@pytest.mark.parametrize("text", ["eaglegate.access", "see eaglegate.lab.improve", "eaglegate"])
def test_other_strings_are_no_imports(text: str) -> None:
    assert not find_module_names(f"print({text!r})")


FLOORED_SOURCES = [path for folder in FLOORS for path in sorted((ROOT / folder).rglob("*.py"))]
FLOORED_FOLDERS = sorted({path.parent for path in FLOORED_SOURCES})


def list_inner_imports(path: Path) -> set[str]:
    """The parts of its top folder that a file imports, as dotted names below that folder."""
    top = path.relative_to(ROOT).parts[0]
    found = {name.removeprefix(f"eaglegate.{top}.") for name in names(path, top)}
    return {CLASSES_OF_WORKERS.get(name, name) for name in found} - {f"eaglegate.{top}"}


@pytest.mark.parametrize("path", FLOORED_SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_part_imports_lower_floors_only(path: Path) -> None:
    top, *inside = path.relative_to(ROOT).parts
    part = inside[0].removesuffix(".py")
    if part == "__init__":
        assert not list_inner_imports(path)
        return
    floors = {part: floor for floor, parts in enumerate(FLOORS[top]) for part in parts}
    targets = {name: name.partition(".")[0] for name in list_inner_imports(path)}
    assert not [
        name
        for name, target in targets.items()
        if target != part and floors[target] >= floors[part]
    ]


def find_child(folder: Path, name: str) -> str | None:
    """Return the file or folder in ``folder`` that a name below its top folder belongs to."""
    parts, inside = name.split("."), [*folder.relative_to(ROOT).parts[1:]]
    if parts[: len(inside)] != inside or len(parts) == len(inside):
        return None
    child = parts[len(inside)]
    is_module = (folder / child).is_dir() or (folder / f"{child}.py").is_file()
    return child if is_module else "__init__"


@pytest.mark.parametrize("folder", FLOORED_FOLDERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_parts_of_a_folder_import_each_other_in_no_circle(folder: Path) -> None:
    graph: dict[str, set[str | None]] = {}
    for path in folder.rglob("*.py"):
        child = path.relative_to(folder).parts[0].removesuffix(".py")
        targets = {find_child(folder, name) for name in list_inner_imports(path)}
        graph[child] = graph.get(child, set()) | (targets - {None, child})
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_nothing_imports_a_folder_by_its_own_name() -> None:
    """``import server`` works from the root of a checkout only."""
    files = [*sources(), *(ROOT / "tests").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    bare = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        for name in imports(path)
        if name.partition(".")[0] in FOLDERS
    ]
    assert not bare


def test_the_diagram_names_the_folders_that_there_are() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE))
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    there = {name.partition("/")[0] for name in listed.splitlines() if "/" in name}
    there = {name for name in there if not name.startswith(".")}
    assert shown == there
    assert len(there) <= 13
