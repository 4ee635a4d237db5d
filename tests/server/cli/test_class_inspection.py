"""Inspection of model classes while the gateway imports vLLM."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eaglegate.engine.orphan import STATUS
from eaglegate.engine.vllm_contract import find_vllm
from eaglegate.server.cli import class_inspection
from eaglegate.server.cli.class_inspection import (
    await_inspection,
    find_cache,
    start_inspection,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    return tmp_path / "modelinfos"


def use_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\n{script}\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))


def test_the_cache_is_vllms(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_cache() == cache
    monkeypatch.delenv("VLLM_CACHE_ROOT")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert find_cache() == Path("/x/vllm/modelinfos")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert find_cache() == Path.home() / ".cache/vllm/modelinfos"


def start(*argv: str) -> subprocess.Popen[bytes]:
    process = start_inspection(argv)
    assert process is not None
    return process


def test_a_filled_cache_needs_no_process(cache: Path) -> None:
    cache.mkdir()
    (cache / "llama.json").touch()
    assert start_inspection([]) is None


def test_an_interpreter_that_does_not_start_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/python")
    assert start_inspection([]) is None


def test_a_process_that_fails_is_ignored() -> None:
    process = start("--no-such-flag")
    await_inspection(process)
    assert process.returncode not in (0, None)


def test_a_process_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\nexec sleep 600\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    monkeypatch.setattr(class_inspection, "LIMIT_S", 0.01)
    process = start()
    await_inspection(process)
    assert process.returncode == -signal.SIGKILL


def test_the_process_ends_with_the_gateway() -> None:
    process = start()
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == STATUS


@pytest.mark.slow
@pytest.mark.skipif(find_vllm() is None, reason="vLLM is not installed")
def test_the_classes_of_target_and_draft_are_cached(cache: Path) -> None:
    await_inspection(start("--host", "127.0.0.1"))
    names = sorted(path.stem.rpartition("-")[2] for path in cache.glob("*.json"))
    assert names == ["Eagle3LlamaForCausalLM", "LlamaForCausalLM"]
