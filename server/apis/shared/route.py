"""Functions shared by routes: running a job and counting tokens."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Generic

from fastapi import Depends, Request
from starlette.responses import Response

from eaglegate.server.access.caller import Caller, find_caller
from eaglegate.server.apis.shared.gateway import Gateway
from eaglegate.server.apis.shared.request import Model, read_body, read_json, validate
from eaglegate.server.apis.shared.response import EncodingContext
from eaglegate.server.errors import context_overflow
from eaglegate.server.generation.deadline import Deadline
from eaglegate.server.generation.generate import generate
from eaglegate.server.generation.job import Conversation, Job, Prompt
from eaglegate.server.generation.pipeline import Pipeline
from eaglegate.server.generation.prompt import render
from eaglegate.server.generation.served_model import ServedModel
from eaglegate.server.http.padding import PaddedStream
from eaglegate.server.http.response import (
    ErrorBody,
    Fold,
    FoldedResponse,
    StreamedResponse,
    StreamEncoder,
)
from eaglegate.text.media.image import Image
from eaglegate.text.rendering.encoding import PromptTooLong, RenderLimits


async def _read_caller(request: Request) -> Caller:
    return find_caller(request.scope)


CallerOf = Annotated[Caller, Depends(_read_caller)]
"""The request's caller, as an argument of a route."""


@dataclass(frozen=True, slots=True)
class GenerationApi(Generic[Model]):
    """An API that generates: its request model, its Job factory and its encoders."""

    model: type[Model]
    make_job: Callable[[Model, ServedModel, Caller], Job]
    stream: Callable[[Job, EncodingContext], StreamEncoder]
    fold: Callable[[Job, EncodingContext], Fold]
    error_body: ErrorBody


async def respond(
    request: Request, gateway: Gateway, select: Callable[[Any], GenerationApi[Any]]
) -> Response:
    """Read the body once, make the Job of the API that ``select`` returns, and answer it."""
    arrival = time.perf_counter()
    caller = find_caller(request.scope)
    body = await read_body(request, caller.charge, gateway.settings.max_body_bytes)
    pipeline = gateway.require()

    def read() -> tuple[GenerationApi[Any], Job]:
        data = read_json(body)
        api = select(data)
        fields = validate(data, api.model, caller.notices)
        return api, api.make_job(fields, pipeline.served_model, caller)

    api, job = await caller.charge.parse(read)
    return answer(job, pipeline, gateway, api, arrival)


def make_encoding_context(pipeline: Pipeline, token_names: str = "text") -> EncodingContext:
    pieces, width = pipeline.parsers.pieces, pipeline.info.speculation.width
    return EncodingContext(
        pieces, width, pipeline.served_model.reasoning_fields, token_names=token_names
    )


def answer(
    job: Job, pipeline: Pipeline, gateway: Gateway, api: GenerationApi[Any], arrival: float
) -> Response:
    """Return a response that runs ``job`` when it is sent."""
    run = partial(generate, job, pipeline, gateway.observer, arrival)
    context = make_encoding_context(pipeline, job.display.token_names)
    if job.display.stream:
        stream = api.stream(job, context)
        encoder = PaddedStream(stream) if job.display.obfuscates else stream
        return StreamedResponse(run, encoder, api.error_body, gateway.timing)
    return FoldedResponse(run, api.fold(job, context), api.error_body)


async def render_prompt(
    conversation: Conversation, pipeline: Pipeline, caller: Caller, limits: RenderLimits
) -> Prompt:
    """Return a conversation's prompt. Raises GatewayError and PromptTooLong."""
    images: tuple[Image, ...] = ()
    if pipeline.images is not None:
        images = await pipeline.images.read(conversation.images, caller)
        conversation = await pipeline.images.arrange(conversation, pipeline.renderer)
    prompt = Prompt(tuple(await render(conversation, pipeline.renderer, caller.charge, limits)))
    if pipeline.images is None or not images:
        return prompt
    return await pipeline.images.add_images(prompt, images, caller)


CONTEXTS = 4
"""Prompts are counted up to this multiple of the context length; longer ones are refused."""


@asynccontextmanager
async def admit(pipeline: Pipeline, caller: Caller, arrival: float) -> AsyncIterator[None]:
    """Admit a request that needs no place in the engine, within its deadline. Raises
    GatewayError.
    """
    deadline = Deadline(caller.timeout_s, arrival)
    with pipeline.admission.enter(caller.to_requester(deadline.at)):
        async with deadline.limit():
            yield


async def count_prompt_tokens(
    pipeline: Pipeline,
    caller: Caller,
    api: str,
    arrival: float,
    make: Callable[[RenderLimits], Awaitable[Prompt]],
) -> Prompt:
    """Return a prompt without generating. Raises GatewayError."""
    max_model_len = pipeline.info.max_model_len
    async with admit(pipeline, caller, arrival):
        caller.charge.begin_tokenizing()
        try:
            return await make(RenderLimits(max_tokens=CONTEXTS * max_model_len))
        except PromptTooLong as error:
            raise context_overflow(api, error.num_tokens, 0, max_model_len, error.exact) from None
