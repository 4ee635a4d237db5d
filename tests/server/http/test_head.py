"""HEAD answers as GET does, without a body."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server.access.test_door import pages, routes
from tests.server.conftest import make_app, on_a_port


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
