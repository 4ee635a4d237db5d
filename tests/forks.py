"""Forks gateways, plain vLLM servers and engine processes from a process that has imported vLLM.
The imports would take longer than the rest of a start: some 20 CPU seconds of a gateway's 30.

It reads a packet of JSON for each process from a socket: the arguments of ``python``, the
environment and limits, with three standard streams or the two descriptors of a fork server. It
answers with the process id. A process that has ended stays as a zombie; ``Forked`` reads its
status.

Nothing but ``tests`` knows of this. A gateway starts its engine through the class ``Popen`` of
``multiprocessing.popen_spawn_posix``, which is replaced here. An engine process is a child of a
fork server, which is a child of the gateway. A process is started as usual if libraries would have
read other variables when they were loaded.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import multiprocessing
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from multiprocessing import (
    connection,
    forkserver,
    popen_forkserver,
    popen_spawn_posix,
    process,
    reduction,
    spawn,
)
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
SERVER = "vllm.entrypoints.openai.api_server"
ENGINES = "vllm.v1.engine.utils"
"""Starts a server's engine process."""
IMPORTED = (
    SERVER,
    ENGINES,
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.llama_eagle3",
    "vllm.parser.engine.registered_adapters",
    "sqlalchemy.dialects.sqlite",
)
"""Nothing of ours: a server finds its scheduler and its extensions by its own arguments."""
OVERLAY = next((one for one in sys.path if Path(one).name.startswith(".vllm-")), "")
"""Folder of another vLLM than .venv's (``make test VLLM=0.33``), which stands before it."""
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""True on the code path of GPUs (``make test-gpu-path``), whose PYTHONPATH has what it needs."""
SOURCES = (
    os.environ["PYTHONPATH"]
    if INTERPRETED
    else os.pathsep.join(filter(None, (str(ROOT / "src"), OVERLAY)))
)
"""PYTHONPATH of the processes that tests start."""
GATEWAY_ENVIRONMENT = {
    "PYTHONPATH": SOURCES,
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_AOT_COMPILE": "0",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
"""Variables that a gateway of the demo sets before it imports vLLM."""
READ_AT_LOAD = (
    "GOMP_", "KMP_", "MALLOC_", "OMP_", "TRITON_INTERPRET", "VLLM_USE_V2_",
)  # fmt: skip
"""Prefixes of variables that libraries read once, when they are loaded. None and 0 are the same."""
STOP = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM}
"""Sent to the group of a gateway. Its fork server outlives them, as an engine does."""
PROBE = "eaglegate.engine.vllm_backend.grammar_probe"
STARTING = "python --multiprocessing-fork"
"""Title of an engine process before it names itself, which is the one of a spawned process."""
MAIN = "from tests.forks import main; main()"
"""Not ``__main__``, which the module of a forked process becomes."""
PR_SET_PDEATHSIG = 1
LARGEST_PACKET = 1 << 17
DESCRIPTORS = 3


class Forked:
    """A process that another one has forked, with the part of ``subprocess.Popen`` that tests use.
    ``stdout`` is the end to read of its standard output, or None."""

    def __init__(self, pid: int, stdout: Any = None) -> None:
        self.pid = pid
        self.stdout = stdout

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        """The exit status, once the process has ended."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return os.waitstatus_to_exitcode(int(fields[-1])) if fields[0] == "Z" else None

    def wait(self, timeout: float = 30.0) -> int:
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.01)
        if self.stdout is not None:
            self.stdout.close()
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Limits(NamedTuple):
    """Limits of a gateway and its engine; zero for none."""

    files: int = 0

    def apply(self) -> None:
        """Limit this process and those that it will start."""
        if self.files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.files, self.files))


NO_LIMITS = Limits()


class Forks:
    """The process that forks, begun before the first server and ended with the tests.

    It ends when its socket is closed, so also when the tests are killed. A signal at the death of
    its parent would come too early: Linux sends it when the thread ends that started the process.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-c", MAIN, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=folder,
            env=os.environ | variables,
            start_new_session=True,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        atexit.register(self._end)

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def fork(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        descriptors: Sequence[int],
        limits: Limits = NO_LIMITS,
    ) -> int:
        """Return the process id. The first call waits until vLLM is imported."""
        packet = json.dumps([list(arguments), dict(variables), limits]).encode()
        assert len(packet) < LARGEST_PACKET
        with self._lock:
            socket.send_fds(self._socket, [packet], list(descriptors))
            pid = self._socket.recv(32)
        assert pid, "the process that imports vLLM for the servers ended"
        return int(pid)


@cache
def gateway_forks() -> Forks:
    """Return the process that has imported vLLM for all gateways, plain servers and engines of this
    process."""
    return Forks(ROOT, GATEWAY_ENVIRONMENT)


def can_fork(variables: Mapping[str, str]) -> bool:
    """Return True if a gateway or a plain server with these variables may be forked: they may set
    nothing that is read when libraries are loaded, but to the demo's value."""
    wanted = GATEWAY_ENVIRONMENT | variables
    return _fits(os.environ | GATEWAY_ENVIRONMENT, wanted)


def fork_python(
    command: Sequence[str],
    variables: Mapping[str, str],
    errors: Any,
    limits: Limits = NO_LIMITS,
) -> Forked:
    """Start ``python -m MODULE ...`` with its standard output in a pipe."""
    read, write = os.pipe()
    nowhere = os.open(os.devnull, os.O_RDONLY)
    try:
        streams = [nowhere, write, errors.fileno()]
        pid = gateway_forks().fork(command, variables, streams, limits)
    finally:
        os.close(nowhere)
        os.close(write)
    return Forked(pid, os.fdopen(read))


def run_python(command: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run ``python -m MODULE ...`` to its end, like ``subprocess.run``."""
    with tempfile.TemporaryFile("w+") as errors:
        forked = fork_python(command, os.environ, errors)
        ended = threading.Timer(timeout, forked.kill)
        ended.start()
        output = forked.stdout.read()
        ended.cancel()
        status = forked.wait()
        errors.seek(0)
        return subprocess.CompletedProcess(command, status, output, errors.read())


def fork_engines() -> None:
    """Fork the engines that this process starts, from now on, with a fork server that the first one
    begins."""
    inspect_models_here()
    _replace_spawning(os.environ | GATEWAY_ENVIRONMENT, _begin_fork_server)


@cache
def _begin_fork_server() -> None:
    listener, alive_read = _open_fork_server()
    gateway_forks().fork((), {}, [listener.fileno(), alive_read])
    listener.close()
    os.close(alive_read)


def inspect_models_here() -> None:
    """vLLM starts a process that imports it, to spare this one a GPU's memory, for every class of
    models that its cache does not know, or knows of another version. Two versions that fill the
    cache in turns would do so at every start."""
    registry = import_module("vllm.model_executor.models.registry")
    registry._run_in_subprocess = lambda inspect: inspect()
    registry._LazyRegisteredModel._save_modelinfo_to_cache = lambda *_: None


def die_with_parent() -> None:
    """A test run that is killed leaves no server behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _fits(loaded: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    names = {name for name in (*loaded, *wanted) if name.startswith(READ_AT_LOAD)}
    return all(loaded.get(name, "0") == wanted.get(name, "0") for name in names)


def _open_fork_server() -> tuple[socket.socket, int]:
    """Prepare ``multiprocessing`` for a fork server, and return the two descriptors that it needs:
    its listener, and a pipe that ends with all its clients."""
    listener = socket.socket(socket.AF_UNIX)
    address = connection.arbitrary_address("AF_UNIX")
    listener.bind(address)
    listener.listen()
    alive_read, alive_write = os.pipe()
    server = forkserver._forkserver  # type: ignore[attr-defined]
    server._forkserver_address = address
    server._forkserver_alive_fd = alive_write
    server.ensure_running = lambda: None
    return listener, alive_read


def _replace_spawning(loaded: Mapping[str, str], prepare: Callable[[], None]) -> None:
    """Fork every engine process whose variables are those with which libraries were loaded."""
    spawned = popen_spawn_posix.Popen

    def start(child: process.BaseProcess) -> Any:
        if type(child).__name__ != "EngineProcess" or not _fits(loaded, os.environ):
            return spawned(child)
        prepare()
        return ForkedPopen(child)

    popen_spawn_posix.Popen = start  # type: ignore[misc, assignment]


class ForkedPopen(popen_forkserver.Popen):
    """Handle of a forked process. Several threads ask for its exit status, which can be read only
    once."""

    def __init__(self, child: process.BaseProcess) -> None:
        self._lock = threading.Lock()
        preparation = spawn.get_preparation_data
        spawn.get_preparation_data = lambda name: {  # type: ignore[assignment]
            "surroundings": Surroundings(),
            **preparation(name),
        }
        try:
            super().__init__(child)
        finally:
            spawn.get_preparation_data = preparation

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
    die_with_parent()
    adopt_environment(variables)
    for number, stream in enumerate(streams, 1):
        descriptor = stream.detach()
        os.dup2(descriptor, number)
        os.close(descriptor)
    if os.environ.get("ASYNCHRONOUS_SCHEDULING") == "1":  # see tests/gpu_path/sitecustomize.py
        own = import_module("tests.gpu_path.sitecustomize")
        own.schedule_asynchronously(import_module("vllm.platforms.cpu"))
    import_module("setproctitle").setproctitle(STARTING)


def adopt_environment(variables: Mapping[str, str]) -> None:
    """Unchanged variables are not written again, because ``setproctitle`` finds its memory by the
    first one."""
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables.items() - os.environ.items())


def leave_trials_cold(probe: Any) -> None:
    """The process that tries grammars imports torch beside the first requests; most tests need
    none. Only a gateway that is not forked starts it early."""

    async def warm_up(_: Any) -> None:
        pass

    probe.GrammarProbe.warm_up = warm_up


def serve_forks(listener: int, alive_read: int) -> None:
    """Become a fork server of ``multiprocessing``. Never returns."""
    die_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)
    try:
        forkserver.main(listener, alive_read, [])
    finally:
        os._exit(0)


def fork_server_of_gateway() -> None:
    """Leave a fork server beside this process before it imports anything of ours."""
    loaded = dict(os.environ)
    listener, alive_read = _open_fork_server()
    if os.fork() == 0:
        os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
        serve_forks(listener.fileno(), alive_read)
    listener.close()
    os.close(alive_read)
    _replace_spawning(loaded, lambda: None)


def become(arguments: Sequence[str], variables: Mapping[str, str], descriptors: list[int]) -> None:
    """Become a fork server, a plain server or another module of Python."""
    if not arguments:
        serve_forks(*descriptors)
    os.setsid()
    die_with_parent()
    plain = SERVER in arguments
    if not plain:
        fork_server_of_gateway()
        own = import_module("tests.gpu_path.sitecustomize")
        sys.meta_path.insert(0, own.AfterImport(PROBE, leave_trials_cold))
    adopt_environment(variables)
    added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [folder for folder in added if folder and folder not in sys.path]
    import_module("vllm.logger")._configure_vllm_root_logger()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if plain:
        utils = import_module(ENGINES)
        utils.get_mp_context = lambda: multiprocessing.get_context("fork")  # as on GPUs
    _, module, *sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    # The first engine of the tests starts this process while it blocks the signals in STOP.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    before = dict(os.environ)
    gc.disable()
    for name in IMPORTED:
        import_module(name)
    inspect_models_here()
    # Plain engines use AMX without asking Linux for its registers, as worker.py does for ours.
    import_module("torch").cpu._init_amx()
    del sys.modules[SERVER]  # a server runs it as ``__main__``
    gc.freeze()  # a collection in a server would copy all the pages it shares
    gc.enable()
    set_by_imports = dict(os.environ.items() - before.items())
    orders = socket.socket(fileno=int(sys.argv[1]))
    while True:
        packet, descriptors, _, _ = socket.recv_fds(orders, LARGEST_PACKET, DESCRIPTORS)
        if not packet:
            return
        arguments, variables, limits = json.loads(packet)
        if (pid := os.fork()) == 0:
            orders.close()
            Limits(*limits).apply()
            become(arguments, set_by_imports | variables, descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        orders.send(str(pid).encode())
