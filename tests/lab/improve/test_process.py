"""The loop as a child of the gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
import yaml

from eaglegate.lab.improve.config import read_config
from eaglegate.lab.improve.loop import LoopRunning, lock_state
from eaglegate.lab.improve.process import ImproveProcess

pytestmark = pytest.mark.thorough


def is_running(state: Path) -> bool:
    try:
        with lock_state(state):
            return False
    except LoopRunning:
        return True


async def wait_for(state: Path, running: bool) -> None:
    def wait() -> None:
        deadline = time.monotonic() + 60
        while is_running(state) is not running:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    await asyncio.to_thread(wait)


def find_child() -> int:
    """The one child of this process that runs the loop."""
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            if b"improve" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    raise AssertionError("no loop runs")


async def test_a_killed_loop_is_started_again_and_ends_with_the_gateway(tmp_path: Path) -> None:
    file, state = tmp_path / "improve.yaml", tmp_path / "state"
    (tmp_path / "capture").mkdir()
    file.write_text(yaml.safe_dump({"state": "state", "capture": "capture", "poll_s": 0.1}))
    process = ImproveProcess(file, read_config(file), restart_s=0.05)
    running = asyncio.create_task(process.run("http://127.0.0.1:1"))
    await wait_for(state, True)
    first = find_child()
    assert os.getpriority(os.PRIO_PROCESS, first) > os.getpriority(os.PRIO_PROCESS, 0)
    os.kill(first, signal.SIGKILL)
    await wait_for(state, False)
    await wait_for(state, True)
    assert find_child() != first
    running.cancel()
    await asyncio.wait({running})
    assert not is_running(state)
