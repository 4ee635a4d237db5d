"""The rules of docs/architecture.md on imports between folders."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

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
    "text": ("server", "engine", "observability", "features", "fastapi"),
    "engine": ("server", "observability", "features", "fastapi"),
    "observability": ("server",),
    "lab/measure": ("server", "fastapi"),
    "lab/improve": ("server", "fastapi"),
}
"""The folders, and the folders and packages that each may not import."""
CLIENT = "eaglegate.server.cli.client"
"""The HTTP client of a running gateway, which imports nothing of the server. The lab may use it."""


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


def names(path: Path, package: str) -> list[str]:
    """The imports of ``path`` that belong to ``package``, ours or another's."""
    full = f"eaglegate.{package}" if package in FOLDERS else package
    return [name for name in imports(path) if name == full or name.startswith(full + ".")]


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_layers(path: Path) -> None:
    inside = path.relative_to(ROOT).as_posix()
    for folder, others in MAY_NOT.items():
        if inside.startswith(folder + "/"):
            upward = [found for other in others for found in names(path, other)]
            assert not [name for name in upward if not name.startswith(CLIENT)]
    if not inside.startswith("lab/"):
        assert not names(path, "lab"), "the gateway runs without the lab"
    if not inside.startswith(VLLM):
        assert not names(path, "vllm"), "vLLM lives in engine/vllm_backend"
    if not inside.startswith(HTTP_CLIENTS):
        assert not names(path, "httpx"), "workers are talked to in engine/remote"
    if inside.startswith(LIGHT):
        assert not names(path, "torch")
        assert not names(path, "transformers")
    if inside.startswith("server/") and inside not in KNOWS_ALL:
        assert not names(path, "observability")
    if not inside.startswith(PROMETHEUS):
        assert not names(path, "prometheus_client")


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
