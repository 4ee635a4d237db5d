"""Forks plain vLLM servers, and their engines, from a process that has imported vLLM. The imports
would take longer than the rest of a start.

    python -m tests.forked_workers

It reads a line of JSON for each server, the arguments of ``python`` and the file of its output, and
writes the server's process id. A server that has ended stays as a zombie: ``Forked`` reads how.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

SERVER = "vllm.entrypoints.openai.api_server"
ENGINES = "vllm.v1.engine.utils"
"""Starts a server's engine process."""
IMPORTED = (
    SERVER,
    ENGINES,
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
)
"""Nothing of ours: a server finds its scheduler and its extensions by its own arguments."""
PR_SET_PDEATHSIG = 1


class Forked:
    """A process that another one has forked, as ``subprocess.Popen`` would show it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        """The exit status, once the process has ended."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return os.waitstatus_to_exitcode(int(fields[-1])) if fields[0] == "Z" else None

    def wait(self, limit_s: float = 30.0) -> int:
        deadline = time.monotonic() + limit_s
        while (status := self.poll()) is None:
            assert time.monotonic() < deadline, f"process {self.pid} does not end"
            time.sleep(0.01)
        return status


class Forks:
    """The process that forks, begun before the first server and ended with the tests."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked_workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=folder,
            env=os.environ | variables,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        atexit.register(self._end)

    def _end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def fork(self, arguments: Sequence[str], log: Path) -> Forked:
        """The first one waits until vLLM is imported."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([list(arguments), str(log)]) + "\n")
        pid = self._process.stdout.readline()
        assert pid, "the process that imports vLLM for the servers ended"
        return Forked(int(pid))


def die_with_parent() -> None:
    """A test run that is killed leaves no server behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(arguments: Sequence[str], log: Path) -> None:
    """Become the server."""
    os.setsid()
    die_with_parent()
    with log.open("ab") as out:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    utils = import_module(ENGINES)
    utils.get_mp_context = lambda: multiprocessing.get_context("fork")  # as on GPUs
    _, module, *sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to it
    gc.disable()
    for name in IMPORTED:
        import_module(name)
    # Plain engines use AMX without asking Linux for its registers, as worker.py does for ours.
    import_module("torch").cpu._init_amx()
    del sys.modules[SERVER]  # a server runs it as ``__main__``
    gc.freeze()  # a collection in a server would copy all the pages it shares
    gc.enable()
    for line in sys.stdin:
        arguments, log = json.loads(line)
        if (pid := os.fork()) == 0:
            serve(arguments, Path(log))
            return
        print(pid, file=answers, flush=True)


if __name__ == "__main__":
    main()
