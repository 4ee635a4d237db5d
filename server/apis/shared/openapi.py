"""The OpenAPI document: request bodies, event streams, and all errors of each operation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

STREAMS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses",
                     "/v1/responses/{response_id}", "/invocations"})  # fmt: skip
"""Paths that can answer with server-sent events."""
STATEFUL = ("/v1/responses", "/v1/conversations", "/admin")
ALWAYS = {
    400: "The request is invalid; `param` names the field.",
    408: "The request did not arrive within its time.",
    431: "The path and the headers are too long, or there are too many headers.",
    500: "The gateway or the engine failed.",
}
GUARDED = {
    401: "The API key is missing or unknown.",
    403: "The key, the host name or the origin is not allowed to do this.",
    404: "The path does not exist on this port, or the object does not exist.",
    503: "The gateway is starting, stopping or short of memory, or its store failed.",
}
WITH_BODY = {
    413: "The body is too large.",
    415: "The body is not JSON, or it has a content encoding.",
    429: "The key, the queue or the engine is at its limit; see Retry-After.",
    504: "The deadline of the request has passed.",
}
CONFLICT = {409: "The current state does not allow this."}
NOT_READY = {503: "The gateway is not accepting requests."}
OPENAI, ANTHROPIC = "Error", "AnthropicError"
NULLABLE = {"type": ["string", "null"]}
ERRORS = {
    OPENAI: {
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": NULLABLE,
                    "code": NULLABLE,
                },
                "required": ["message", "type", "param", "code"],
            }
        },
        "required": ["error"],
    },
    ANTHROPIC: {
        "type": "object",
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "properties": {
                    "type": {"type": "string"},
                    "message": {"type": "string"},
                    "details": {"type": "object"},
                },
                "required": ["type", "message"],
            },
        },
        "required": ["type", "error"],
    },
}
PARTS = "x-parts"
"""Key under which an operation stores the schemas of its body until the document is completed."""


def describe_body(*models: type[BaseModel]) -> dict[str, Any]:
    """Return FastAPI's ``openapi_extra`` for a request body of one of ``models``."""
    references = [_refer(model.__name__) for model in models]
    schema = references[0] if len(references) == 1 else {"anyOf": references}
    parts = {name: part for model in models for name, part in _schemas(model).items()}
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}, PARTS: parts}


def complete_openapi(app: FastAPI, open_paths: Collection[str]) -> None:
    """Add the schemas of bodies, streams and errors to the application's document.

    ``open_paths`` need no key, and also answer while the gateway starts or stops.
    """
    build_document = app.openapi

    def openapi() -> dict[str, Any]:
        document = build_document()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                schemas |= operation.pop(PARTS, {})
                errors = _list_errors(path, method, path in open_paths)
                _describe_answers(path, operation["responses"], errors)
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas |= ERRORS
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _describe_answers(
    path: str, responses: dict[str, Any], errors: Iterable[tuple[int, str]]
) -> None:
    """Add streams and errors, and remove FastAPI's 422: invalid bodies and parameters get a 400."""
    responses.pop("422", None)
    if path in STREAMS:
        responses["200"].setdefault("content", {})["text/event-stream"] = {
            "schema": {"description": "Server-sent events; the data of each is a JSON object."}
        }
    for status, description in sorted(errors):
        if str(status) not in responses:
            body = {"content": {"application/json": {"schema": _describe_error(path, status)}}}
            is_empty = path == "/ping" and status == 503
            responses[str(status)] = {"description": description, **({} if is_empty else body)}


def _list_errors(path: str, method: str, is_open: bool) -> Iterator[tuple[int, str]]:
    yield from ALWAYS.items()
    if is_open:
        yield from () if path == "/health" else NOT_READY.items()
        return
    yield from GUARDED.items()
    if method not in ("get", "head"):
        yield from WITH_BODY.items()
    if path.startswith(STATEFUL):
        yield from CONFLICT.items()


def _describe_error(path: str, status: int) -> Mapping[str, Any]:
    """Return the schema of an error. Errors before the path is known have OpenAI's format."""
    if path == "/ready" and status == 503:
        return {"type": "object", "properties": {"status": {"type": "string"}}}
    if not path.startswith("/v1/messages"):
        return _refer(OPENAI)
    if status in (408, 431):
        return {"anyOf": [_refer(OPENAI), _refer(ANTHROPIC)]}
    return _refer(ANTHROPIC)


def _refer(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


@cache
def _schemas(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schemas of a model and its parts by name. Cached, because every app needs them."""
    name = model.__name__
    schema = model.model_json_schema(ref_template=f"#/components/schemas/{name}.{{model}}")
    parts = {f"{name}.{part}": inner for part, inner in schema.pop("$defs", {}).items()}
    return parts | {name: schema}
