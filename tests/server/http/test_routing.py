"""Paths and methods: those that do not exist, HEAD, and the prefix of a proxy."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server.access.test_door import pages, routes
from tests.server.conftest import call, make_app, on_a_port


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
        ("POST", "/v1/nothing", None),
        ("GET", "/chat/completions", None),
        ("GET", "//", None),
    ],
)
async def test_a_path_without_its_prefix_is_told_the_right_one(lab, method, path, meant):
    answer = await lab.call(method, path, {})
    assert answer.status == 404
    hint = f"Did you mean {meant}?" if meant else "Did you mean"
    assert (hint in answer.json["error"]["message"]) == bool(meant)


async def test_no_path_redirects(lab):
    """A redirect would go where the Host header says, and a cache might keep it."""
    evil = {"host": "127.0.0.1:9"}
    for method, path in routes(lab.app):
        for given in (path + "/", path.rstrip("/"), "/" + path):
            answer = await call(lab.app, method, given, b"{}", headers=evil)
            assert not 300 <= answer.status < 400, (method, given)
            assert "location" not in answer.headers


@pytest.fixture
def with_pages(lab):
    lab.app = make_app(lab, pages())
    return lab


async def test_head_works_wherever_get_does(with_pages):
    checked = 0
    for method, path in routes(with_pages.app):
        if method != "GET" or path in ("/metrics", "/debug/speculation"):
            continue
        checked += 1
        got = await with_pages.get(path)
        asked = await with_pages.head(path)
        assert (asked.status, asked.body) == (got.status, b""), path
        assert asked.headers == got.headers, path
    assert checked > 6


async def test_head_where_there_is_no_get_is_refused_without_a_body(with_pages):
    answer = await with_pages.head("/v1/chat/completions")
    assert (answer.status, answer.body) == (405, b"")
    assert answer.headers["allow"] == "POST"
    answer = await with_pages.post("/v1/models", {})
    assert answer.headers["allow"] == "GET, HEAD"


async def test_head_of_a_stream_ends_at_once(lab):
    lab.says("one two three")
    body = {"model": "demo", "input": "hi", "background": True, "stream": False}
    made = (await lab.post("/v1/responses", body)).json
    answer = await lab.head(f"/v1/responses/{made['id']}?stream=true")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")


def test_head_on_the_wire_leaves_the_connection_in_order(lab):
    with on_a_port(lab.app) as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc)
        for _ in range(2):
            connection.request("HEAD", "/v1/models")
            answer = connection.getresponse()
            assert answer.status == 200
            assert int(answer.headers["content-length"]) == len(
                httpx.get(f"{url}/v1/models").content
            )
            assert answer.read() == b""


@pytest.fixture
def under(lab):
    lab.configure(root_path="/team/llm")
    lab.app = make_app(lab, pages())
    return lab


@pytest.mark.parametrize("prefix", ["", "/team/llm"])
async def test_paths_work_with_the_prefix_and_without_it(under, prefix):
    under.says("x")
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
    assert (await under.post(f"{prefix}/v1/chat/completions", body)).status == 200
    assert (await under.get(f"{prefix}/v1/models")).status == 200
    assert (await under.get(f"{prefix}/")).status == 200
    wrong = await under.post(f"{prefix}/v1/messages", {"model": 1})
    assert wrong.json["type"] == "error", "the error has the API's own shape"


async def test_the_document_names_the_prefix(under):
    assert (await under.get("/team/llm/openapi.json")).json["servers"] == [{"url": "/team/llm"}]


@pytest.mark.thorough
@pytest.mark.parametrize("path", ["/metrics", "/admin/status", "/debug/speculation", ""])
async def test_the_prefix_opens_no_operator_path(under, path):
    under.admit("user")
    assert (await under.get(f"/team/llm{path}", key="user")).status == 403
    assert (await under.get(f"/team/llm/team/llm{path}", key="user")).status == 404


async def test_other_paths_that_begin_alike_are_left_alone(under):
    assert (await under.get("/team/llms/v1/models")).status == 404
