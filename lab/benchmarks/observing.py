"""Measure the cost of observing: server CPU per token with and without telemetry.

    python -m eaglegate.lab.benchmarks.observing  the scripted engine: HTTP and parsing alone
    python -m eaglegate.lab.benchmarks.observing --engine demo     vLLM with the built-in demo
    python -m eaglegate.lab.benchmarks.observing --what capture
        telemetry with a capture of all, and without

Telemetry includes the access log and request ids. One process serves two gateways that differ only
in telemetry, on two ports. One client streams from them in turn, round after round. Each round's
CPU time is read from the scheduler, for all threads of the server process. vLLM's engine core has a
separate process and is not included. Only the ratio counts. The scripted engine is the hard case,
because the denominator is the gateway alone.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import socket
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path as File
from typing import Any

import httpx
import uvicorn
from starlette.types import ASGIApp
from tokenizers import Tokenizer

from eaglegate.engine.base import Engine
from eaglegate.engine.scripted import ScriptedEngine, steps
from eaglegate.engine.speculation.policy import SpeculationPolicy
from eaglegate.engine.types import EngineInfo, EngineRequest, SpeculationInfo, Step
from eaglegate.features.capture.capture import RequestCapture
from eaglegate.features.capture.feature import CaptureSubscriber
from eaglegate.features.capture.files import GATHER_S, CaptureFolder
from eaglegate.features.capture.limits import CaptureLimits
from eaglegate.features.capture.redaction import Redactor, SaltedHashes, load_salt
from eaglegate.observability.engine import InstrumentedEngine
from eaglegate.observability.labels import TelemetrySettings
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.middleware import AccessLog, TelemetryMiddleware
from eaglegate.observability.pages import make_routes
from eaglegate.observability.telemetry import Telemetry
from eaglegate.server.apis.shared.gateway import Gateway
from eaglegate.server.app import create_app
from eaglegate.server.generation.grammar import ParserFactory
from eaglegate.server.generation.pipeline import Pipeline
from eaglegate.server.generation.served_model import ServedModel
from eaglegate.text.parsing.vocabulary import Vocabulary

DEMO = File(__file__).parents[2] / "engine" / "demo" / "target"
INFO = EngineInfo("demo", 4096, 2048, SpeculationInfo("eagle3.1", 3, summary="scripted"))
TEXT = "The engine proposes and the target decides what is kept of it. "
NAMES = ("off", "on")
SETTLE_S = 2 * GATHER_S
"""Seconds until the work that a round left to other threads has finished and is counted with it."""
OBSERVING, CAPTURE = ("observing", "capture")


class Renderer:
    """Renderer of one line per message."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], _tools: object, **_options: Any
    ) -> list[int]:
        text = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
        return self.encode(text, False)

    def encode(self, text: str, add_special_tokens: bool, _limits: object = None) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))


def make_scripted_engine(num_tokens: int) -> ScriptedEngine:
    """Make an engine that answers every request alike, in steps of one to four tokens."""
    ids = Renderer().encode(TEXT * num_tokens, False)[:num_tokens]
    dice = random.Random(3)
    lengths = [1, *(1 + min(3, int(dice.expovariate(0.7))) for _ in ids)]
    script = steps(ids, lengths)

    def play(_request: EngineRequest) -> list[Step]:
        return script

    return ScriptedEngine(play, INFO)


def demo() -> Engine:
    from eaglegate.engine.vllm_backend.arguments import make_demo_arguments
    from eaglegate.engine.vllm_backend.engine import VllmEngine

    return VllmEngine(make_demo_arguments())


def open_capture(folder: File) -> RequestCapture:
    """Open a capture of every request, in mode full."""
    files = CaptureFolder(folder, CaptureLimits())
    return RequestCapture(files, 1.0, SaltedHashes(load_salt(folder)), Redactor())


def make_app(engine: Engine, has_observers: bool, folder: File | None = None) -> ASGIApp:
    """Build the gateway like the composition root; with a folder it captures there."""
    renderer = Renderer()
    parsers = ParserFactory(Vocabulary.from_tokenizers(renderer.tokenizer), "hermes", "qwen3")
    model = ServedModel(("demo",), 3, True, {})
    gateway = Gateway(models=("demo",), created=1)
    if not has_observers:
        gateway.open(Pipeline(engine, INFO, renderer, parsers, model, SpeculationPolicy()))
        return create_app(gateway)
    telemetry = Telemetry(
        GROUPS, TelemetrySettings(models=("demo",), lanes=("speculative", "plain"))
    )
    gateway.observer = telemetry
    if folder is not None:
        capture = open_capture(folder)
        capture.set_decode(renderer.decode)
        CaptureSubscriber(capture, telemetry)
    observed_engine = InstrumentedEngine(engine, telemetry)
    gateway.open(Pipeline(observed_engine, INFO, renderer, parsers, model, SpeculationPolicy()))
    log = AccessLog(stream=os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    app = create_app(gateway, make_routes(telemetry))
    return TelemetryMiddleware(app, log, keep_bodies=folder is not None)


def serve(kind: str, subject: str, num_tokens: int, pipe: Connection) -> None:
    """Run the server process with both gateways, until the other end of the pipe is closed."""
    asyncio.run(
        _serve(make_scripted_engine(num_tokens) if kind == "scripted" else demo(), subject, pipe)
    )


async def _serve(engine: Engine, subject: str, pipe: Connection) -> None:
    await engine.start()
    servers, tasks, ports = [], [], []
    folder = tempfile.TemporaryDirectory()
    for is_on in (False, True):
        listener = socket.create_server(("127.0.0.1", 0))
        ports.append(listener.getsockname()[1])
        captures = subject == CAPTURE
        app = make_app(engine, is_on or captures, File(folder.name) if is_on and captures else None)
        config = uvicorn.Config(app, log_level="error", access_log=False, lifespan="off")
        servers.append(uvicorn.Server(config))
        tasks.append(asyncio.create_task(servers[-1].serve(sockets=[listener])))
    pipe.send(ports)
    with suppress(EOFError):
        await asyncio.to_thread(pipe.recv)
    for server in servers:
        server.should_exit = True
    await asyncio.gather(*tasks)
    await engine.aclose()
    folder.cleanup()


class Server:
    """Process that runs both gateways."""

    def __init__(self, kind: str, subject: str, num_tokens: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, remote = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(kind, subject, num_tokens, remote))
        self.process.start()
        remote.close()
        ports = self._pipe.recv()
        self.urls = {
            name: f"http://127.0.0.1:{port}" for name, port in zip(NAMES, ports, strict=True)
        }

    def close(self) -> None:
        self._pipe.close()
        self.process.join()

    def cpu_s(self) -> float:
        """Return the CPU time of all threads, to the nanosecond."""
        threads = File(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text(encoding="ascii").split()[0]) for thread in threads) / 1e9


async def round_of(server: Server, name: str, requests: int, num_tokens: int) -> float:
    """Return CPU microseconds per token over ``requests`` streams, four at a time."""
    gate = asyncio.Semaphore(4)
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "stream": True,
    }
    async with httpx.AsyncClient(base_url=server.urls[name], timeout=120) as client:

        async def send() -> None:
            async with gate, client.stream("POST", "/v1/chat/completions", json=body) as answer:
                async for _ in answer.aiter_raw():
                    pass

        await send()
        await asyncio.sleep(SETTLE_S)
        start_s = server.cpu_s()
        await asyncio.gather(*(send() for _ in range(requests)))
        await asyncio.sleep(SETTLE_S)
        return 1e6 * (server.cpu_s() - start_s) / (requests * num_tokens)


async def compare(kind: str, subject: str, rounds: int, requests: int, num_tokens: int) -> None:
    server = Server(kind, subject, num_tokens)
    cost: dict[str, list[float]] = {name: [] for name in NAMES}
    try:
        for number in range(rounds + 1):
            for name in NAMES if number % 2 else reversed(NAMES):
                cost_us = await round_of(server, name, requests, num_tokens)
                if number:
                    cost[name].append(cost_us)
    finally:
        server.close()
    report(kind, subject, cost, num_tokens)


def report(kind: str, subject: str, cost: dict[str, list[float]], num_tokens: int) -> None:
    ratios = sorted(
        cost_us / base_cost for cost_us, base_cost in zip(cost["on"], cost["off"], strict=True)
    )
    quarter = len(ratios) // 4
    print(f"{kind} engine, {num_tokens} tokens per answer, {len(ratios)} rounds each, in turn")
    for name in NAMES:
        print(f"{subject} {name:>3}: {statistics.median(cost[name]):6.2f} us of CPU per token")
    print(
        f"median of paired ratios {statistics.median(ratios):.3f} "
        f"(middle half {ratios[quarter]:.3f} .. {ratios[-1 - quarter]:.3f})"
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--engine", choices=("scripted", "demo"), default="scripted")
    options.add_argument("--what", choices=(OBSERVING, CAPTURE), default=OBSERVING)
    options.add_argument("--rounds", type=int, default=60)
    options.add_argument("--requests", type=int, default=8, help="requests in a round")
    options.add_argument("--tokens", type=int, default=200, help="tokens in an answer")
    arguments = options.parse_args()
    asyncio.run(
        compare(
            arguments.engine, arguments.what, arguments.rounds, arguments.requests, arguments.tokens
        )
    )
