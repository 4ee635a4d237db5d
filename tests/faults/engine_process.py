"""The engine's process, found among a gateway's descendants, and what can be done to it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

TITLE = "EngineCore"
GONE_S = 120


def engine_pid(gateway_pid: int) -> int | None:
    """The engine core of the gateway, if it runs one now."""
    return next((pid for pid in descendants(gateway_pid) if TITLE in title(pid)), None)


def starting_pid(gateway_pid: int) -> int | None:
    """The same from its first moment, when it has not called itself so yet."""
    return next((pid for pid in descendants(gateway_pid) if is_engine(pid)), None)


async def next_one(gateway_pid: int, last: int | None) -> int:
    """The engine after ``last``, from its first moment."""
    while (pid := starting_pid(gateway_pid)) in (None, last):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert pid is not None
    return pid


def is_engine(pid: int) -> bool:
    return any(mark in title(pid) for mark in (TITLE, "--multiprocessing-fork"))


def kill(gateway_pid: int, how: signal.Signals = signal.SIGKILL) -> bool:
    """Send a signal to the engine; return whether there was one."""
    pid = engine_pid(gateway_pid)
    if pid is None:
        return False
    os.kill(pid, how)
    return True


def descendants(pid: int) -> Iterator[int]:
    for child in children(pid):
        yield child
        yield from descendants(child)


def children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(found) for task in tasks for found in (task / "children").read_text().split()]
    except OSError:
        return []


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def memory_mib(pid: int) -> float:
    """Resident memory."""
    return (
        int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
    )


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def wait_until_gone(pids: Iterable[int]) -> None:
    end = time.monotonic() + GONE_S
    while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left, [title(pid) for pid in left]


def is_running(pid: int) -> bool:
    return read_status(pid)[:1] not in ([], ["Z"])


def find_parent(pid: int) -> int:
    return int(read_status(pid)[1])


def read_status(pid: int) -> list[str]:
    """The state of a process and what follows it; nothing if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
