"""Real vLLM servers of the demo model, as `docs/workers.md` starts them."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson

from tests.conftest import ROOT, SAMPLE

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
    "--scheduler-cls=engine.vllm_backend.scheduler.server_scheduler",
    "--worker-extension-cls=engine.vllm_backend.worker.DepthWorker",
    "--middleware=engine.vllm_backend.steering.AllowSteering",
)
STOCK = ("--per-request-spec-decode-metrics=detailed",)
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
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
)
"""What a gateway in front of such workers is started with, besides their addresses."""


PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class WorkerProcess:
    url: str
    process: subprocess.Popen[bytes]

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        return read_metric(httpx.get(f"{self.url}/metrics").text, name)

    def kill(self) -> None:
        """It and the engine it started, at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def read_metric(page: str, name: str) -> float:
    """The sum of a metric's samples."""
    return sum(float(value) for found, _, value in SAMPLE.findall(page) if found == name)


def vllm_worker(
    log: Path, arguments: Sequence[str] = OURS
) -> AbstractContextManager[WorkerProcess]:
    """Until the block ends; it is still loading when the block begins."""
    port = free_port()
    command = ["-m", "vllm.entrypoints.openai.api_server", f"--port={port}"]
    return _started(log, port, [*command, *ARGUMENTS, *arguments])


def scripted_worker(log: Path) -> AbstractContextManager[WorkerProcess]:
    """The same without vLLM: see ``tests.scripted_worker``."""
    port = free_port()
    return _started(log, port, ["-m", "tests.scripted_worker", str(port)])


@contextmanager
def _started(log: Path, port: int, arguments: Sequence[str]) -> Iterator[WorkerProcess]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=out,
            stderr=out,
            cwd=ROOT,
            env=os.environ | ENVIRONMENT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    worker = WorkerProcess(f"http://127.0.0.1:{port}", process)
    try:
        yield worker
    finally:
        if process.poll() is None:
            worker.kill()


def _die_with_parent() -> None:
    """A test run that is killed leaves no server behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
