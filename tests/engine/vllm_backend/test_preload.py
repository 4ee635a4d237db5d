"""Engine processes forked from a process that has imported vLLM."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import setproctitle

from eaglegate.engine.vllm_backend.child_process import (
    ChildLog,
    EnginePreload,
    create_context,
    predict_engine_environment,
)

pytestmark = pytest.mark.thorough


def report(path: Path) -> None:
    """Stand in for an engine: write down the parents and the environment."""
    parent: Any = multiprocessing.parent_process()
    found = {"parent": parent.pid, "forked_by": os.getppid(), "late": os.environ.get("LATE")}
    path.write_text(json.dumps(found))
    print("the engine speaks", flush=True)


def end_by_signal() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    time.sleep(600)


@pytest.fixture
def preload() -> Iterator[EnginePreload]:
    yield EnginePreload(dict(os.environ), module="eaglegate.engine.orphan")
    forkserver._forkserver._stop()


def start(preload: EnginePreload, target: Any, *args: Any) -> BaseProcess:
    process: BaseProcess = create_context(preload).Process(target=target, args=args)
    process.start()
    return process


def find_server() -> int:
    pid: int = forkserver._forkserver._forkserver_pid
    return pid


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_every_engine_is_forked(
    preload: EnginePreload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATE", "yes")
    for name in ("first", "second"):
        log = ChildLog(echo=None)
        with log.capture():
            process = start(preload, report, tmp_path / name)
        assert process.sentinel in connection.wait([process.sentinel], timeout=30)
        process.join(30)
        log.join(5)
        expected = {"parent": os.getpid(), "forked_by": find_server(), "late": "yes"}
        assert read(tmp_path / name) == expected
        assert process.exitcode == 0
        assert log.tail() == "the engine speaks"


def name_itself(path: Path) -> None:
    setproctitle.setproctitle("VLLM::EngineCore")
    path.write_bytes(Path("/proc/self/cmdline").read_bytes())


def test_an_engine_can_name_itself(
    preload: EnginePreload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators see the name: it is written over the first arguments and variables."""
    monkeypatch.setenv("LATE", "yes")
    start(preload, name_itself, tmp_path / "title").join(30)
    assert (tmp_path / "title").read_bytes().startswith(b"VLLM::EngineCore\0")


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "LD_LIBRARY_PATH"])
def test_an_engine_with_another_environment_at_load_is_spawned(
    preload: EnginePreload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "3")
    process = start(preload, report, tmp_path / "found")
    process.join(30)
    assert process.exitcode == 0
    assert read(tmp_path / "found")["forked_by"] == os.getpid()


def test_an_engine_starts_where_the_fork_server_has_died(
    preload: EnginePreload, tmp_path: Path
) -> None:
    os.kill(find_server(), signal.SIGKILL)
    wait_until_gone(find_server())
    process = start(preload, report, tmp_path / "found")
    process.join(30)
    assert process.exitcode == 0


def test_the_signal_that_ended_it_is_known(preload: EnginePreload) -> None:
    process = start(preload, end_by_signal)
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert not process.is_alive()


def test_threads_that_ask_at_once_hear_the_same(preload: EnginePreload) -> None:
    process = start(preload, end_by_signal)
    connection.wait([process.sentinel], timeout=30)
    ask: Any = process._popen.poll  # type: ignore[attr-defined]
    with ThreadPoolExecutor(16) as pool:
        codes = [pool.submit(ask).result() for _ in range(64)]
    assert set(codes) == {-signal.SIGKILL}


def test_an_engine_ends_with_the_fork_server(preload: EnginePreload) -> None:
    """An engine that outlived the fork server would be lost: only that server knows how it ends."""
    process = start(preload, hang)
    assert process.pid is not None
    wait_until_started(process.pid)
    os.kill(find_server(), signal.SIGKILL)
    wait_until_gone(process.pid)


def test_nothing_waits_for_a_fork_server_that_was_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that is given up while it imports."""
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    preload = EnginePreload(dict(os.environ), module="slow")
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(start, preload, report, tmp_path / "found")
        with pytest.raises(TimeoutError):
            starting.result(1)
        preload.close()
        process = starting.result(60)
    process.join(60)
    assert read(tmp_path / "found")["forked_by"] == os.getpid()
    forkserver._forkserver._stop()


def test_all_end_with_the_gateway() -> None:
    code = (
        "import os, time\n"
        "from multiprocessing import forkserver\n"
        "from tests.engine.vllm_backend.test_preload import *\n"
        "preload = EnginePreload(dict(os.environ), module='eaglegate.engine.orphan')\n"
        "process = start(preload, hang)\n"
        "wait_until_started(process.pid)\n"
        "print(process.pid, find_server(), flush=True)\n"
        "os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60, check=True
    )
    for pid in map(int, done.stdout.split()):
        wait_until_gone(pid)


def test_the_fork_server_that_still_imports_ends_with_the_gateway(tmp_path: Path) -> None:
    """No reader of the gateway's streams waits for it."""
    (tmp_path / "slow.py").write_text(
        "import time\nimport eaglegate.engine.vllm_backend.preload as preload\ntime.sleep(600)\n"
    )
    code = (
        "import os, sys, time\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from eaglegate.engine.vllm_backend.child_process import EnginePreload\n"
        "EnginePreload(dict(os.environ), module='slow')\n"
        "from multiprocessing import forkserver\n"
        "print(forkserver._forkserver._forkserver_pid, flush=True)\n"
        "os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, timeout=90, check=True
    )
    wait_until_gone(int(done.stdout))


def wait_until_started(pid: int) -> None:
    """Wait until the process runs the thread that watches its parents."""
    for _ in range(300):
        if len(list(Path(f"/proc/{pid}/task").iterdir())) > 1:
            return
        time.sleep(0.1)
    pytest.fail(f"process {pid} does not start")


def wait_until_gone(pid: int) -> None:
    """Wait until the process is gone, or dead and not yet reaped."""
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
    """The guess is for a CPU: where it is wrong, the preloaded process is never used."""
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    guess = predict_engine_environment(demo=True)
    assert "libgomp" in guess["LD_PRELOAD"]
    assert guess["OMP_NUM_THREADS"] == os.environ.get("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("LD_PRELOAD", "/lib/libgomp.so.1")
    assert predict_engine_environment(demo=False)["LD_PRELOAD"] == "/lib/libgomp.so.1"
