"""Servers that speak text only, each scripted with chunks in the shape it is known to send."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from eaglegate.engine.errors import EngineDead, EngineStartError, RequestRejected
from eaglegate.engine.remote.protocols import parse_upstream, remote_engine
from eaglegate.engine.remote.text import WORD, TextEngine
from eaglegate.engine.remote.upstream import ConnectionSettings, LocalModel
from eaglegate.engine.steps import read_steps
from eaglegate.engine.types import Constraint, EngineRequest, Sampling
from eaglegate.text.events import FinishReason
from eaglegate.text.parsing.vocabulary import Vocabulary
from eaglegate.text.rendering.renderer import ModelFiles, TemplateRenderer
from tests.engine.remote.stand_in_worker import serving

pytestmark = pytest.mark.thorough

ACCESS = ConnectionSettings(connect_s=2.0, first_token_s=5.0, idle_s=1.0, start_s=1.0)
FILES = ModelFiles.find("engine/demo/target", None, None)
RENDERER = TemplateRenderer(FILES)
VOCABULARY = Vocabulary.from_directory(FILES.tokenizer_json)
MODEL = LocalModel("demo", RENDERER, 2048, 4096)
PIECES = ("<think>", "\nfine", ".", "\n</think>", "\n\n", "Zwölf — 12", " cafés", "", "!")


def vllm(text: str, finish: str | None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    choice |= {"stop_reason": None, "token_ids": None, "prompt_token_ids": None}
    return {"id": "cmpl-1", "object": "text_completion", "choices": [choice], "usage": None}


def sglang(text: str, finish: str | None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    choice |= {"matched_stop": 3 if finish else None, "hidden_states": None}
    return {"id": "1", "object": "text_completion", "model": "demo", "choices": [choice]}


def llama_cpp(text: str, finish: str | None) -> dict[str, Any]:
    choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": finish}
    said = {"choices": [choice], "object": "text_completion", "system_fingerprint": "b1"}
    if finish:
        said["usage"] = {"completion_tokens": 9, "prompt_tokens": 3, "total_tokens": 12}
        said["timings"] = {"predicted_n": 9, "draft_n": 6, "draft_n_accepted": 4}
    return said


def tgi(text: str, finish: str | None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish or ""}
    return {"id": "", "object": "text_completion", "model": "demo", "choices": [choice]}


def ollama(text: str, finish: str | None) -> dict[str, Any]:
    choice = {"text": text, "index": 0, "finish_reason": finish}
    return {"id": "cmpl-7", "object": "text_completion", "choices": [choice], "model": "demo"}


def trtllm(text: str, finish: str | None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "token_ids": None, "logprobs": None, "context_logits": None}
    choice |= {"finish_reason": finish, "stop_reason": None, "disaggregated_params": None}
    return {"id": "cmpl-2", "object": "text_completion", "choices": [choice], "usage": None}


@dataclass
class TextServer:
    chunk: Any = vllm
    finish: str | None = "stop"
    takes_tokens: bool = True
    knows_extras: bool = True
    has_health: bool = True
    obeys_json: bool = True
    template: str = ""
    """Put before every prompt, as a server with templates of its own does."""
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def completions(self, request: Request) -> Response:
        body = json.loads(await request.body())
        prompt = body["prompt"]
        if not isinstance(prompt, str) and not self.takes_tokens:
            return JSONResponse({"error": "prompt: invalid type: sequence"}, 422)
        if "skip_special_tokens" in body and not self.knows_extras:
            return JSONResponse({"error": {"message": "extra fields not permitted"}}, 400)
        if body.get("stream"):
            self.bodies.append(body)
            return StreamingResponse(self._stream(), media_type="text/event-stream")
        text = f'"{WORD}"' if "response_format" in body and self.obeys_json else " and"
        size = len(prompt)
        if isinstance(prompt, str):
            size = len(RENDERER.encode(self.template + prompt, False))
        return JSONResponse(self.chunk(text, "length") | {"usage": {"prompt_tokens": size}})

    async def _stream(self) -> AsyncIterator[bytes]:
        for piece in PIECES:
            yield b"data: " + json.dumps(self.chunk(piece, None)).encode() + b"\n\n"
        if self.finish:
            yield b"data: " + json.dumps(self.chunk("", self.finish)).encode() + b"\n\n"
        yield b'data: {"choices": [], "usage": {"completion_tokens": 9}}\n\ndata: [DONE]\n\n'

    async def health(self, _: Request) -> Response:
        return Response(status_code=200 if self.has_health else 404)

    async def models(self, _: Request) -> Response:
        return JSONResponse({"data": [{"id": "other-name"}]})

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/completions", self.completions, methods=["POST"]),
                Route("/health", self.health),
                Route("/v1/models", self.models),
            ]
        )


SERVERS = {
    "vllm": TextServer(vllm),
    "sglang": TextServer(sglang),
    "trtllm": TextServer(trtllm, knows_extras=False),
    "llama.cpp": TextServer(llama_cpp, finish="stop"),
    "tgi": TextServer(tgi, finish="eos_token", takes_tokens=False, obeys_json=False),
    "ollama": TextServer(
        ollama, takes_tokens=False, knows_extras=False, has_health=False, obeys_json=False
    ),
}


@asynccontextmanager
async def engine_of(server: TextServer):
    async with serving(server.app()) as url:
        engine = remote_engine(parse_upstream("text+" + url), MODEL, ACCESS)
        assert isinstance(engine, TextEngine)
        try:
            engine.info = await engine.start()
            yield engine
        finally:
            await engine.aclose()


async def steps_of(engine, prompt=(2, 5, 6), **fields):
    sampling = fields.pop("sampling", Sampling(max_tokens=64, temperature=0.0))
    asked = EngineRequest("r", tuple(prompt), sampling, **fields)
    async with aclosing(read_steps(engine.generate, asked)) as steps:
        return [step async for step in steps]


@pytest.mark.parametrize("name", SERVERS)
async def test_the_text_comes_out_as_tokens_that_are_that_text(name):
    server = SERVERS[name]
    async with engine_of(server) as engine:
        steps = await steps_of(engine)
        assert (await engine.health()).live
        info = engine.info
    token_ids = [token for step in steps for token in step.token_ids]
    assert VOCABULARY.decoder().text(token_ids) == "".join(PIECES)
    assert VOCABULARY.ids["<think>"] in token_ids
    assert steps[-1].finish is FinishReason.STOP
    assert not any(step.decode for step in steps)
    assert not info.reports_decode_steps
    assert (info.speculation.method, info.speculation.depth) == ("unknown", 0)
    (body,) = server.bodies
    assert body["model"] == "other-name"
    assert isinstance(body["prompt"], str) is not server.takes_tokens
    assert ("skip_special_tokens" in body) is server.knows_extras


async def test_a_length_is_a_length():
    async with engine_of(TextServer(tgi, finish="length")) as engine:
        assert (await steps_of(engine))[-1].finish is FinishReason.LENGTH


async def test_a_stream_without_an_end_is_a_dead_engine():
    async with engine_of(TextServer(finish=None)) as engine:
        with pytest.raises(EngineDead):
            await steps_of(engine)


async def test_only_what_is_asked_for_is_sent():
    server = TextServer()
    async with engine_of(server) as engine:
        sampling = Sampling(max_tokens=5, temperature=0.5, top_k=3, stop_token_ids=(9,))
        await steps_of(engine, sampling=sampling)
    body = server.bodies[0]
    assert (body["top_k"], body["stop_token_ids"], body["max_tokens"]) == (3, [9], 5)
    assert "min_p" not in body
    assert "seed" not in body


async def test_json_where_the_server_was_seen_to_obey():
    schema = Constraint("json_schema", '{"type": "object"}')
    server = TextServer()
    async with engine_of(server) as engine:
        await steps_of(engine, constraint=schema)
        with pytest.raises(RequestRejected, match="regex"):
            await steps_of(engine, constraint=Constraint("regex", "a+"))
        with pytest.raises(RequestRejected, match="after its reasoning"):
            late = Constraint("json_schema", "{}", after_reasoning=True)
            await steps_of(engine, constraint=late)
    assert server.bodies[0]["response_format"]["json_schema"]["schema"] == {"type": "object"}
    async with engine_of(TextServer(obeys_json=False)) as engine:
        with pytest.raises(RequestRejected, match="json_schema"):
            await steps_of(engine, constraint=schema)


async def test_log_probabilities_are_refused():
    async with engine_of(TextServer()) as engine:
        with pytest.raises(RequestRejected, match="text only") as caught:
            await steps_of(engine, sampling=Sampling(max_tokens=3, logprobs=1))
    assert caught.value.param == "logprobs"


async def test_a_text_that_would_become_a_special_token_is_sent_as_tokens_or_refused():
    prompt = RENDERER.render_chat([{"role": "user", "content": "a<|im_end|>b"}], None)
    server = TextServer()
    async with engine_of(server) as engine:
        await steps_of(engine, prompt)
    assert server.bodies[0]["prompt"] == prompt
    server = TextServer(tgi, takes_tokens=False)
    async with engine_of(server) as engine:
        with pytest.raises(RequestRejected, match="spells a special token"):
            await steps_of(engine, prompt)
        plain = RENDERER.render_chat([{"role": "user", "content": "a < b"}], None)
        await steps_of(engine, plain)
    assert server.bodies[0]["prompt"] == RENDERER.decode(plain)


async def test_a_template_of_the_servers_own_is_found_out():
    server = TextServer(ollama, takes_tokens=False, template="<|im_start|>user\n")
    with pytest.raises(EngineStartError, match="template of its own"):
        async with engine_of(server):
            pass
