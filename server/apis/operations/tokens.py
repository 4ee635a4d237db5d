"""Routes of POST /tokenize and /detokenize, GET /tokenizer_info, as in ``vllm serve``."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from engine.rendering.encoding import RenderLimits
from server.access.budget import charge
from server.apis.chat.request import ChatMessage, ChatTool
from server.apis.chat.to_job import list_offered_tools, template_messages
from server.apis.completions.to_job import check_token_ids
from server.apis.shared.fields import TokenId
from server.apis.shared.gateway import Gateway
from server.apis.shared.request import Many, RequestModel, parse, read_body
from server.apis.shared.route import admit, count_prompt_tokens, describe_body
from server.apis.shared.template import own_template, template_kwargs
from server.apis.shared.to_job import check_model
from server.errors import InvalidRequest
from server.generation.pipeline import Pipeline
from server.generation.prompt import Conversation, encode, render
from server.http.response import json_response


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


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter()

    @routes.post("/tokenize", openapi_extra=describe_body(TokenizeRequest), response_model=None)
    async def tokenize(request: Request) -> Response:
        arrived = time.perf_counter()
        body = await read_body(request, gateway.max_body_bytes)
        path = gateway.require()
        asked = await charge.get().parse(lambda: parse(body, TokenizeRequest))
        check_model(asked.model or gateway.models[0], path.served)
        api = "chat" if asked.prompt is None else "completions"
        tokens = await count_prompt_tokens(
            path, api, arrived, lambda limits: _tokens(asked, path, limits)
        )
        return json_response(await asyncio.to_thread(_answer, asked, tokens, path))

    @routes.post("/detokenize", openapi_extra=describe_body(DetokenizeRequest), response_model=None)
    async def detokenize(request: Request) -> Response:
        arrived = time.perf_counter()
        body = await read_body(request, gateway.max_body_bytes)
        path = gateway.require()
        asked = await charge.get().parse(lambda: parse(body, DetokenizeRequest))
        check_model(asked.model or gateway.models[0], path.served)
        check_token_ids(asked.tokens, path.served.vocab_size, "tokens")
        async with admit(path, arrived):
            text = await asyncio.to_thread(path.renderer.decode, asked.tokens)
        return json_response({"prompt": text})

    if gateway.tokenizer_info:

        @routes.get("/tokenizer_info", response_model=None)
        async def tokenizer_info() -> Response:
            """What a client needs to render prompts itself, the chat template included."""
            return json_response(gateway.require().renderer.tokenizer_info())

    return routes


def _answer(asked: TokenizeRequest, tokens: list[int], path: Pipeline) -> dict[str, Any]:
    out: dict[str, Any] = {
        "count": len(tokens),
        "max_model_len": path.info.max_model_len,
        "tokens": tokens,
    }
    if asked.return_token_strs:
        pieces = path.parsers.pieces
        out["token_strs"] = [pieces[token].decode("utf-8", "replace") for token in tokens]
    return out


async def _tokens(asked: TokenizeRequest, path: Pipeline, limits: RenderLimits) -> list[int]:
    if (asked.prompt is None) == (asked.messages is None):
        raise InvalidRequest("Give either 'prompt' or 'messages'.", param="prompt")
    if asked.prompt is not None:
        special = asked.add_special_tokens is not False
        return await encode(asked.prompt, path.renderer, special, limits)
    if asked.add_special_tokens:
        raise InvalidRequest(
            "'add_special_tokens' needs 'prompt': the chat template adds special tokens itself.",
            param="add_special_tokens",
        )
    return await render(_conversation(asked, path), path.renderer, limits)


def _conversation(asked: TokenizeRequest, path: Pipeline) -> Conversation:
    continued = bool(asked.continue_final_message)
    prompt = asked.add_generation_prompt
    return Conversation(
        messages=tuple(template_messages(asked.messages or (), path.served.replaces_media)),
        tools=tuple(list_offered_tools(asked.tools or ())[0]),
        add_generation_prompt=not continued if prompt is None else prompt,
        continue_final_message=continued,
        template_kwargs=template_kwargs(path.served, asked.chat_template_kwargs),
        template=own_template(path.served, asked.chat_template_kwargs, asked.chat_template),
    )
