"""Who may import whom (docs/architecture.md)."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("server", "engine", "improve", "measure", "observability")
KNOWS_ALL = {"server/cli/serve.py", "server/cli/observing.py", "server/app.py"}
HTTP_CLIENTS = ("engine/remote/", "engine/machine.py", "measure/")
CALLS_MEASURE = ("measure/", "server/cli/")
LIGHT = ("engine/remote/", "engine/rendering/", "engine/fleet/", "server/backends/remote")
"""What a gateway in front of workers is made of."""
MAY_IMPORT_VLLM: set[str] = set()
"""Adapters outside engine/vllm_backend that need vLLM; keep this short."""


def sources() -> list[Path]:
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


@cache
def imports(path: Path) -> set[str]:
    """The dotted names a file imports, at any depth of its code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return found


def names(path: Path, package: str) -> list[str]:
    return [name for name in imports(path) if name == package or name.startswith(package + ".")]


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_layers(path: Path) -> None:
    inside = path.relative_to(ROOT).as_posix()
    if inside.startswith("engine/"):
        assert not names(path, "server")
        assert not names(path, "observability")
        assert not names(path, "fastapi")
    if not inside.startswith("engine/vllm_backend/") and inside not in MAY_IMPORT_VLLM:
        assert not names(path, "vllm"), "vLLM lives in engine/vllm_backend"
    if not inside.startswith(HTTP_CLIENTS):
        assert not names(path, "httpx"), "workers are talked to in engine/remote"
    if inside.startswith(LIGHT):
        assert not names(path, "torch")
        assert not names(path, "transformers")
    if inside.startswith("server/") and inside not in KNOWS_ALL:
        assert not names(path, "observability")
    if inside.startswith("measure/"):
        assert not names(path, "server")
        assert not names(path, "fastapi")
    if inside.startswith("improve/"):
        assert not names(path, "server")
        assert not names(path, "fastapi")
    if not inside.startswith(("improve/", "server/")):
        assert not names(path, "improve"), "an engine does not judge its draft"
    if not inside.startswith(CALLS_MEASURE):
        assert not names(path, "measure"), "only commands measure"
    if inside.startswith("observability/"):
        assert not names(path, "server")
    else:
        assert not names(path, "prometheus_client")
