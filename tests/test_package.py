"""docs/package.md: the names that may be imported exist, explain themselves and need no engine."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import eaglegate

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "package.md").read_text(encoding="utf-8")
PUBLIC = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", PAGE, re.M)))
HEAVY = ("vllm", "torch", "transformers", "fastapi", "prometheus_client")
SOURCE = ROOT / "src" / "eaglegate"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(SOURCE.parent)}


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, cwd=ROOT, check=True, env=ENVIRONMENT,
    ).stdout  # fmt: skip


def test_names_are_listed_once():
    assert len(PUBLIC) > 10
    assert len(set(PUBLIC)) == len(PUBLIC)


def test_the_package_exports_the_public_names_and_no_others():
    assert eaglegate.__all__ == sorted(PUBLIC, key=lambda name: (name.islower(), name))
    assert set(PUBLIC) <= set(dir(eaglegate))
    with pytest.raises(AttributeError, match="has no attribute 'Settings'"):
        eaglegate.Settings  # noqa: B018


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_explains_itself(name):
    public = getattr(eaglegate, name)
    assert public.__name__ == name
    assert getattr(importlib.import_module(public.__module__), name) is public
    assert not any(part.startswith("_") for part in public.__module__.split("."))
    assert inspect.getdoc(public)


def test_importing_the_package_loads_none_of_its_modules():
    loaded = run("import sys, eaglegate; print(*sys.modules)").split()
    assert [name for name in loaded if name.startswith("eaglegate")] == ["eaglegate"]


def test_importing_the_names_loads_no_engine_and_no_web_framework():
    code = f"import sys; from eaglegate import {', '.join(PUBLIC)}; print(*sys.modules)"
    assert not set(HEAVY) & set(run(code).split())


def test_the_package_has_a_link_to_each_of_its_folders():
    links = {path.name: path.resolve() for path in SOURCE.iterdir() if path.is_symlink()}
    assert links == {path.parent.name: path.parent for path in ROOT.glob("*/__init__.py")}
    assert (SOURCE / "py.typed").is_file()


TYPED = """
from typing import assert_type

import eaglegate
from eaglegate import (
    ContentDelta, EngineRequest, FinishReason, Parser, ReasoningDelta, Sampling, ScriptedEngine,
    Step, ToolCallDelta, ToolCallEnd, ToolCallStart, Vocabulary, make_parser, steps,
)

def read(vocabulary: Vocabulary) -> None:
    assert_type(make_parser(vocabulary, tools=[]), Parser)

assert_type(eaglegate.__version__, str)
assert_type(EngineRequest("1", (1,), Sampling(max_tokens=2)).sampling, Sampling)
assert_type(ContentDelta("x").text, str)
assert_type(ReasoningDelta("x").text, str)
assert_type(ToolCallStart(0, "call", "f").name, str)
assert_type(ToolCallDelta(0, "{").arguments, str)
end: type[ToolCallEnd] = ToolCallEnd
assert_type(steps([1], finish=FinishReason.STOP), list[Step])
kind: type[ScriptedEngine] = ScriptedEngine
eaglegate.missing
"""


@pytest.mark.slow
def test_the_public_names_are_typed(tmp_path):
    """For whoever installs the package, of which mypy reads only what has types of its own."""
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(TYPED)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", ROOT / "pyproject.toml",
         "--cache-dir", ROOT / ".mypy_cache", tmp_path / "user.py"],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    (error,) = [line for line in done.stdout.splitlines() if "error:" in line]
    assert 'Module has no attribute "missing"' in error


def test_the_example_runs_as_it_stands():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    printed = run(code)
    assert "ReasoningDelta" in printed
    assert "ContentDelta(text='7')" in printed
