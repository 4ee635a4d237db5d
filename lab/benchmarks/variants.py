"""Gateways on a scripted engine that differ in one layer, each in its own process.

They are used by ``lab/benchmarks/layers.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from starlette.types import ASGIApp

from eaglegate.engine.scripted import Script, ScriptedEngine
from eaglegate.engine.speculation.accounting import Account
from eaglegate.engine.speculation.policy import SpeculationPolicy
from eaglegate.engine.types import EngineInfo, EngineRequest, Step, StepSink
from eaglegate.engine.vllm_backend.step_queue import SinkFlusher, StepQueue
from eaglegate.features.capture.feature import CaptureSubscriber
from eaglegate.lab.benchmarks.observing import INFO, Renderer, make_scripted_engine, open_capture
from eaglegate.lab.benchmarks.wire import clock_of
from eaglegate.observability.engine import InstrumentedEngine
from eaglegate.observability.labels import TelemetrySettings
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.middleware import AccessLog, TelemetryMiddleware
from eaglegate.observability.pages import make_routes
from eaglegate.observability.telemetry import Telemetry
from eaglegate.server.access.admission import Admission, AdmissionLimits
from eaglegate.server.access.caller import ApiKey
from eaglegate.server.access.keys import KeyRing, hash_key
from eaglegate.server.access.quota import KeyQuota
from eaglegate.server.apis.responses import route as responses
from eaglegate.server.apis.responses.background import BackgroundRuns
from eaglegate.server.apis.shared.gateway import Gateway
from eaglegate.server.app import create_app
from eaglegate.server.generation import generate
from eaglegate.server.generation.grammar import ParserFactory
from eaglegate.server.generation.pipeline import Pipeline
from eaglegate.server.generation.served_model import ServedModel
from eaglegate.server.http.middleware import FastWriteMiddleware
from eaglegate.server.settings import Settings
from eaglegate.server.store.sql import SqlResponseStore
from eaglegate.text.parsing.vocabulary import Vocabulary

KEY = "eg-benchmark-key-0123456789abcdef"
PLENTY = 1 << 40
TOKENS = 256
WIDE = replace(INFO, max_model_len=1 << 20)
CHAT, RESPONSES = ("/v1/chat/completions", "/v1/responses")
TOKENS_PER_STEP = 2.2
"""Approximate tokens per step of the script, which sets only the engine's pace."""
TIMER_S = 0.001


@dataclass(frozen=True)
class Variant:
    """Gateway with everything on except capture and store. A ``step_s`` of 0 means full speed."""

    name: str
    keys: bool = True
    quota: bool = True
    admission: bool = True
    parsers: bool = True
    accounting: bool = True
    observers: bool = True
    capture: bool = False
    store: bool = False
    path: str = CHAT
    interval_ms: float | None = 0.0
    step_s: float = 0.0
    real_template: bool = False


ALL = Variant("all")
TABLE = (
    ALL,
    Variant("authentication", keys=False),
    Variant("quota", quota=False),
    Variant("admission", admission=False),
    Variant("parsers", parsers=False),
    Variant("accounting", accounting=False),
    Variant("observers", observers=False),
    Variant("capture", capture=True),
    Variant("responses", path=RESPONSES),
    Variant("store", path=RESPONSES, store=True),
)


class PacedEngine(ScriptedEngine):
    """Engine that gives all requests their steps at the same moment, like one engine message."""

    def __init__(
        self, script: Script, info: EngineInfo, step_s: float, interval_ms: float | None
    ) -> None:
        super().__init__(script, info)
        self._step_s = step_s
        self._flusher = SinkFlusher(None if interval_ms is None else interval_ms / 1000)
        self._requests: dict[str, tuple[StepQueue, Iterator[Step]]] = {}
        self._ticker: asyncio.Task[None] | None = None

    async def generate(self, request: EngineRequest, sink: StepSink) -> None:
        queue = StepQueue(request.id, 1, self._flusher)
        script: Any = self.script(request) if callable(self.script) else self.script
        self._requests[request.id] = (queue, iter(script))
        if self._ticker is None:
            self._ticker = asyncio.create_task(self._tick())
        try:
            await queue.deliver(sink)
        finally:
            self._requests.pop(request.id, None)

    async def _tick(self) -> None:
        read_clock = asyncio.get_running_loop().time
        start, num_done = read_clock(), 0
        while self._requests:
            num_due = (
                int((read_clock() - start) / self._step_s) + 1 if self._step_s else num_done + 1
            )
            for _ in range(num_due - num_done):
                self._push_steps()
            num_done = num_due
            await asyncio.sleep(_round_up(start + num_done * self._step_s - read_clock()))
        self._ticker = None

    def _push_steps(self) -> None:
        for name, (queue, steps) in list(self._requests.items()):
            step = next(steps)
            queue.push(step)
            if step.finish is not None:
                del self._requests[name]


def _round_up(seconds: float) -> float:
    """Round up to the resolution of the event loop's timers, below which the loop would spin."""
    return max(seconds, TIMER_S) if seconds > 0 else 0.0


class FreeEntry:
    """Admission that admits every request immediately and counts nothing."""

    queued = 0
    bounds = AdmissionLimits()

    def check(self, _requester: object) -> None: ...

    def count_places(self, _requester: object) -> int:
        return 0

    def enter(self, _requester: object) -> FreeEntry:
        return self

    def __enter__(self) -> FreeEntry:
        return self

    def __exit__(self, *_: object) -> None: ...

    async def admit(self, _sequences: int, _tokens: int) -> None: ...

    def pay(self, _tokens: int) -> None: ...

    def record_served(self) -> None: ...


class FreeAccount(Account):
    """Account that counts only tokens."""

    def add(self, step: Step) -> None:
        self.tokens += len(step.token_ids)


def make_app(variant: Variant, folder: Path) -> ASGIApp:
    """Build the gateway like the composition root, without the layers that ``variant`` omits."""
    if not variant.accounting:
        generate.Account = FreeAccount  # type: ignore[misc]
    renderer = make_renderer(variant)
    vocabulary = Vocabulary.from_tokenizers(Renderer().tokenizer)
    formats = ("hermes", "qwen3") if variant.parsers else (None, None)
    gateway = Gateway(models=("demo",), created=1, settings=Settings(max_body_bytes=1 << 26))
    gateway.keys = KeyRing(make_keys(variant)) if variant.keys else KeyRing()
    if variant.store:
        gateway.store = SqlResponseStore(f"sqlite:///{folder}/responses.db")
    engine: Any = PacedEngine(
        make_scripted_engine(TOKENS).script, WIDE, variant.step_s, variant.interval_ms
    )
    limits = AdmissionLimits(running=4096, queued=4096, queued_tokens=PLENTY)
    pipeline = Pipeline(
        engine,
        WIDE,
        renderer,
        ParserFactory(vocabulary, *formats),
        ServedModel(("demo",), 3, True, {}),
        SpeculationPolicy(),
        Admission(limits) if variant.admission else FreeEntry(),  # type: ignore[arg-type]
    )
    stateful_routers = [responses.router(gateway, BackgroundRuns())]
    if not variant.observers:
        gateway.open(pipeline)
        return create_app(gateway, stateful=stateful_routers)
    telemetry = Telemetry(
        GROUPS, TelemetrySettings(models=("demo",), lanes=("speculative", "plain"))
    )
    gateway.observer = telemetry
    if variant.capture:
        capture = open_capture(folder)
        capture.set_decode(renderer.decode)
        CaptureSubscriber(capture, telemetry)
    gateway.open(replace(pipeline, engine=InstrumentedEngine(engine, telemetry)))
    log = AccessLog(stream=os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    app = create_app(gateway, make_routes(telemetry), stateful_routers)
    return TelemetryMiddleware(app, log, keep_bodies=variant.capture)


def make_renderer(variant: Variant) -> Any:
    if not variant.real_template:
        return Renderer()
    from eaglegate.engine.vllm_backend.arguments import make_demo_arguments
    from eaglegate.engine.vllm_backend.renderer import VllmRenderer

    return VllmRenderer(make_demo_arguments())


def make_keys(variant: Variant) -> tuple[ApiKey, ...]:
    quota = KeyQuota("load", PLENTY, PLENTY) if variant.quota else None
    return (ApiKey("load", hash_key(KEY), quota=quota),)


def serve(variant: Variant, pipe: Connection) -> None:
    """Run the serving process, until the other end of the pipe is closed."""
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(_serve(make_app(variant, Path(folder)), pipe))
        os._exit(0)


async def _serve(app: ASGIApp, pipe: Connection) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    config = uvicorn.Config(
        FastWriteMiddleware(app), log_level="error", access_log=False, lifespan="off"
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    gc.collect()
    gc.freeze()
    pipe.send(listener.getsockname()[1])
    with contextlib.suppress(EOFError):
        await asyncio.to_thread(pipe.recv)
    server.should_exit = True
    await task


class ServingProcess:
    """One variant, in a process forked from this one before it has threads or a loop."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        fork = multiprocessing.get_context("fork")
        self._pipe, remote = fork.Pipe()
        self._process = fork.Process(target=serve, args=(variant, remote), daemon=True)
        self._process.start()
        remote.close()

    def wait_ready(self) -> None:
        self.port = self._pipe.recv()
        self.idle_bytes = self.rss_bytes()

    def cpu_s(self) -> float:
        return time.clock_gettime(clock_of(self._process.pid or 0))

    def rss_bytes(self) -> int:
        pages = Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        self._process.kill()
        self._process.join()
