"""A key that may use some models reaches no other, whichever endpoint is asked."""

from __future__ import annotations

import pytest

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
