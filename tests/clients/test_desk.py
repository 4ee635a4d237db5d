"""The harness itself."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.clients.desk import end_processes, run

DAEMON = "setsid sh -c 'echo $$; exec sleep 300 >/dev/null 2>&1' &"
CHILD = "sleep 300 >/dev/null 2>&1 & echo $!"


@pytest.mark.parametrize("command", [CHILD, DAEMON])
def test_no_process_is_left(tmp_path: Path, command: str) -> None:
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    ran = run(("sh", "-c", command), tmp_path, environment, 30)
    pid = int(ran.out)
    assert command == CHILD or is_running(pid)
    end_processes(tmp_path)
    deadline = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """A killed process that no parent has waited for is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
