"""Our own OpenAPI document: whatever it allows, and what it does not, never makes a 5xx."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from eaglegate.engine.errors import EngineDead, EngineFailed, EngineOverloaded
from eaglegate.server.access.cross_origin import CrossOriginPolicy

OPERATIONS = [
    ("/v1/chat/completions", "POST"),
    ("/v1/completions", "POST"),
    ("/v1/responses", "POST"),
    ("/v1/responses/input_tokens", "POST"),
    ("/v1/responses/{response_id}", "GET"),
    ("/v1/responses/{response_id}", "DELETE"),
    ("/v1/responses/{response_id}/cancel", "POST"),
    ("/v1/responses/{response_id}/input_items", "GET"),
    ("/v1/messages", "POST"),
    ("/v1/messages/count_tokens", "POST"),
    ("/v1/models", "GET"),
    ("/v1/models/{name}", "GET"),
    ("/v1/conversations", "POST"),
    ("/v1/conversations/{conversation_id}", "GET"),
    ("/v1/conversations/{conversation_id}", "POST"),
    ("/v1/conversations/{conversation_id}", "DELETE"),
    ("/v1/conversations/{conversation_id}/items", "GET"),
    ("/v1/conversations/{conversation_id}/items", "POST"),
    ("/v1/conversations/{conversation_id}/items/{item_id}", "GET"),
    ("/v1/conversations/{conversation_id}/items/{item_id}", "DELETE"),
    ("/tokenize", "POST"),
    ("/detokenize", "POST"),
    ("/version", "GET"),
]
TRIED = [(path, method, GenerationMode.POSITIVE) for path, method in OPERATIONS] + [
    (path, method, GenerationMode.NEGATIVE)
    for path, method in OPERATIONS
    if method == "POST" and "{" not in path
]


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "method", "mode"), TRIED)
def test_no_request_causes_a_server_error(lab, path, method, mode):
    lab.says("It rains.", [1, 2])
    lab.gateway.cross_origin = CrossOriginPolicy(hosts=("testserver",))
    operation = schemathesis.openapi.from_asgi("/openapi.json", lab.app)[path][method]

    @settings(
        max_examples=15,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def tried(case):
        case.validate_response(case.call(), checks=CHECKS)

    tried()


def test_the_document_covers_every_route(lab):
    document = lab.app.openapi()
    found = {(path, method.upper()) for path, ops in document["paths"].items() for method in ops}
    ours = {item for item in found if item[0].startswith(("/v1", "/tok", "/detok", "/version"))}
    assert ours == set(OPERATIONS)
    for name in ("ChatRequest", "CompletionRequest", "ResponsesRequest", "MessagesRequest"):
        assert "properties" in document["components"]["schemas"][name]


USER = [{"role": "user", "content": "hi"}]
GENERATING = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 9},
    "/v1/responses": {"input": "hi", "store": False},
    "/invocations": {"messages": USER},
}


def check(document: dict, method: str, path: str, answer) -> None:
    """The document knows the answer's status, content type and shape."""
    described = document["paths"][path][method.lower()]["responses"]
    assert str(answer.status) in described, (path, answer.status)
    content = described[str(answer.status)]["content"]
    kind = answer.headers["content-type"].partition(";")[0]
    assert kind in content, (path, answer.status, kind)
    if kind == "application/json":
        whole = {**content[kind]["schema"], "components": document["components"]}
        Draft202012Validator(whole).validate(answer.json)


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize(
    ("status", "change"),
    [
        (200, {}),
        (200, {"stream": True}),
        (400, {"temperature": "hot"}),
        (403, {"host": "elsewhere.example"}),
        (404, {"model": "nothing"}),
        (413, {"user": "x" * 9_000_000}),
        (415, {"content-type": "text/plain", "content-length": "9"}),
        (415, {"content-encoding": "gzip"}),
        (429, EngineOverloaded("full")),
        (500, EngineFailed("no")),
        (503, EngineDead("gone")),
        (504, {"x-request-timeout": "0.000001"}),
    ],
)
async def test_every_error_of_a_request_is_in_the_document(lab, path, status, change):
    lab.says("one two")
    if isinstance(change, Exception):
        lab.engine.script, change = [change], {}
    headers = {key: value for key, value in change.items() if "-" in key or key == "host"}
    body = GENERATING[path] | {k: v for k, v in change.items() if k not in headers}
    answer = await lab.post(path, body, headers=headers)
    assert answer.status == status, answer.body[:300]
    check(lab.app.openapi(), "POST", path, answer)


async def test_errors_of_keys_are_in_the_document(lab):
    lab.admit("user")
    document = lab.app.openapi()
    for path, operations in document["paths"].items():
        for method in operations:
            if "{" not in path and path not in ("/health", "/ready", "/ping"):
                answer = await lab.call(method.upper(), path, b"{}")
                assert answer.status in (401, 404), (path, answer.status)
                check(document, method, path, answer)


def test_the_document_promises_nothing_that_never_comes(lab):
    document = lab.app.openapi()
    assert "HTTPValidationError" not in document["components"]["schemas"]
    for operations in document["paths"].values():
        for operation in operations.values():
            assert "422" not in operation["responses"]
