"""docs/package.md: the names that may be imported exist, explain themselves and need no engine."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "package.md").read_text(encoding="utf-8")
PUBLIC = re.findall(r"`(eaglegate\.[\w.]+)`", PAGE)
HEAVY = ("vllm", "torch", "transformers", "fastapi", "prometheus_client")


def find(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def test_names_are_listed_once():
    assert len(PUBLIC) > 10
    assert len(set(PUBLIC)) == len(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_explains_itself(name):
    public = find(name)
    assert public.__name__ == name.rpartition(".")[2]
    assert not any(part.startswith("_") for part in name.split("."))
    assert inspect.getdoc(public)


def test_importing_them_loads_no_engine_and_no_web_framework():
    modules = sorted({name.rpartition(".")[0] for name in PUBLIC})
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert not set(HEAVY) & set(done.stdout.split())


def test_the_example_runs_as_it_stands():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert "ReasoningDelta" in done.stdout
    assert "ContentDelta(text='7')" in done.stdout


DISTRIBUTIONS = {
    "google_re2": "re2", "pyyaml": "yaml", "huggingface_hub": "huggingface_hub",
}  # fmt: skip
EXTRAS = {
    "observability/tracing.py: opentelemetry",
    "server/cli/top/screen.py: rich",
    "server/cli/top/screen.py: textual",
}
"""The extras ``otel`` and ``top``; their modules are imported where they are asked for."""
BROUGHT = {"starlette": "fastapi", "pydantic_core": "pydantic"}
"""Packages that another one brings, and whose names its documentation uses."""


def list_top_imports(path: Path) -> set[str]:
    """Packages that are imported as soon as the module is."""
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def test_no_page_or_message_names_a_package_that_no_registry_has() -> None:
    """eaglegate is installed from a checkout or a wheel: ``pip install '.[cuda]'``."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    folders = ("canary", "capture", "docs", "engine", "lab", "observability", "server", "text")
    files = [ROOT / "README.md", *(file for name in folders for file in (ROOT / name).rglob("*"))]
    texts = {
        file: file.read_text(encoding="utf-8") for file in files if file.suffix in (".md", ".py")
    }
    assert not [file for file, text in texts.items() if re.search(r"install '?eaglegate", text)]
    named = {name for text in texts.values() for name in re.findall(r"'\.\[(\w+)\]'", text)}
    assert {"cpu", "cuda", "lab", "otel", "top", "train"} <= named <= extras.keys()


def test_a_plain_install_brings_what_the_gateway_imports() -> None:
    """``pip install eaglegate``, without vLLM and what it would bring."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {re.split(r"[<>=\[]", line)[0] for line in project["dependencies"]}
    declared = {name.replace("-", "_") for name in named}
    declared = {DISTRIBUTIONS.get(name, name) for name in declared} | {"eaglegate"}
    rooms = ("server", "text", "observability", "capture", "canary", "engine")
    needed = {
        f"{path.relative_to(ROOT)}: {name}"
        for room in rooms
        for path in (ROOT / room).rglob("*.py")
        if "vllm_backend" not in path.parts
        for name in list_top_imports(path)
        if BROUGHT.get(name, name) not in declared | sys.stdlib_module_names
    }
    assert needed == EXTRAS
