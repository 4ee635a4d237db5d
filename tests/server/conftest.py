"""A tiny gateway on the scripted engine, driven on the wire."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path as FilePath
from typing import Any, ClassVar

import orjson
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.routing import BaseRoute
from starlette.types import ASGIApp
from tokenizers import Tokenizer

from eaglegate.engine.scripted import ScriptedEngine, steps
from eaglegate.engine.speculation.policy.policy import SpeculationPolicy
from eaglegate.engine.types import EngineInfo, PositionLogprobs, SpeculationInfo, Step, TokenLogprob
from eaglegate.server.access.caller import ApiKey
from eaglegate.server.access.keys import KeyRing, hash_key
from eaglegate.server.apis.responses import route
from eaglegate.server.apis.responses.background import BackgroundRuns
from eaglegate.server.apis.shared.gateway import Gateway
from eaglegate.server.app import create_app
from eaglegate.server.cli.feature_table import list_routers
from eaglegate.server.generation.grammar import ParserFactory
from eaglegate.server.generation.pipeline import Pipeline
from eaglegate.server.generation.served_model import ServedModel
from eaglegate.server.http.connection import KEEP_ALIVE_S
from eaglegate.server.http.middleware import FastWriteMiddleware
from eaglegate.server.http.response import StreamTiming
from eaglegate.server.store.base import Retention
from eaglegate.server.store.sql import SqlResponseStore
from eaglegate.text.events import FinishReason
from eaglegate.text.parsing.vocabulary import Vocabulary
from eaglegate.text.rendering.encoding import NO_LIMITS, RenderLimits, TextEncoder
from tests.streams import read_frames

DEMO = FilePath(__file__).parents[2] / "engine" / "demo" / "target"
EOS = "<|im_end|>"
ADMIN_PORT = 9000


@cache
def load_encoder() -> tuple[Tokenizer, TextEncoder]:
    """The demo's tokenizer, which all tests of a process share, and its encoder."""
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    return tokenizer, TextEncoder(tokenizer)


class PlainRenderer:
    """Renders ``role: content`` lines with the demo's tokenizer."""

    def __init__(self) -> None:
        self.tokenizer, self.encoder = load_encoder()
        self.seen: list[dict[str, Any]] = []

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        **options: Any,
    ) -> list[int]:
        seen = {key: value for key, value in options.items() if key != "limits"}
        self.seen.append({"messages": messages, "tools": tools, **seen})
        text = "\n".join(
            f"{message['role']}: {message.get('content') or ''}" for message in messages
        )
        if "refuse me" in text:
            raise ValueError("the roles must alternate")
        return self.encode(text, False, options.get("limits", NO_LIMITS))

    def encode(
        self, text: str, add_special_tokens: bool, limits: RenderLimits = NO_LIMITS
    ) -> list[int]:
        return self.encoder.encode(text, add_special_tokens, limits)

    def tokenizer_info(self) -> dict[str, Any]:
        return {"tokenizer_class": "PlainTokenizer", "eos_token": EOS, "chat_template": "{{ 1 }}"}

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=False)


def make_app(lab: Lab | Application, more_routes: Iterable[BaseRoute] = ()) -> FastAPI:
    """The application of ``lab``, with the APIs that store answers."""
    routers = [route.router(lab.gateway, lab.runs), *list_routers(lab.gateway)]
    return create_app(lab.gateway, more_routes, routers)


def secret_of(name: str) -> str:
    return f"{name}-key-0123456789"


def make_key(name: str, **settings: Any) -> ApiKey:
    """The API key ``name``, which a call sends with ``key=name``."""
    return ApiKey(name, hash_key(secret_of(name)), **settings)


class LabGateway(Gateway):
    """Opens its store of responses when that is first used."""

    @property
    def store(self) -> SqlResponseStore | None:  # type: ignore[override]
        if callable(self._store):
            self._store = self._store()
        return self._store

    @store.setter
    def store(self, store: SqlResponseStore | Callable[[], SqlResponseStore] | None) -> None:
        self._store = store


def open_store() -> SqlResponseStore:
    return SqlResponseStore("sqlite://", Retention(3600))


class Application:
    """An application and its gateway. FastAPI makes one in 50 ms, so tests pass it on."""

    pool: ClassVar[list[Application]] = []
    loans: ClassVar[list[Application]] = []

    def __init__(self) -> None:
        self.gateway = LabGateway((), 0)
        self.runs = BackgroundRuns()
        self.app = make_app(self)

    @classmethod
    def take(cls, **settings: Any) -> Application:
        """Return an application whose gateway has nothing but these settings."""
        application = cls.pool.pop() if cls.pool else cls()
        cls.loans.append(application)
        LabGateway.__init__(application.gateway, **settings)
        BackgroundRuns.__init__(application.runs)
        return application


@pytest.fixture(autouse=True)
def reuse_applications() -> Iterator[None]:
    """Keep some applications of this test for the next one."""
    Application.loans.clear()  # those of fixtures that outlive a test
    yield
    Application.pool[:] = [*Application.pool, *Application.loans][:4]


@lru_cache(4)
def make_vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary.from_tokenizers(tokenizer)


@dataclass
class Lab:
    """A gateway whose engine says what a test tells it to."""

    renderer: PlainRenderer = field(default_factory=PlainRenderer)
    engine: ScriptedEngine = field(default_factory=ScriptedEngine)
    tool_parser: str | None = "hermes"
    reasoning_parser: str | None = "qwen3"
    timing: StreamTiming = field(default_factory=StreamTiming)
    depth: int = 3
    max_model_len: int = 256

    def __post_init__(self) -> None:
        application = Application.take(
            models=("demo", "alias"), created=1, timing=self.timing, store=open_store
        )
        self.gateway, self.runs = application.gateway, application.runs
        self.app = application.app
        self.gateway.open(self.path())

    def configure(self, **settings: Any) -> None:
        self.gateway.settings = replace(self.gateway.settings, **settings)

    def change_model(self, **changes: Any) -> None:
        """Change what the gateway knows of its model."""
        pipeline = self.gateway.require()
        served = replace(pipeline.served_model, **changes)
        self.gateway.open(replace(pipeline, served_model=served))

    def admit(self, *keys: str | ApiKey) -> None:
        """Ask for one of these API keys, given or named."""
        ring = tuple(make_key(key) if isinstance(key, str) else key for key in keys)
        self.gateway.keys = KeyRing(ring)

    def path(self) -> Pipeline:
        info = EngineInfo(
            "demo", self.max_model_len, 2048, SpeculationInfo("eagle3.1", self.depth, summary="x")
        )
        parsers = ParserFactory(
            self.vocabulary(),
            self.tool_parser,
            self.reasoning_parser,
        )
        served = ServedModel(
            ("demo", "alias"), self.depth, self.tool_parser is not None, {}, vocab_size=2048
        )
        return Pipeline(self.engine, info, self.renderer, parsers, served, SpeculationPolicy())

    def vocabulary(self) -> Vocabulary:
        tokenizer = self.renderer.tokenizer
        if isinstance(tokenizer, Tokenizer):
            return make_vocabulary(tokenizer)
        return Vocabulary.from_transformers(tokenizer)

    def says(
        self, text: str, cuts: Sequence[int] = (), finish: FinishReason = FinishReason.STOP
    ) -> None:
        """The engine answers ``text`` and its end-of-sequence token, cut into steps."""
        eos = [] if finish is FinishReason.LENGTH else [EOS]
        ids = self.renderer.encode(text + "".join(eos), False)
        self.engine.script = steps(ids, cuts, finish)

    def says_with_logprobs(self, text: str, size: int = 2) -> list[int]:
        """The same in steps of ``size``, with a log probability per token; returns the tokens."""
        ids = self.renderer.encode(text + EOS, False)
        self.engine.script = [
            Step(
                tuple(ids[at : at + size]),
                logprobs=tuple(map(_likely, ids[at : at + size])),
                finish=FinishReason.STOP if at + size >= len(ids) else None,
            )
            for at in range(0, len(ids), size)
        ]
        return ids

    async def post(self, url: str, body: Any, **options: Any) -> Answer:
        return await self.call("POST", url, body, **options)

    async def call(
        self, method: str, url: str, body: Any = b"", key: str | None = None, **options: Any
    ) -> Answer:
        """Operator paths without keys are on a port of their own."""
        raw = body if isinstance(body, bytes) else orjson.dumps(body)
        if key is not None:
            options["headers"] = {"x-api-key": secret_of(key)} | (options.get("headers") or {})
        if url.startswith("/admin") and not self.gateway.keys:
            self.gateway.admin_port = ADMIN_PORT
            options.setdefault("server", ("127.0.0.1", ADMIN_PORT))
        return await call(self.app, method, url, raw, **options)

    async def chat(
        self, timeout_s: float | None = None, key: str | None = None, **fields: Any
    ) -> Answer:
        body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], **fields}
        headers = {} if timeout_s is None else {"x-request-timeout": str(timeout_s)}
        return await self.post("/v1/chat/completions", body, key=key, headers=headers)

    async def complete(self, key: str | None = None, **fields: Any) -> Answer:
        body = {"model": "demo", "prompt": "one two"} | fields
        return await self.post("/v1/completions", body, key=key)

    async def respond(self, key: str | None = None, **fields: Any) -> Answer:
        return await self.post("/v1/responses", {"model": "demo", "input": "hi"} | fields, key=key)

    async def message(self, key: str | None = None, **fields: Any) -> Answer:
        body = {"model": "demo", "max_tokens": 99, "messages": [{"role": "user", "content": "hi"}]}
        return await self.post("/v1/messages", body | fields, key=key)

    async def get(self, url: str, **options: Any) -> Answer:
        return await self.call("GET", url, **options)

    async def head(self, url: str, **options: Any) -> Answer:
        return await self.call("HEAD", url, **options)

    async def delete(self, url: str, **options: Any) -> Answer:
        return await self.call("DELETE", url, **options)


def _likely(token_id: int) -> PositionLogprobs:
    token = TokenLogprob(token_id, -0.5, 1)
    return PositionLogprobs(token, (token,))


@dataclass
class Answer:
    """An HTTP answer as it came over the wire."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    sends: list[bytes] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def chunks(self) -> list[Any]:
        """The JSON data of every frame but the closing [DONE]."""
        return read_frames(self.body)

    @property
    def done(self) -> bool:
        return self.body.endswith(b"data: [DONE]\n\n")


async def call(
    app: ASGIApp,
    method: str,
    url: str,
    body: bytes = b"",
    leave: asyncio.Event | None = None,
    on_send: Callable[[Answer], None] = lambda _: None,
    headers: Mapping[str, str] | None = None,
    client: tuple[str, int] = ("127.0.0.1", 1),
    server: tuple[str, int] = ("127.0.0.1", 80),
) -> Answer:
    """Drive an ASGI app by hand; the client leaves when ``leave`` is set."""
    sent = [{"type": "http.request", "body": body, "more_body": False}]
    answer = Answer()

    async def receive() -> dict[str, Any]:
        if sent:
            return sent.pop()
        await (leave or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            answer.sends.append(message.get("body", b""))
            answer.body += message.get("body", b"")
        on_send(answer)

    await app(make_scope(method, url, headers, client=client, server=server), receive, send)
    return answer


def make_scope(
    method: str, url: str, headers: Mapping[str, str] | None = None, **changes: Any
) -> dict[str, Any]:
    """An HTTP request as a server gives it to an app."""
    fields = {"host": "localhost", "content-type": "application/json"} | dict(headers or {})
    path, _, query = url.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "scheme": "http",
        "headers": [(k.encode(), v.encode()) for k, v in fields.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    } | changes


async def wait_until(reached: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def send_once(body: bytes) -> Callable[[], Awaitable[dict[str, Any]]]:
    """A client that sends one body and then stays."""
    sent = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not sent:
            await asyncio.Event().wait()
        return sent.pop()

    return receive


async def read_head_only(message: Any) -> None:
    """A client that does not read the body of an answer."""
    if message["type"] == "http.response.body":
        await asyncio.Event().wait()


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.fixture
def url(lab: Lab) -> Iterator[str]:
    """The lab on a real port."""
    with on_a_port(lab.app) as address:
        yield address


@contextmanager
def on_a_port(app: ASGIApp) -> Iterator[str]:
    """The app on a real port of the loopback, in a thread of its own."""
    server = uvicorn.Server(
        uvicorn.Config(
            FastWriteMiddleware(app),
            port=0,
            log_level="warning",
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_S,
        )
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
