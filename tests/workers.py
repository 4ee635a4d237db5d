"""Real vLLM servers of the demo model, as `docs/workers.md` starts them."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import httpx
import orjson

from tests.conftest import ROOT, SAMPLE
from tests.forks import SERVER, SOURCES, Forked, can_fork, die_with_parent, gateway_forks

DEMO = ROOT / "engine" / "demo"
MODEL = str(DEMO / "target")
SPECULATION = {
    "method": "eagle3",
    "model": str(DEMO / "eagle3_1"),
    "num_speculative_tokens": 3,
}
ARGUMENTS = (
    f"--model={MODEL}",
    "--served-model-name=demo",
    "--host=127.0.0.1",
    "--dtype=float32",
    "--enable-scale-out",
    "--enable-prompt-tokens-details",
    f"--speculative-config={orjson.dumps(SPECULATION).decode()}",
    "--reasoning-parser=qwen3",
    '--structured-outputs-config={"backend": "xgrammar", "disable_any_whitespace": true}',
    "--enforce-eager",
    "--distributed-executor-backend=uni",
    "--kv-cache-memory-bytes=1073741824",
)
OURS = (
    "--scheduler-cls=eaglegate.engine.Scheduler",
    "--worker-extension-cls=eaglegate.engine.DepthWorker",
    "--middleware=eaglegate.engine.AllowSteering",
)
EXTENSION = OURS[1]
REASONING = "--reasoning-parser=qwen3"
PLANNING = ("--scheduler-cls=eaglegate.engine.PlanningScheduler", *OURS[1:])
STOCK = ("--per-request-spec-decode-metrics=detailed",)
ENVIRONMENT = {
    "PYTHONPATH": SOURCES,
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
GATEWAY = (
    MODEL,
    "--served-model-name=demo",
    "--tool-call-parser=hermes",
    "--reasoning-parser=qwen3",
    "--responses-store=none",
    "--upstream-probe-s=0",
)
"""Arguments of a gateway in front of such workers, without the workers' addresses."""

START_S = 300.0


@dataclass
class WorkerProcess:
    """``log`` holds what it wrote, all its starts after each other."""

    url: str
    log: Path
    arguments: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of its own. With another PYTHONPATH, perhaps for another vLLM, it is not forked."""
    process: subprocess.Popen[bytes] | Forked = field(init=False)

    def __post_init__(self) -> None:
        self._start()

    def _start(self) -> None:
        with self.log.open("ab") as out:
            variables = os.environ | ENVIRONMENT | self.variables
            forks = variables["PYTHONPATH"] == SOURCES and can_fork(variables)
            if SERVER in self.arguments and forks:
                streams = [os.open(os.devnull, os.O_RDONLY), out.fileno(), out.fileno()]
                self.process = Forked(gateway_forks().fork(self.arguments, variables, streams))
                os.close(streams[0])
                return
            self.process = subprocess.Popen(
                [sys.executable, *self.arguments],
                stdout=out,
                stderr=out,
                cwd=ROOT,
                env=variables,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def until_healthy(self) -> None:
        """Wait until the worker answers. One that ends first is started once more, and its output
        becomes a warning."""
        started_again = False
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert time.monotonic() < deadline, f"{self.url} does not start: {self._last_words()}"
            if (ended := self.process.poll()) is not None:
                said = f"{self.url} ended with {ended} as it started: {self._last_words()}"
                assert not started_again, said
                warnings.warn(said, stacklevel=2)
                started_again = True
                self._start()
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.TransportError:
            return False

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        return read_metric(httpx.get(f"{self.url}/metrics").text, name)

    def kill(self) -> None:
        """Kill the worker and the engine it started, at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def read_metric(page: str, name: str) -> float:
    """The sum of a metric's samples."""
    return sum(float(value) for found, _, value in SAMPLE.findall(page) if found == name)


def vllm_worker(
    log: Path, arguments: Sequence[str] = OURS, **variables: str
) -> AbstractContextManager[WorkerProcess]:
    """Run a worker until the block ends; it may still be loading when the block begins."""
    command = ["-m", SERVER, *ARGUMENTS, *arguments, "--port"]
    return _until_the_end(log, command, variables)


def recipe_worker(
    log: Path, arguments: Sequence[str], tuned_for_cpus: bool = True
) -> AbstractContextManager[WorkerProcess]:
    """A plain vLLM server of the demo: a line of `docs/workers.md`, and ``arguments``.

    Its cache is a quarter of that line's, so that several fit on any machine.
    """
    page = (ROOT / "docs" / "workers.md").read_text("utf-8")
    serve = r"```sh\n(?:vllm serve|python -m \S+ --model) MODEL --port 8100 (.*?)```"
    anywhere, on_cpus, _ = re.findall(serve, page, re.S)
    line = on_cpus if tuned_for_cpus else anywhere
    line = line.replace("\\\n", " ").replace('"DRAFT"', f'"{SPECULATION["model"]}"')
    command = ["-m", SERVER, *ARGUMENTS[:4], *shlex.split(line)]
    small = "--kv-cache-memory-bytes=268435456"
    return _until_the_end(log, [*command, small, *arguments, "--port"])


def scripted_worker(log: Path) -> AbstractContextManager[WorkerProcess]:
    """The same without vLLM: see ``tests.scripted_worker``."""
    return _until_the_end(log, ["-m", "tests.scripted_worker"])


@contextmanager
def _until_the_end(
    log: Path, arguments: Sequence[str], variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[WorkerProcess]:
    with reserved_port() as port:
        worker = WorkerProcess(f"http://127.0.0.1:{port}", log, [*arguments, str(port)], variables)
        try:
            yield worker
        finally:
            if worker.process.poll() is None:
                worker.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def reserved_port() -> Iterator[int]:
    """A free port. Nobody is given it until the end, but who asks for it by number can listen."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def said(answer: dict) -> tuple:
    """Everything that a chat completion of one choice says."""
    (choice,) = answer["choices"]
    message = choice["message"]
    calls = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]
    return message["content"], message.get("reasoning"), calls, choice["finish_reason"]
