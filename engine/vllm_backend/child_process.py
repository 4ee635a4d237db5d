"""The engine's child processes: how they start, how they end, and what they log.

On a CPU vLLM spawns its engine process: a new Python, which imports for seconds what the gateway
has imported for seconds. ``EnginePreload`` starts that Python first, so that both import at the
same time.

vLLM's engine core does not notice that its front end was killed and waits for requests for ever;
and on its way out Python searches all it has loaded for cycles, for longer than vLLM waits. So the
children exit with their parent, and at once.

vLLM's parent process reports "see root cause above"; the cause is in a child's output. Children
inherit the standard streams, so these point to a pipe while children start. A thread passes every
line on to standard error and keeps the last ones for error reports.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import importlib
import io
import json
import logging
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import context, popen_spawn_posix, reduction, resource_tracker, spawn, util
from multiprocessing.process import BaseProcess
from typing import Any

from engine.orphan import die_with_parent
from engine.vllm_backend import environment
from engine.vllm_contract import Area, find_broken

log = logging.getLogger(__name__)


def exit_with_parent() -> None:
    """For processes started by ``multiprocessing``; does nothing in others."""
    if multiprocessing.parent_process() is not None:
        atexit.register(gc.freeze)
        die_with_parent()


ENGINE_MODULES = (
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
)
"""What an engine process on a CPU needs; nothing that changes vLLM when it is imported."""
PRELOAD = "import sys; sys.path[:] = {}; from {} import await_engine; await_engine({}, {}, {})"


class EnginePreload:
    """A Python that imports vLLM and waits for an engine to run. The first engine that starts takes
    it; later ones, such as those of a restart, are spawned as vLLM does.

    It gets what ``multiprocessing`` writes to a process it spawns, and the environment and the
    standard streams of that moment. Where libraries would have read another environment as they
    were loaded, it is not taken. It ends with its parent, or when nothing has taken it.
    """

    def __init__(self, variables: dict[str, str], modules: Sequence[str] = ENGINE_MODULES) -> None:
        """``variables``: the environment the engine is expected to get."""
        self._variables = variables
        self._executable = spawn.get_executable()
        self._channel, theirs = socket.socketpair()
        fds = (theirs.fileno(), resource_tracker.getfd() or 0)
        *options, _, mark = spawn.get_command_line()
        program = PRELOAD.format(sys.path, __name__, *fds, list(modules))
        quiet = subprocess.DEVNULL
        with theirs:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                [*options, program, mark],
                pass_fds=fds, env=variables, stdin=quiet, stdout=quiet, stderr=quiet,
            )  # fmt: skip

    @property
    def pid(self) -> int | None:
        """Of the process, until an engine takes it."""
        return None if self._process is None else self._process.pid

    def create_context(self) -> context.SpawnContext:
        """A context of ``multiprocessing`` whose first process is this one."""
        made: Any = context.SpawnContext()
        made.Process = self._create_process
        return made  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the process if no engine has taken it."""
        process, self._process = self._process, None
        if process is not None:
            self._channel.close()
            process.kill()
            process.wait()

    def launch(self, engine: BaseProcess) -> PreloadedPopen | None:
        """Run ``engine`` in the process; None where it cannot be taken."""
        process = self._process
        if process is None or process.poll() is not None or not self._fits():
            return None
        launched = PreloadedPopen(process)
        try:
            payload = _pickle_process(engine, launched)
        except Exception:  # spawning it says what is wrong
            return None
        variables = json.dumps(dict(os.environ)).encode()
        self._process = None
        with suppress(OSError):  # it has ended: the engine's start fails as with any other process
            socket.send_fds(self._channel, [len(variables).to_bytes(4, "little")], [1, 2])
            self._channel.sendall(variables + payload)
        launched.watch(self._channel.detach())
        return launched

    def _fits(self) -> bool:
        select = environment.select_read_at_load
        before, now = select(self._variables), select(os.environ)
        changed = sorted(name for name, _ in before.items() ^ now.items())
        if changed:
            log.debug("the preloaded engine process has another %s", ", ".join(set(changed)))
        return not changed and spawn.get_executable() == self._executable

    def _create_process(self, *args: Any, **kwargs: Any) -> EngineProcess:
        process = EngineProcess(*args, **kwargs)
        process.preload = self
        return process


@contextmanager
def use_preload(preload: EnginePreload | None) -> Iterator[None]:
    """Have vLLM start its engine in the preloaded process, where it would spawn one."""
    if preload is None or Area.PRELOAD in find_broken():
        yield
        return
    from vllm.v1.engine import utils

    original = utils.get_mp_context

    def choose_context() -> Any:
        chosen = original()
        return preload.create_context() if chosen.get_start_method() == "spawn" else chosen

    utils.get_mp_context = choose_context
    try:
        yield
    finally:
        utils.get_mp_context = original
        preload.close()


class EngineProcess(context.SpawnProcess):
    """Runs in a preloaded process where there is one, else in a spawned one."""

    preload: EnginePreload | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "preload"}

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        launched = process_obj.preload and process_obj.preload.launch(process_obj)
        return launched or popen_spawn_posix.Popen(process_obj)

    def run(self) -> None:
        exit_with_parent()
        super().run()


class PreloadedPopen:
    """What ``multiprocessing`` asks of a process it has started."""

    method = "spawn"

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid
        self.poll, self.terminate, self.kill = process.poll, process.terminate, process.kill

    def watch(self, channel: int) -> None:
        """``channel`` is at its end when the process is, and shows the process our own end."""
        self.sentinel = channel
        self.close = util.Finalize(self, os.close, (channel,))

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def duplicate_for_child(self, _fd: int) -> int:
        raise NotImplementedError("the process runs already")


def _pickle_process(engine: BaseProcess, launched: PreloadedPopen) -> bytes:
    """As ``popen_spawn_posix`` does."""
    out = io.BytesIO()
    context.set_spawning_popen(launched)  # type: ignore[arg-type]
    try:
        reduction.dump(spawn.get_preparation_data(engine.name), out)
        reduction.dump(engine, out)
    finally:
        context.set_spawning_popen(None)
    return out.getvalue()


def await_engine(channel_fd: int, tracker_fd: int, modules: Sequence[str]) -> None:
    """The preloaded process: import, wait for an engine, and become it."""
    gc.disable()  # what is imported stays
    with suppress(Exception):  # what cannot be imported fails again in the engine, which says so
        for name in modules:
            importlib.import_module(name)
    gc.freeze()
    gc.enable()
    channel = socket.socket(fileno=channel_fd)
    size, streams, _, _ = socket.recv_fds(channel, 4, 2)
    if not size:  # the parent has left
        return
    os.environ.clear()
    os.environ.update(json.loads(_receive(channel, int.from_bytes(size, "little"))))
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
        os.close(stream)
    spawn.spawn_main(pipe_handle=channel.detach(), tracker_fd=tracker_fd)


def _receive(channel: socket.socket, size: int) -> bytes:
    with io.BytesIO() as out:
        while out.tell() < size and (part := channel.recv(size - out.tell())):
            out.write(part)
        return out.getvalue()


GIVE_UP_POLL_S = 0.1
PREFIX = re.compile(r"^(\([^)]*pid=\d+[^)]*\)\s*)?([A-Z]+ \d\d-\d\d [\d:]+ \[[^\]]*\]\s*)?")
"""``(EngineCore pid=7) ERROR 11-20 10:00:00 [core.py:1] ``"""
EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)): (.+)")
FATAL = re.compile(r"fatal error|failed to start|hit an exception")
"""What vLLM writes above the traceback that ends a process; a refused request has none."""
SEQUEL = re.compile(
    r"root cause above|initialization failed|Engine core proc|EngineDeadError|WorkerProc|cancelled"
)
"""Messages that only report that something else has failed."""
IGNORED = ("Warning", "KeyboardInterrupt", "SystemExit")
PRIVATE = re.compile(
    r"prompt|token_ids|messages|Dumping|structured_output|logit_bias", re.IGNORECASE
)
"""Lines that may hold a part of a request."""
NOISE = re.compile(r"^\[ *\d+\.\d s\]|it/s\]|Warning\b|^W\d{4} |^\[W\d{4} ")
"""Progress and warnings of a start."""
LONGEST = 240
"""Characters shown of one line."""


class ChildLog:
    """The last ``keep`` lines of children started inside ``capture``; ``echo`` shows them too."""

    def __init__(self, keep: int = 400, echo: bool = True) -> None:
        self._echo = echo
        self._lines: deque[str] = deque(maxlen=keep)
        self._reader: threading.Thread | None = None

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Children started inside write to this log, for as long as they live."""
        read, write = os.pipe()
        out, err = os.dup(1), os.dup(2)
        sys.stdout.flush()
        sys.stderr.flush()
        self._reader = threading.Thread(
            target=self._read, args=(read, os.dup(err)), name="engine-log", daemon=True
        )
        self._reader.start()
        os.dup2(write, 1)
        os.dup2(write, 2)
        os.close(write)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(out, 1)
            os.dup2(err, 2)
            os.close(out)
            os.close(err)

    def join(self, timeout_s: float) -> None:
        """Wait until the children have ended and all they wrote is here, or time is up."""
        if self._reader is not None:
            self._reader.join(timeout_s)

    def tail(self, lines: int = 40) -> str:
        return "\n".join(list(self._lines)[-lines:])

    def redacted_tail(self, lines: int = 20) -> tuple[str, ...]:
        """The end of the log, bounded, without lines that may hold a part of a request."""
        return redact_tail(list(self._lines), lines)

    def find_cause(self) -> str:
        """The first exception in the log that is a cause and not a sequel; else empty."""
        return find_cause(list(self._lines))

    def _read(self, read: int, forward: int) -> None:
        with os.fdopen(read, "rb") as source, os.fdopen(forward, "wb", buffering=0) as sink:
            for line in source:
                if self._echo:
                    sink.write(line)
                self._lines.append(line.decode("utf-8", "replace").rstrip("\n"))


def find_cause(lines: Sequence[str]) -> str:
    """``ValueError: there is no module named fc_norm`` out of a log full of tracebacks."""
    marks = (at for at, line in enumerate(lines) if FATAL.search(line))
    for line in lines[next(marks, 0) :]:
        found = EXCEPTION.match(PREFIX.sub("", line).strip())
        if found and not found[1].endswith(IGNORED) and not SEQUEL.search(line):
            return f"{found[1].rpartition('.')[2]}: {found[2]}"
    return ""


def redact_tail(lines: Sequence[str], most: int) -> tuple[str, ...]:
    stripped = (PREFIX.sub("", line).rstrip() for line in lines)
    fit = [line[:LONGEST] for line in stripped if line and not _is_redacted(line)]
    return tuple(fit[-most:])


def _is_redacted(line: str) -> bool:
    return PRIVATE.search(line) is not None or NOISE.search(line) is not None


def redact_cause(cause: str) -> str:
    """The exception, bounded; its type alone where the message may hold a part of a request."""
    return cause.partition(":")[0] if PRIVATE.search(cause) else cause[:LONGEST]


async def kill_loading(
    loading: asyncio.Task[Any], others: set[BaseProcess], shutdown_s: float
) -> None:
    """End a thread that loads an AsyncLLM: it ends when the engine process does."""
    while not loading.done():
        for child in set(multiprocessing.active_children()) - others:
            child.kill()
        await asyncio.wait({loading}, timeout=GIVE_UP_POLL_S)
    if not loading.exception():
        await asyncio.to_thread(loading.result().shutdown, shutdown_s)
