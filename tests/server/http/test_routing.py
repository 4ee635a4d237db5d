"""Paths and methods that do not exist: what the answer says, and where it never leads."""

from __future__ import annotations

import pytest

from tests.server.access.test_door import routes
from tests.server.conftest import call


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v1/responses/resp_1", "DELETE, GET, HEAD"),
        ("PUT", "/v1/conversations/conv_1", "DELETE, GET, HEAD, POST"),
        ("PUT", "/v1/conversations/conv_1/items/item_1", "DELETE, GET, HEAD"),
        ("DELETE", "/v1/conversations/conv_1/items", "GET, HEAD, POST"),
        ("GET", "/v1/chat/completions", "POST"),
        ("PATCH", "/v1/models", "GET, HEAD"),
        ("DELETE", "/ping", "GET, HEAD, POST"),
    ],
)
async def test_all_methods_of_a_path_are_named(lab, method, path, allowed):
    answer = await lab.call(method, path, {})
    assert (answer.status, answer.headers["allow"]) == (405, allowed)
    assert f"use {allowed.replace(', ', ' or ')}." in answer.json["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_a_websocket_is_declined_with_426(lab, path):
    """Codex tries again six times after a 405, and goes on over HTTP at once after a 426."""
    offer = {"sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==", "sec-websocket-version": "13"}
    answer = await lab.get(path, headers=offer)
    assert (answer.status, answer.headers["upgrade"]) == (426, "HTTP/1.1")
    assert answer.json["error"]["message"] == f"{path} takes no websockets; send POST over HTTP."


@pytest.mark.parametrize("path", ["/v1?model=demo", "/v1/nothing"])
async def test_a_websocket_at_an_unknown_path_is_told_to_use_http(lab, path):
    offer = {"sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==", "sec-websocket-version": "13"}
    answer = await lab.get(path, headers=offer)
    assert answer.status == 404
    assert "no websockets either; send requests over HTTP" in answer.json["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/files", "/v1/files/file_1"])
async def test_anthropics_clients_get_errors_in_their_shape(lab, path):
    answer = await lab.get(path, headers={"anthropic-version": "2023-06-01"})
    assert (answer.status, answer.json["type"]) == (404, "error")
    assert answer.json["error"]["type"] == "not_found_error"


async def test_compaction_is_not_a_stored_response(lab):
    answer = await lab.post("/v1/responses/compact", {"model": "demo", "input": "hi"})
    assert answer.status == 404
    assert "summarizes no conversations" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "status"),
    [("/v1/audio/transcriptions", 404), ("/v1/files", 404), ("/v1/models", 405),
     ("/v1/chat/completions", 415)],
)  # fmt: skip
async def test_a_form_is_refused_by_the_path_first(lab, path, status):
    form = {"content-type": "multipart/form-data; boundary=x"}
    answer = await lab.post(path, b"--x--", headers=form | {"content-length": "5"})
    assert answer.status == status


@pytest.mark.parametrize(
    ("method", "path", "meant"),
    [
        ("POST", "/chat/completions", "/v1/chat/completions"),
        ("POST", "/v1/v1/chat/completions", "/v1/chat/completions"),
        ("POST", "/v1/chat/completions/", "/v1/chat/completions"),
        ("POST", "/completions", "/v1/completions"),
        ("POST", "/responses", "/v1/responses"),
        ("POST", "/v1/v1/v1/messages", "/v1/messages"),
        ("GET", "/models", "/v1/models"),
        ("GET", "/models/demo", "/v1/models/demo"),
        ("GET", "/health/", "/health"),
    ],
)
async def test_a_path_without_its_prefix_is_told_the_right_one(lab, method, path, meant):
    answer = await lab.call(method, path, {})
    assert answer.status == 404
    assert f"Did you mean {meant}?" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/nothing"), ("GET", "/chat/completions"), ("GET", "//")]
)
async def test_unknown_paths_without_a_neighbour_have_no_hint(lab, method, path):
    answer = await lab.call(method, path, {})
    assert answer.status == 404
    assert "Did you mean" not in answer.json["error"]["message"]


async def test_no_path_redirects(lab):
    """A redirect would go where the Host header says, and a cache might keep it."""
    evil = {"host": "127.0.0.1:9"}
    for method, path in routes(lab.app):
        for given in (path + "/", path.rstrip("/"), "/" + path):
            answer = await call(lab.app, method, given, b"{}", headers=evil)
            assert not 300 <= answer.status < 400, (method, given)
            assert "location" not in answer.headers
