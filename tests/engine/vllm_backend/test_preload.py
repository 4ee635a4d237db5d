"""The engine's process, started before the engine is."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from engine.vllm_backend.child_process import ChildLog, EnginePreload
from engine.vllm_backend.environment import predict_engine_environment


def report(path: Path) -> None:
    """What an engine would run."""
    parent: Any = multiprocessing.parent_process()
    found = {"pid": os.getpid(), "parent": parent.pid, "given": os.environ.get("GIVEN_LATE")}
    path.write_text(json.dumps(found))
    print("the engine speaks", flush=True)


def end_by_signal() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def preload() -> Iterator[EnginePreload]:
    made = EnginePreload(dict(os.environ), modules=())
    yield made
    made.close()


def run(preload: EnginePreload, target: Any, *args: Any) -> BaseProcess:
    process: BaseProcess = preload.create_context().Process(target=target, args=args)
    process.start()
    return process


def test_the_first_engine_runs_in_the_process(
    preload: EnginePreload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = preload.pid
    monkeypatch.setenv("GIVEN_LATE", "yes")
    log = ChildLog(echo=False)
    with log.capture():
        process = run(preload, report, tmp_path / "found")
    assert process.sentinel in connection.wait([process.sentinel], timeout=30)
    process.join(30)
    log.join(5)
    found = json.loads((tmp_path / "found").read_text())
    assert found == {"pid": waiting, "parent": os.getpid(), "given": "yes"}
    assert (process.pid, process.exitcode) == (waiting, 0)
    assert log.tail() == "the engine speaks"
    assert preload.pid is None


def test_a_later_engine_is_spawned(preload: EnginePreload, tmp_path: Path) -> None:
    waiting = preload.pid
    for name in ("first", "second"):
        run(preload, report, tmp_path / name).join(30)
    pids = [json.loads((tmp_path / name).read_text())["pid"] for name in ("first", "second")]
    assert pids[0] == waiting != pids[1]


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "LD_LIBRARY_PATH"])
def test_an_engine_with_another_environment_at_load_is_spawned(
    preload: EnginePreload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    waiting = preload.pid
    monkeypatch.setenv(name, "3")
    process = run(preload, report, tmp_path / "found")
    process.join(30)
    assert process.exitcode == 0
    assert json.loads((tmp_path / "found").read_text())["pid"] != waiting
    assert preload.pid == waiting


def test_a_process_that_has_died_is_not_taken(preload: EnginePreload, tmp_path: Path) -> None:
    waiting = preload.pid
    assert waiting is not None
    os.kill(waiting, signal.SIGKILL)
    wait_until_gone(waiting)
    process = run(preload, report, tmp_path / "found")
    process.join(30)
    assert process.exitcode == 0


def test_the_signal_that_ended_it_is_known(preload: EnginePreload) -> None:
    process = run(preload, end_by_signal)
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert not process.is_alive()


def test_it_ends_when_no_engine_has_taken_it(preload: EnginePreload) -> None:
    waiting = preload.pid
    assert waiting is not None
    preload.close()
    wait_until_gone(waiting)


def test_it_ends_with_its_parent() -> None:
    code = (
        "import os\n"
        "from engine.vllm_backend.child_process import EnginePreload\n"
        "print(EnginePreload(dict(os.environ), modules=()).pid, flush=True)\n"
        "os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30, check=True)
    wait_until_gone(int(done.stdout))


def wait_until_gone(pid: int) -> None:
    """Gone, or dead and not yet reaped."""
    for _ in range(300):
        try:
            status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if status == "Z":
            return
        time.sleep(0.1)
    pytest.fail(f"process {pid} is still there")


def test_the_guess_is_what_vllm_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU: else the preloaded process is never taken."""
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    guess = predict_engine_environment(demo=True)
    assert "libgomp" in guess["LD_PRELOAD"]
    assert guess["OMP_NUM_THREADS"] == os.environ.get("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("LD_PRELOAD", "/lib/libgomp.so.1")
    assert predict_engine_environment(demo=False)["LD_PRELOAD"] == "/lib/libgomp.so.1"
