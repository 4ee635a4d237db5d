"""Our own OpenAPI document: whatever it allows, and what it does not, never makes a 5xx."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error

from server.http.cross_origin import CrossOriginPolicy

OPERATIONS = [
    ("/v1/chat/completions", "POST"),
    ("/v1/completions", "POST"),
    ("/v1/responses", "POST"),
    ("/v1/responses/{response_id}", "GET"),
    ("/v1/responses/{response_id}", "DELETE"),
    ("/v1/responses/{response_id}/cancel", "POST"),
    ("/v1/responses/{response_id}/input_items", "GET"),
    ("/v1/conversations", "POST"),
    ("/v1/conversations/{conversation_id}", "POST"),
    ("/v1/conversations/{conversation_id}/items", "GET"),
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


@pytest.mark.slow
@pytest.mark.parametrize(("path", "method", "mode"), TRIED)
def test_nothing_makes_a_server_error(lab, path, method, mode):
    lab.says("It rains.", [1, 2])
    lab.gateway.cross_origin = CrossOriginPolicy(hosts=("testserver",))
    operation = schemathesis.openapi.from_asgi("/openapi.json", lab.app)[path][method]

    @settings(
        max_examples=15, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def tried(case):
        case.validate_response(case.call(), checks=[not_a_server_error])

    tried()


def test_the_document_covers_every_route(lab):
    document = lab.app.openapi()
    found = {(path, method.upper()) for path, ops in document["paths"].items() for method in ops}
    ours = {item for item in found if item[0].startswith(("/v1", "/tok", "/detok", "/version"))}
    assert ours == set(OPERATIONS)
    for name in ("ChatRequest", "CompletionRequest", "ResponsesRequest", "MessagesRequest"):
        assert "properties" in document["components"]["schemas"][name]
