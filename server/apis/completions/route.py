"""Route of POST /v1/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.apis.completions.request import CompletionRequest
from server.apis.completions.response import CompletionFold, CompletionStream
from server.apis.completions.to_job import make_completion_job
from server.apis.shared.gateway import Gateway
from server.apis.shared.route import GenerationApi, describe_body, respond
from server.errors import openai_body

COMPLETIONS = GenerationApi(
    CompletionRequest, make_completion_job, CompletionStream, CompletionFold, openai_body
)


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/completions", openapi_extra=describe_body(CompletionRequest))
    async def completions(request: Request) -> Response:
        return await respond(request, gateway, lambda _: COMPLETIONS)

    return routes
