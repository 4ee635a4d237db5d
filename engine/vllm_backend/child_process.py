"""The engine's child processes: their start, their end and their log.

An engine process is spawned, or forked from a fork server. It is never forked from the gateway, as
vLLM does on GPUs, because the child would hold the gateway's listening socket, its connections and
the descriptor through which asyncio receives signals. A spawned process repeats imports that took
the gateway seconds. ``EnginePreload`` is a fork server that does them once on a CPU, in parallel
with the gateway. Engines are forked from it, also after a restart.

Engine processes block the stop signals (``engine/stop_signals.py``), so ``terminate`` sends
another.

vLLM's engine core does not notice that its front end was killed, and waits for requests forever. At
exit, Python searches all loaded objects for cycles, for longer than vLLM waits. Therefore the
children exit with their parent, and without that search.

vLLM's parent process reports "see root cause above", but the cause is in a child's output. Children
inherit the standard streams, so these point to a pipe while children start. A thread passes every
line on to standard error and keeps the last lines for error reports.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import importlib.util
import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import (
    connection,
    context,
    forkserver,
    popen_forkserver,
    popen_spawn_posix,
    reduction,
    resource_tracker,
    spawn,
)
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from eaglegate.engine.logs import LineFormat, pass_line
from eaglegate.engine.orphan import die_with_parent, kill_with_parent
from eaglegate.engine.stop_signals import (
    END,
    block_stop_signals,
    children_block_stop_signals,
    end_on_request,
)
from eaglegate.engine.vllm_backend import list_cores
from eaglegate.engine.vllm_contract import Area, find_broken

log = logging.getLogger(__name__)

OPENMP = re.compile("lib(omp|gomp|iomp)")
READ_AT_LOAD = (
    "GOMP_", "HF_", "KMP_", "LD_", "MALLOC_", "MKL_", "NUMEXPR_", "OMP_", "PYTHON",
    "TORCHINDUCTOR_COMPILE_", "TORCHINDUCTOR_CPP_", "TRANSFORMERS_",
)  # fmt: skip
"""Prefixes of variables that libraries read only once, when they are loaded."""
PRELOADED = "eaglegate.engine.vllm_backend.preload"
"""The module that the fork server imports."""
ENDED = re.compile(r"Failed core proc\(s\): {(?:.*?: -(\d+))?")
"""vLLM's report of an engine process that ended before it was ready. The signal may be unknown.
"""
QUIET = "ignore:resource_tracker:UserWarning"
"""Warning filter for Python's semaphore tracker, which reports its cleanup after a killed
process."""
GIVE_UP_POLL_S = 0.1
PREFIX = re.compile(r"^(\([^)]*pid=\d+[^)]*\)\s*)?([A-Z]+ \d\d-\d\d [\d:]+ \[[^\]]*\]\s*)?")
"""Start of a vLLM line: ``(EngineCore pid=7) ERROR 11-20 10:00:00 [core.py:1] ``"""
EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)): (.+)")
FATAL = re.compile(r"fatal error|failed to start|hit an exception")
"""Lines that vLLM writes before the traceback that ends a process, but not for a refused
request."""
SEQUEL = re.compile(
    r"root cause above|initialization failed|Engine core proc|EngineDeadError|WorkerProc|cancelled"
)
"""Messages that only report another failure."""
IGNORED = ("Warning", "KeyboardInterrupt", "SystemExit")
PRIVATE = re.compile(
    r"prompt|token_ids|messages|Dumping|structured_output|logit_bias", re.IGNORECASE
)
"""Lines that may hold part of a request."""
NOISE = re.compile(r"^\[ *\d+\.\d s\]|it/s\]|Warning\b|^W\d{4} |^\[W\d{4} ")
"""Progress lines and warnings during a start."""
LONGEST = 240
"""Most characters shown of one line."""


def exit_with_parent() -> None:
    """End a process of ``multiprocessing`` together with its parent. Do nothing in other
    processes."""
    if multiprocessing.parent_process() is not None:
        atexit.register(gc.freeze)
        die_with_parent()


class ChildLog:
    """The last ``keep`` lines of children started inside ``capture``. ``echo`` also writes them."""

    def __init__(self, keep: int = 400, echo: LineFormat | None = pass_line) -> None:
        self._echo = echo
        self._lines: deque[str] = deque(maxlen=keep)
        self._reader: threading.Thread | None = None

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Redirect the output of children started inside the context to this log, for their whole
        life."""
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
        """Wait until the children have ended and their output was read, up to the timeout."""
        if self._reader is not None:
            self._reader.join(timeout_s)

    def tail(self, lines: int = 40) -> str:
        return "\n".join(list(self._lines)[-lines:])

    def redacted_tail(self) -> tuple[str, ...]:
        return redact_tail(list(self._lines), 20)

    def find_cause(self) -> str:
        """Return the first exception in the log that is a cause, not a consequence; else empty."""
        return find_cause(list(self._lines))

    def _read(self, read: int, forward: int) -> None:
        with os.fdopen(read, "rb") as source, os.fdopen(forward, "wb", buffering=0) as sink:
            for line in source:
                if self._echo is not None:
                    with suppress(OSError):  # children must never wait for a closed log
                        sink.write(self._echo(line))
                self._lines.append(line.decode("utf-8", "replace").rstrip("\n"))


def find_cause(lines: Sequence[str]) -> str:
    """Return the cause in a log full of tracebacks, such as ``ValueError: there is no module
    fc_norm``."""
    marks = (at for at, line in enumerate(lines) if FATAL.search(line))
    for line in lines[next(marks, 0) :]:
        found = EXCEPTION.match(PREFIX.sub("", line).strip())
        if found and not found[1].endswith(IGNORED) and not SEQUEL.search(line):
            return f"{found[1].rpartition('.')[2]}: {found[2]}"
    return ""


def redact_tail(lines: Sequence[str], most: int) -> tuple[str, ...]:
    """Return the end of a log, bounded, without lines that may hold part of a request."""
    stripped = (PREFIX.sub("", line).rstrip() for line in lines)
    fit = [
        line[:LONGEST]
        for line in stripped
        if line and not (PRIVATE.search(line) or NOISE.search(line))
    ]
    return tuple(fit[-most:])


def redact_cause(cause: str) -> str:
    """Return the exception, bounded; only its type if the message may hold part of a request."""
    return cause.partition(":")[0] if PRIVATE.search(cause) else cause[:LONGEST]


async def kill_loading(
    loading: asyncio.Task[Any], others: set[BaseProcess], shutdown_s: float
) -> None:
    """End a thread that loads an AsyncLLM by killing the engine process that it waits for."""
    while not loading.done():
        for child in set(multiprocessing.active_children()) - others:
            child.kill()
        await asyncio.wait({loading}, timeout=GIVE_UP_POLL_S)
    if not loading.exception():
        await asyncio.to_thread(loading.result().shutdown, shutdown_s)


class EnginePreload:
    """A fork server of ``multiprocessing`` that imports vLLM and forks engines.

    Libraries read some environment variables when they are loaded. If an engine needs other values
    than the fork server had, it is spawned instead, as in vLLM.
    """

    def __init__(self, variables: Mapping[str, str], module: str = PRELOADED) -> None:
        """Start the fork server. ``variables`` is the expected environment of engines. Raises
        OSError."""
        self._closed = False
        self._executable = spawn.get_executable()
        self._variables = select_read_at_load(variables)
        with replace_environment({"PYTHONWARNINGS": QUIET}):
            resource_tracker.ensure_running()
        forkserver.set_forkserver_preload([module])
        with replace_environment(variables), children_block_stop_signals():
            forkserver.ensure_running()

    def close(self) -> None:
        """End the fork server and its forked processes. Later engines are spawned."""
        self._closed = True
        pid: int | None = getattr(forkserver._forkserver, "_forkserver_pid", None)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def fits(self) -> bool:
        """Return True if the fork server's libraries read the same variables as an engine's would
        now."""
        now = select_read_at_load(os.environ)
        changed = sorted({name for name, _ in self._variables.items() ^ now.items()})
        if changed:
            log.debug("engine process spawned instead of forked: %s changed", ", ".join(changed))
        return not (changed or self._closed) and spawn.get_executable() == self._executable


def create_context(preload: EnginePreload | None) -> context.SpawnContext:
    """Return the context with which vLLM creates its engine process."""
    made: Any = context.SpawnContext()
    made.Process = partial(EngineProcess, preload)
    return made  # type: ignore[no-any-return]


@contextmanager
def separate_engines(preload: EnginePreload | None) -> Iterator[None]:
    """Make vLLM start its engine process as an ``EngineProcess`` on every platform."""
    if Area.PRELOAD in find_broken():
        yield
        return
    from vllm.v1.engine import coordinator, utils

    originals = [(module, module.get_mp_context) for module in (utils, coordinator)]
    for module, original in originals:
        module.get_mp_context = partial(_replace_context, original, preload)
    try:
        yield
    finally:
        for module, original in originals:
            module.get_mp_context = original


def _replace_context(original: Callable[[], Any], preload: EnginePreload | None) -> Any:
    original()  # sets variables that the engine's own children need
    return create_context(preload)


class EngineProcess(context.SpawnProcess):
    """Engine process, forked from the fork server, or spawned if there is none or it does not
    fit."""

    def __init__(self, preload: EnginePreload | None, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._preload = preload

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with the surroundings first, so that a forked process reads the rest in
        them."""
        own = {name: value for name, value in vars(self).items() if name != "_preload"}
        forked = isinstance(context.get_spawning_popen(), ForkedPopen)
        return ({"surroundings": Surroundings()} if forked else {}) | own

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        resource_tracker.ensure_running()  # its start unblocks signals
        preload = process_obj._preload
        with children_block_stop_signals():
            if preload is not None and preload.fits():
                with suppress(OSError, EOFError):
                    return ForkedPopen(process_obj)
            return popen_spawn_posix.Popen(process_obj)

    def terminate(self) -> None:
        self._popen._send_signal(END)  # type: ignore[attr-defined]

    def run(self) -> None:
        block_stop_signals()
        end_on_request()
        if forkserver.get_inherited_fds() is not None:
            kill_with_parent()
        exit_with_parent()
        super().run()


class ForkedPopen(popen_forkserver.Popen):
    """Handle of a forked process. Several threads ask for its exit status, which can be read only
    once."""

    def __init__(self, process_obj: Any) -> None:
        self._lock = threading.Lock()
        super().__init__(process_obj)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        if flag != os.WNOHANG:
            connection.wait([self.sentinel])
        with self._lock:
            return super().poll()


class Surroundings:
    """This process's environment and standard streams. The process that unpickles them adopts
    them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return adopt_surroundings, (dict(os.environ), reduction.DupFd(1), reduction.DupFd(2))


def adopt_surroundings(variables: Mapping[str, str], *streams: Any) -> None:
    """Adopt an environment and streams. Unchanged variables are not written again, because
    ``setproctitle`` finds its memory by the first one."""
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables.items() - os.environ.items())
    for number, stream in enumerate(streams, 1):
        given = stream.detach()
        os.dup2(given, number)
        os.close(given)


def predict_engine_environment(demo: bool) -> dict[str, str]:
    """Predict the variables that this package and vLLM (``CpuPlatform``) will set for an engine
    process on a CPU, among those that libraries read when they are loaded.

    This is done before vLLM is imported. A wrong guess does no harm; see ``EnginePreload``.
    """
    wanted = {
        "NUMEXPR_MAX_THREADS": str(len(list_cores())),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1",
    }
    if preloaded := _list_preloaded(os.environ.get("LD_PRELOAD", "")):
        wanted["LD_PRELOAD"] = preloaded
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return (offline if demo else {}) | os.environ | wanted


def select_read_at_load(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(READ_AT_LOAD)}


@contextmanager
def replace_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Replace variables for processes that are started inside the context."""
    saved = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables.keys() - saved.keys():
            del os.environ[name]
        os.environ.update(saved)


def _list_preloaded(given: str) -> str:
    """Return PyTorch's own OpenMP unless another one is preloaded, and vLLM's allocator if it has
    one."""
    if not OPENMP.search(given):
        libraries = _find_libraries("torch", ("../torch.libs", "lib"), ("libgomp*.so*",))
        given = ":".join([*filter(None, [given]), *libraries[:1]])
    if "libtcmalloc" not in given:
        names = ("libtcmalloc_minimal*.so*", "libtcmalloc.so*")
        libraries = _find_libraries("vllm", ("libs",), names)
        given = ":".join([*libraries[:1], *filter(None, [given])])
    return given


def _find_libraries(package: str, folders: tuple[str, ...], names: tuple[str, ...]) -> list[str]:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return []
    places = [Path(os.path.normpath(Path(found.origin).parent / folder)) for folder in folders]
    return [str(file) for place in places for name in names for file in place.glob(name)]


def summarize_error(error: Exception) -> str:
    """Return the error as one sentence."""
    from pydantic import ValidationError

    if ended := ENDED.search(str(error)):
        by = f" by {signal.Signals(int(ended[1])).name}" if ended[1] else ""
        return f"the engine process ended{by} while it started (was there enough memory?)"
    if isinstance(error, ValidationError):
        return "; ".join(entry["msg"] for entry in error.errors())
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
