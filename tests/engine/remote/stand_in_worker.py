"""A worker made of scripts, on a real port: what vLLM's server says, without vLLM."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from eaglegate.engine.remote.engine import RemoteEngine
from eaglegate.engine.remote.probe import PROBE
from eaglegate.engine.remote.upstream import ConnectionSettings, LocalModel, Upstream

Script = Callable[[dict[str, Any]], Iterable[Any]]
"""Makes a request's stream from its body. Floats are pauses, exceptions break the connection."""


def chunk(*token_ids: int, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "token_ids": list(token_ids), "finish_reason": finish} | more
    return {"request_id": "generate-tokens-x", "choices": [choice]}


def end(*verified: tuple[int, int], depth: int = 3, told: bool = True, cached: int | None = None):
    """The chunk behind the last one: usage, and what verify steps drafted and accepted."""
    drafted = [step[0] for step in verified]
    accepted = [step[1] for step in verified]
    said: dict[str, Any] = {"request_id": "x", "choices": [], "usage": {"prompt_tokens": 1}}
    if cached is not None:
        said["usage"]["prompt_tokens_details"] = {"cached_tokens": cached}
    if told:
        histogram = [accepted.count(at) for at in range(depth + 1)]
        said["metrics"] = {
            "speculative_decoding": {
                "num_spec_tokens": depth,
                "num_spec_steps": len(verified),
                "num_draft_tokens": sum(drafted),
                "num_accepted_draft_tokens": sum(accepted),
                "acceptance_histogram": histogram,
                "per_step_drafted": drafted,
                "per_step_accepted": accepted,
            }
        }
    return said


@dataclass
class StandIn:
    """Remembers what it was asked."""

    script: Script = lambda body: ()
    url: str = ""
    status: int = 200
    """Status of the answer to a request to generate."""
    headers: dict[str, str] = field(default_factory=dict)
    healthy: bool = True
    version: Any = None
    """What ``/version`` says of itself; None has no such path."""
    server_info: Any = None
    """What ``/server_info`` says, which vLLM has in development mode only."""
    exposition: str = ""
    """More lines of ``/metrics``."""
    models: dict[str, int | None] = field(default_factory=lambda: {"demo": 4096})
    tokens: list[int] = field(default_factory=list)
    """Token ids that its tokenizer returns for any text."""
    depth: int = 3
    honours: bool = True
    speculates: bool = True
    accounts: bool = True
    image_tokens: int | None = None
    """Tokens of an image; None ignores images, as a worker of a text model does."""
    counted: list[str] = field(default_factory=list)
    """URLs of the images that it was asked to count."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    asked: list[Request] = field(default_factory=list)
    running: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.asked.append(request)
        if not body.get("stream"):
            return JSONResponse(self._whole(body))
        self.bodies.append(body)
        if self.status != 200:
            error = {"message": "as the script says", "code": self.status}
            return JSONResponse({"error": error}, self.status, self.headers)
        return StreamingResponse(self._stream(body), media_type="text/event-stream")

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        self.running += 1
        self.idle.clear()
        try:
            for item in self.script(body):
                if isinstance(item, Exception):
                    raise item
                if isinstance(item, float):
                    await asyncio.sleep(item)
                    continue
                yield b"data: " + json.dumps(item).encode() + b"\n\n"
                await asyncio.sleep(0)
            yield b"data: [DONE]\n\n"
        finally:
            self.running -= 1
            if not self.running:
                self.idle.set()

    def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        """A probe's answer, or one with the prompt's log probabilities."""
        extra = body["sampling_params"].get("extra_args") or {}
        off = self.honours and extra.get("num_speculative_tokens") == 0
        verified = [] if off or not self.speculates else [(self.depth, self.depth)] * 2
        said = end(*verified, depth=self.depth, told=self.speculates and self.accounts)
        said |= {"choices": chunk(*range(9), finish="length")["choices"]}
        if self.image_tokens is not None and body.get("return_token_ids"):
            self.counted += [part["url"] for part in body["content_parts"]]
            said["prompt_token_ids"] = [90] * self.image_tokens
            said["mm_placeholders"] = {"image": [{"offset": 0, "length": self.image_tokens}]}
        if body["sampling_params"].get("prompt_logprobs") is not None:
            entry = {"logprob": -1.0, "rank": 1, "decoded_token": "x"}
            said["prompt_logprobs"] = [None, *({str(t): entry} for t in body["token_ids"][1:])]
        return said

    async def health(self, _: Request) -> Response:
        return Response(status_code=200 if self.healthy else 503)

    async def tell_version(self, _: Request) -> Response:
        status = 404 if self.version is None else 200
        return JSONResponse({"version": self.version}, status)

    async def tell_all(self, _: Request) -> Response:
        return JSONResponse(self.server_info, 404 if self.server_info is None else 200)

    async def list_models(self, _: Request) -> Response:
        data = [{"id": name, "max_model_len": most} for name, most in self.models.items()]
        return JSONResponse({"object": "list", "data": data})

    async def tokenize(self, _: Request) -> Response:
        return JSONResponse({"tokens": self.tokens, "count": len(self.tokens)})

    async def metrics(self, _: Request) -> Response:
        line = "vllm:spec_decode_num_drafts_total 0.0\n" if self.speculates else ""
        return PlainTextResponse("vllm:num_requests_running 0.0\n" + line + self.exposition)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/inference/v1/generate", self.generate, methods=["POST"]),
                Route("/health", self.health),
                Route("/version", self.tell_version),
                Route("/server_info", self.tell_all),
                Route("/v1/models", self.list_models),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/metrics", self.metrics),
            ]
        )


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, app: Any) -> None:
        super().__init__(uvicorn.Config(app, port=0, log_level="critical", lifespan="off"))
        self.listens = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.listens.set()


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """``app`` on a free port of this machine."""
    server = _Server(app)
    task = asyncio.create_task(server.serve())
    await server.listens.wait()
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = server.force_exit = True
        await task


class Letters:
    """A tokenizer of one token per character."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [ord(letter) % 100 for letter in text]

    def decode(self, token_ids: Iterable[int]) -> str:
        return "".join(map(chr, token_ids))


MODEL = LocalModel("demo", Letters(), vocab_size=2048, max_model_len=4096)
ACCESS = ConnectionSettings(connect_s=2.0, first_token_s=5.0, idle_s=0.5, start_s=1.0)


@asynccontextmanager
async def running(
    worker: StandIn, access: ConnectionSettings = ACCESS, model: LocalModel = MODEL
) -> AsyncIterator[RemoteEngine]:
    """An engine that has started on a worker; ``info`` is what it found."""
    worker.tokens = worker.tokens or MODEL.codec.encode(PROBE, False)
    async with serving(worker.app()) as url:
        engine = RemoteEngine(Upstream(url), model, access)
        try:
            engine.info = await engine.start()
            yield engine
        finally:
            await engine.aclose()
