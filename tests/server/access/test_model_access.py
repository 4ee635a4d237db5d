"""Models of a key that may use some, and the affinity of requests, on each endpoint."""

from __future__ import annotations

import pytest

from eaglegate.text.events import FinishReason
from tests.server.conftest import make_key

MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}
BODIES = {
    "/v1/chat/completions": [MESSAGES],
    "/v1/completions": [{"prompt": "hi"}],
    "/v1/responses": [{"input": "hi"}, {"input": "hi", "background": True}],
    "/v1/responses/input_tokens": [{"input": "hi"}],
    "/v1/messages": [MESSAGES | {"max_tokens": 5}],
    "/v1/messages/count_tokens": [MESSAGES],
    "/tokenize": [{"prompt": "hi"}, MESSAGES],
    "/detokenize": [{"tokens": [1, 2]}],
    "/invocations": [MESSAGES, {"prompt": "hi"}],
}
STREAMED = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
ASKED = [
    (path, body | more)
    for path, bodies in BODIES.items()
    for body in bodies
    for more in ([{}, {"stream": True}] if path in STREAMED else [{}])
]


@pytest.fixture
def limited(lab):
    """A gateway that serves demo and alias, with a key for alias."""
    lab.says("Hello.")
    lab.admit(make_key("user", models=frozenset({"alias"})))
    return lab


@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_a_key_reaches_its_models_and_no_other(limited, path, body):
    refused = await limited.post(path, body | {"model": "demo"}, key="user")
    assert refused.status == 403
    assert "may not use the model 'demo'" in refused.json["error"]["message"]
    if "/messages" not in path:
        error = refused.json["error"]
        assert (error["code"], error["param"]) == ("model_not_allowed", "model")
    assert not limited.engine.requests, "the engine never heard of it"
    served = await limited.post(path, body | {"model": "alias"}, key="user")
    assert served.status == 200, served.body


def test_every_endpoint_that_takes_a_model_is_tried(lab):
    document = lab.app.openapi()
    schemas = document["components"]["schemas"]
    taking = set()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            content = operation.get("requestBody", {}).get("content", {})
            reference = content.get("application/json", {}).get("schema", {}).get("$ref", "")
            if "model" in schemas.get(reference.rpartition("/")[2], {}).get("properties", {}):
                taking.add(path)
    assert taking | {"/invocations"} == set(BODIES)


async def test_a_key_sees_its_models_and_no_other(limited):
    listed = (await limited.get("/v1/models", key="user")).json["data"]
    assert [model["id"] for model in listed] == ["alias"]
    assert (await limited.get("/v1/models/alias", key="user")).status == 200
    hidden = await limited.get("/v1/models/demo", key="user")
    assert hidden.status == 404
    assert "serves: alias." in hidden.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", MESSAGES | {"prompt_cache_key": "k"}),
        ("/v1/chat/completions", MESSAGES | {"user": "k"}),
        ("/v1/chat/completions", MESSAGES | {"session_id": "k"}),
        ("/v1/completions", {"prompt": "hi", "user": "k"}),
        ("/v1/responses", {"input": "hi", "prompt_cache_key": "k"}),
        ("/v1/responses", {"input": "hi", "prompt_cache_key": "c", "session_id": "k"}),
        ("/v1/messages", MESSAGES | {"max_tokens": 4, "metadata": {"user_id": "k"}}),
    ],
)
async def test_each_api_has_a_field_for_it_and_a_header_comes_first(lab, path, fields):
    lab.says("hello", finish=FinishReason.STOP)
    body = {"model": "demo", **fields}
    assert (await lab.post(path, body)).status == 200
    assert (await lab.post(path, body, headers={"x-session-id": "s"})).status == 200
    assert [request.affinity for request in lab.engine.requests] == ["k", "s"]


async def test_without_any_there_is_none(lab):
    lab.says("hello")
    await lab.chat()
    await lab.message()
    assert [request.affinity for request in lab.engine.requests] == [None, None]


async def test_the_header_goes_by_the_name_that_was_set(lab):
    lab.configure(session_header="x-agent")
    lab.says("hello")
    body = {"model": "demo"} | MESSAGES
    await lab.post("/v1/chat/completions", body, headers={"x-agent": "a", "x-session-id": "s"})
    assert lab.engine.requests[0].affinity == "a"
