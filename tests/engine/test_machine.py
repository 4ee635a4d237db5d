"""The kernel's facts about this machine's processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from eaglegate.engine import machine

V2 = "0::/kubepods/pod1\n"
V1 = "9:name=systemd:/\n4:memory:/docker/1\n0::/\n"


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({"/proc/self/cgroup": V2, "/sys/fs/cgroup/kubepods/pod1/memory.events": "oom_kill 3"}, 3),
        ({"/proc/self/cgroup": V2, "/sys/fs/cgroup/memory.events": "oom 9\noom_kill 4"}, 4),
        ({"/proc/self/cgroup": V1, "/sys/fs/cgroup/memory/memory.oom_control": "oom_kill 5"}, 5),
        ({"/proc/self/cgroup": "0::/\n", "/proc/vmstat": "x 1\noom_kill 6\n"}, 6),
        ({}, 0),
    ],
)
def test_kills_for_want_of_memory_are_those_of_the_control_group(monkeypatch, files, kills):
    everywhere = {"/proc/vmstat": "oom_kill 99\n"} if files else {}
    monkeypatch.setattr(machine, "read_text", lambda path: (everywhere | files).get(path, ""))
    assert machine.count_oom_kills() == kills


def test_a_stopped_process_is_seen():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        assert not machine.is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 10
        while not machine.is_stopped(process.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert machine.is_stopped(process.pid)
        process.kill()
    assert not machine.is_stopped(process.pid)
    assert not machine.is_stopped(None)
