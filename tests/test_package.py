"""docs/package.md: the names that may be imported exist, explain themselves and need no engine."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
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
