"""Routes that describe the gateway: models, health, load, version, and tokens."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from eaglegate import __version__
from eaglegate.server.access.caller import Caller, find_caller
from eaglegate.server.apis.chat.request import ChatMessage, ChatTool
from eaglegate.server.apis.chat.to_job import list_offered_tools, template_messages
from eaglegate.server.apis.shared.fields import Many, RequestModel, TokenId
from eaglegate.server.apis.shared.gateway import Gateway
from eaglegate.server.apis.shared.openapi import describe_body
from eaglegate.server.apis.shared.request import parse, read_body
from eaglegate.server.apis.shared.route import CallerOf, admit, count_prompt_tokens, render_prompt
from eaglegate.server.apis.shared.template import MediaPolicy, own_template, template_kwargs
from eaglegate.server.apis.shared.to_job import check_model, check_token_ids
from eaglegate.server.errors import InvalidRequest, NotFound, speaks_anthropic
from eaglegate.server.generation.job import Conversation, Prompt
from eaglegate.server.generation.pipeline import Pipeline
from eaglegate.server.generation.prompt import encode
from eaglegate.server.http.response import json_response
from eaglegate.text.rendering.encoding import RenderLimits

RETRY = {"retry-after": "5"}


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter()
    _add_models(routes, gateway)
    _add_health(routes, gateway)
    _add_tokens(routes, gateway)

    @routes.get("/load")
    async def load() -> dict[str, int]:
        """Return the number of in-flight requests, under the same name as ``vllm serve``."""
        pipeline = gateway.pipeline
        return {"server_load": 0 if pipeline is None else pipeline.admission.num_in_flight}

    @routes.get("/version")
    async def versions() -> dict[str, str]:
        return {"version": __version__}

    return routes


def _add_models(routes: APIRouter, gateway: Gateway) -> None:
    def card(name: str) -> dict[str, Any]:
        details: dict[str, Any] = {}
        if (pipeline := gateway.pipeline) is not None:
            details["max_model_len"] = pipeline.info.max_model_len
            images = [] if pipeline.served_model.images is None else ["image"]
            details["input_modalities"] = ["text", *images]
            if name in pipeline.served_model.adapters:
                details["parent"] = gateway.models[0]
        return {
            "id": name,
            "object": "model",
            "created": gateway.created,
            "owned_by": "eaglegate",
            **details,
        }

    def list_usable(caller: Caller) -> list[str]:
        return [name for name in gateway.models if caller.may_use(name)]

    def describe(name: str) -> dict[str, Any]:
        """Describe a model as Anthropic does."""
        return {
            "type": "model",
            "id": name,
            "display_name": name,
            "created_at": datetime.fromtimestamp(gateway.created, UTC).isoformat(),
            "lifecycle": "active",
            "max_input_tokens": card(name).get("max_model_len"),
        }

    @routes.get("/v1/models")
    async def models(request: Request, caller: CallerOf) -> dict[str, Any]:
        """List the models that the caller's key may use, for Anthropic's clients in their shape."""
        names = list_usable(caller)
        if speaks_anthropic(request.scope):
            ends = {"first_id": names[0], "last_id": names[-1]} if names else {}
            return {"data": [describe(name) for name in names], "has_more": False, **ends}
        return {"object": "list", "data": [card(name) for name in names]}

    @routes.get("/v1/models/{name:path}")
    async def model(name: str, request: Request, caller: CallerOf) -> dict[str, Any]:
        usable = list_usable(caller)
        if name not in usable:
            raise NotFound(
                f"The model '{name}' does not exist here. This gateway serves: "
                f"{', '.join(usable)}.",
                param="model",
                code="model_not_found",
            )
        return describe(name) if speaks_anthropic(request.scope) else card(name)


def _add_health(routes: APIRouter, gateway: Gateway) -> None:
    @routes.get("/health")
    async def health() -> dict[str, str]:
        """Liveness: the process is running."""
        return {"status": "ok"}

    async def readiness() -> JSONResponse:
        if gateway.pipeline is None or gateway.state != "ready":
            return JSONResponse({"status": gateway.state}, 503, RETRY)
        engine = await gateway.pipeline.engine.health()
        if not engine.live:
            return JSONResponse({"status": "engine_dead", "reason": engine.reason}, 503, RETRY)
        if gateway.memory.shedding and gateway.in_flight:
            reason = f"short of memory: {gateway.memory.summary}"
            return JSONResponse({"status": "shedding", "reason": reason}, 503, RETRY)
        return JSONResponse({"status": "ready", "engine": _facts(gateway)})

    @routes.get("/ready")
    async def ready() -> JSONResponse:
        """Readiness: the gateway accepts requests."""
        return await readiness()

    @routes.get("/ping", response_class=Response)
    @routes.post("/ping", response_class=Response)
    async def ping() -> Response:
        """Readiness with an empty body, for SageMaker."""
        status = (await readiness()).status_code
        return Response(status_code=status, headers=None if status == 200 else RETRY)


def _facts(gateway: Gateway) -> dict[str, Any]:
    assert gateway.pipeline is not None
    info = gateway.pipeline.info
    return {
        "model": gateway.models[0],
        "max_model_len": info.max_model_len,
        "speculation": info.speculation.summary,
        "num_speculative_tokens": info.speculation.depth,
        "lookup": info.speculation.lookup,
    }


class TokenizeRequest(RequestModel):
    """Either a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[Many[ChatMessage], Field(min_length=1)] | None = None
    tools: Many[ChatTool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(RequestModel):
    model: str | None = None
    tokens: Many[TokenId]


def _add_tokens(routes: APIRouter, gateway: Gateway) -> None:
    @routes.post("/tokenize", openapi_extra=describe_body(TokenizeRequest), response_model=None)
    async def tokenize(request: Request) -> Response:
        arrival = time.perf_counter()
        caller = find_caller(request.scope)
        body = await read_body(request, caller.charge, gateway.settings.max_body_bytes)
        pipeline = gateway.require()
        fields = await caller.charge.parse(lambda: parse(body, TokenizeRequest, caller.notices))
        check_model(fields.model or gateway.models[0], pipeline.served_model, caller)
        api = "chat" if fields.prompt is None else "completions"
        prompt = await count_prompt_tokens(
            pipeline,
            caller,
            api,
            arrival,
            lambda limits: _make_prompt(fields, pipeline, caller, limits),
        )
        return json_response(await asyncio.to_thread(_answer, fields, prompt, pipeline))

    @routes.post("/detokenize", openapi_extra=describe_body(DetokenizeRequest), response_model=None)
    async def detokenize(request: Request) -> Response:
        arrival = time.perf_counter()
        caller = find_caller(request.scope)
        body = await read_body(request, caller.charge, gateway.settings.max_body_bytes)
        pipeline = gateway.require()
        fields = await caller.charge.parse(lambda: parse(body, DetokenizeRequest, caller.notices))
        check_model(fields.model or gateway.models[0], pipeline.served_model, caller)
        check_token_ids(fields.tokens, pipeline.served_model.vocab_size, "tokens")
        async with admit(pipeline, caller, arrival):
            caller.charge.begin_tokenizing()
            text = await asyncio.to_thread(pipeline.renderer.decode, fields.tokens)
        return json_response({"prompt": text})

    if not gateway.settings.enable_tokenizer_info_endpoint:

        @routes.get("/tokenizer_info", include_in_schema=False)
        async def disabled() -> None:
            raise NotFound(
                "There is no GET /tokenizer_info: the gateway runs without "
                "--enable-tokenizer-info-endpoint."
            )

    else:

        @routes.get("/tokenizer_info", response_model=None)
        async def tokenizer_info() -> Response:
            """Return the data that a client needs to render prompts, including the chat
            template.
            """
            return json_response(gateway.require().renderer.tokenizer_info())


def _answer(request: TokenizeRequest, prompt: Prompt, pipeline: Pipeline) -> dict[str, Any]:
    tokens = prompt.token_ids
    out: dict[str, Any] = {
        "count": prompt.num_tokens,
        "max_model_len": pipeline.info.max_model_len,
        "tokens": tokens,
    }
    if request.return_token_strs:
        pieces = pipeline.parsers.pieces
        out["token_strs"] = [pieces[token].decode("utf-8", "replace") for token in tokens]
    return out


async def _make_prompt(
    request: TokenizeRequest, pipeline: Pipeline, caller: Caller, limits: RenderLimits
) -> Prompt:
    if (request.prompt is None) == (request.messages is None):
        problem = "neither" if request.prompt is None else "both"
        raise InvalidRequest(
            f"Give either 'prompt' or 'messages'; given {problem}.", param="prompt"
        )
    if request.prompt is not None:
        special = request.add_special_tokens is not False
        renderer, charge = pipeline.renderer, caller.charge
        return Prompt(tuple(await encode(request.prompt, renderer, special, charge, limits)))
    if request.add_special_tokens:
        raise InvalidRequest(
            "'add_special_tokens' needs 'prompt': the chat template adds special tokens itself.",
            param="add_special_tokens",
        )
    conversation = _conversation(request, pipeline, caller)
    return await render_prompt(conversation, pipeline, caller, limits)


def _conversation(request: TokenizeRequest, pipeline: Pipeline, caller: Caller) -> Conversation:
    media = MediaPolicy.of(pipeline.served_model, caller.notices)
    continues = bool(request.continue_final_message)
    prompt = request.add_generation_prompt
    return Conversation(
        messages=tuple(template_messages(request.messages or (), media)),
        tools=tuple(list_offered_tools(request.tools or (), caller.notices)[0]),
        add_generation_prompt=not continues if prompt is None else prompt,
        continue_final_message=continues,
        template_kwargs=template_kwargs(pipeline.served_model, request.chat_template_kwargs),
        template=own_template(
            pipeline.served_model, request.chat_template_kwargs, request.chat_template
        ),
        images=media.check_images(media.images),
    )
