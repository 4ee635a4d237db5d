"""Servers of a GPU benchmark, started side by side on one card, and loads of streamed requests."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

from eaglegate.lab.benchmarks.client import Answer, StreamClient, write_post
from eaglegate.lab.benchmarks.wire import clock_of, free_port

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
GATEWAY = "eaglegate.server"
GATEWAY_READY = "/ready"
VLLM = "vllm.entrypoints.openai.api_server"
POLL_S = 0.25
STOP_LIMIT_S = 20.0
START_PART = re.compile(r'^eaglegate_start_seconds{part="([^"]+)"} (\S+)$', re.MULTILINE)


@dataclass
class Server:
    """A gateway, or vLLM's own server, in a process of its own with a log of its own."""

    name: str
    port: int
    admin_port: int
    process: subprocess.Popen[bytes]
    log: Path
    ready_path: str
    started: float
    ready_s: float = 0.0
    """Seconds from the start until it was ready; 0 before."""

    @classmethod
    def start(
        cls,
        name: str,
        out: Path,
        arguments: Sequence[str],
        module: str = GATEWAY,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        port, admin_port, log = free_port(), free_port(), out / f"{name}.log"
        command = [sys.executable, "-m", module, *arguments, f"--port={port}", "--host=127.0.0.1"]
        if module == GATEWAY:
            command[3:3] = ["serve"]
            command += [f"--admin-port={admin_port}", "--responses-store=none"]
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=file, env=os.environ | (environment or {})
            )
        ready_path = GATEWAY_READY if module == GATEWAY else "/health"
        return cls(name, port, admin_port, process, log, ready_path, time.monotonic())

    async def wait(self, limit_s: float) -> float:
        """Wait until the server is ready. Returns the seconds since its start.

        Raises RuntimeError with the end of its log if it ends or is not ready in time.
        """
        while not await asyncio.to_thread(self._is_ready):
            if self.process.poll() is not None or time.monotonic() - self.started > limit_s:
                end = self.log.read_text(errors="replace")[-1500:]
                raise RuntimeError(f"{self.name} did not start: {end}")
            await asyncio.sleep(POLL_S)
        return time.monotonic() - self.started

    def _is_ready(self) -> bool:
        with suppress(httpx.HTTPError):
            url = f"http://127.0.0.1:{self.port}{self.ready_path}"
            return httpx.get(url, timeout=1, trust_env=False).status_code == httpx.codes.OK
        return False

    def call(
        self, method: str, path: str, content: Mapping[str, Any] | None = None, limit_s: float = 60
    ) -> Any:
        """Return the decoded answer to a call of an operator or a client."""
        return json.loads(self._fetch(method, path, content, limit_s) or "null")

    def _fetch(
        self, method: str, path: str, content: Mapping[str, Any] | None, limit_s: float
    ) -> str:
        port = self.admin_port if path.startswith(("/admin", "/metrics")) else self.port
        url = f"http://127.0.0.1:{port}{path}"
        return httpx.request(method, url, json=content, timeout=limit_s, trust_env=False).text

    def cpu_s(self) -> float:
        """Return user and system time of the server's own process, without the engine's."""
        return time.clock_gettime(clock_of(self.process.pid))

    def count_wakes(self) -> int:
        """Return how often the server's main thread has gone to sleep since its start."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (row for row in status.splitlines() if row.startswith("voluntary_ctxt"))
        return int(line.split()[1])

    def read_start_parts(self) -> dict[str, float]:
        """Return the seconds of a gateway's start by part; empty for vLLM's own server."""
        if self.ready_path != GATEWAY_READY:
            return {}
        page = self._fetch("GET", "/metrics", None, 10)
        return {part: round(float(seconds), 1) for part, seconds in START_PART.findall(page)}

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            for pid, _ in list_descendants(self.process.pid):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()


def list_descendants(pid: int) -> Iterator[tuple[int, str]]:
    """Yield the processes below ``pid``, each with its title."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(folder.name))
    queue = parents.get(pid, [])
    while queue:
        child = queue.pop()
        queue += parents.get(child, [])
        with suppress(OSError):
            title = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ")
            yield child, title.decode(errors="replace")


def list_gpu_memory() -> dict[int, int]:
    """Return MiB of GPU memory by process id; empty without a GPU."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        rows = subprocess.run(query, capture_output=True, text=True, timeout=10).stdout.splitlines()
        return {int(pid): int(mib) for pid, mib in (row.split(",") for row in rows)}
    return {}


@dataclass(frozen=True)
class Lap:
    """One load on one server."""

    tokens: int
    seconds: float
    user_tokens_s: float
    """Tokens per second of the median stream, from its first to its last token."""
    first_ms: float
    """Milliseconds to the first token, median."""
    cpu_us: float
    """CPU of the server's process, in microseconds per token."""
    chunks: float
    """Server-sent events per token."""
    wakes_s: float
    """Wake-ups of the server's main thread per second."""

    def describe(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "seconds": round(self.seconds, 2),
            "tokens_s": round(self.tokens / self.seconds, 1),
            "user_tokens_s": round(self.user_tokens_s, 1),
            "first_ms": round(self.first_ms, 1),
            "cpu_us": round(self.cpu_us, 1),
            "chunks": round(self.chunks, 3),
            "wakes_s": round(self.wakes_s),
        }


async def run_lap(
    server: Server, bodies: Sequence[Mapping[str, Any]], streams: int,
    path: str = CHAT, limit_s: float = math.inf,
) -> Lap:  # fmt: skip
    """Send all bodies, ``streams`` at a time, and none after ``limit_s``.

    Raises RuntimeError if an answer has an error or is cut off.
    """
    queue = [write_post(path, json.dumps({**STREAMED, **body}).encode()) for body in bodies]
    queue.reverse()
    answers: list[Answer] = []

    async def send(client: StreamClient) -> None:
        while queue and time.perf_counter() - start < limit_s:
            answers.append(await client.send(queue.pop()))

    clients = [await StreamClient.connect(server.port) for _ in range(streams)]
    cpu_s, num_wakes, start = server.cpu_s(), server.count_wakes(), time.perf_counter()
    try:
        await asyncio.gather(*map(send, clients))
    finally:
        for client in clients:
            client.close()
    seconds = time.perf_counter() - start
    cpu_s, num_wakes = server.cpu_s() - cpu_s, server.count_wakes() - num_wakes
    tokens = sum(answer.count_tokens() for answer in answers)
    rates = [
        (answer.count_tokens() - 1) / sum(answer.gaps_s)
        for answer in answers
        if answer.count_tokens() > 5 and sum(answer.gaps_s)
    ]
    return Lap(
        tokens=tokens,
        seconds=seconds,
        user_tokens_s=statistics.median(rates) if rates else 0.0,
        first_ms=1000 * statistics.median(answer.first_s for answer in answers),
        cpu_us=1e6 * cpu_s / tokens,
        chunks=sum(answer.num_chunks for answer in answers) / tokens,
        wakes_s=num_wakes / seconds,
    )


STREAMED = {"model": "demo", "stream": True, "stream_options": {"include_usage": True}}


async def complete(
    server: Server, bodies: Sequence[Mapping[str, Any]], at_once: int
) -> list[dict[str, Any]]:
    """Return the answers to all bodies, in their order, each with its text or its error."""
    places = asyncio.Semaphore(at_once)

    async def send(body: Mapping[str, Any]) -> dict[str, Any]:
        async with places:
            answer = await asyncio.to_thread(
                server.call, "POST", CHAT, {"model": "demo", **body}, 180
            )
        if "choices" not in answer:
            return {"error": str(answer)[:300]}
        (choice,) = answer["choices"]
        return {"text": json.dumps(strip(choice["message"])), "finish": choice["finish_reason"]}

    return list(await asyncio.gather(*map(send, bodies)))


def strip(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without the ids of its calls, which are drawn anew for each answer."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return {**message, "tool_calls": calls}
