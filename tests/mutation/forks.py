"""Work in forks: what they import, change or leave behind ends with them."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

POLL_S = 0.005


@dataclass(slots=True)
class Fork:
    pid: int
    deadline: float
    end: Callable[[int], None]
    """Takes the exit status; negative for a signal."""


def call_in_fork(work: Callable[[], Any]) -> Any:
    """Return the result of ``work``, which must pickle; raise if the fork dies before it
    returns."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump(work(), pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    if not answer:
        raise SystemExit("a fork of the mutation run died; see above")
    return pickle.loads(answer)


def silence() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def run_forks(
    works: Iterable[tuple[Callable[[], int], Callable[[int], None]]], jobs: int, limit_s: float
) -> None:
    """Runs each work in a silent fork, ``jobs`` at a time; its exit status goes to its callback."""
    running: list[Fork] = []
    for work, end in works:
        while len(running) >= jobs:
            _reap(running)
        running.append(Fork(_start(work), time.monotonic() + limit_s, end))
    while running:
        _reap(running)


def _start(work: Callable[[], int]) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setsid()
        silence()
        status = work()
    finally:
        os._exit(status)


def _reap(running: list[Fork]) -> None:
    time.sleep(POLL_S)
    for fork in list(running):
        if time.monotonic() > fork.deadline:
            _kill_group(fork.pid)
        ended, status = os.waitpid(fork.pid, os.WNOHANG)
        if ended:
            running.remove(fork)
            _kill_group(fork.pid)
            fork.end(os.waitstatus_to_exitcode(status))


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
