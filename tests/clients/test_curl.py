"""curl, as people type it."""

from __future__ import annotations

import json

import pytest

from tests.clients.desk import Desk

pytestmark = pytest.mark.client("curl")

USER = [{"role": "user", "content": "hi"}]
BODIES = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 30},
}


def curl(desk: Desk, path: str, *options: str) -> str:
    ran = desk.run("curl", "curl", "-sS", "--fail-with-body", desk.url + path, *options)
    assert ran.code == 0, ran
    return ran.out


@pytest.mark.parametrize("path", BODIES)
def test_a_single_model_needs_no_name(desk, path):
    """posts a body without a model where there is only one"""
    answer = json.loads(curl(desk, path, "--json", json.dumps(BODIES[path])))
    assert answer["model"] == "demo"


def test_cross_origin(desk):
    """asks as a browser does before it lets a page of an allowed origin in"""
    page = ("-H", "Origin: https://page.example")
    asks = ("-H", "Access-Control-Request-Method: POST", "-H",
            "Access-Control-Request-Headers: content-type,authorization")  # fmt: skip
    preflight = curl(desk, "/v1/chat/completions", "-X", "OPTIONS", "-i", *page, *asks)
    assert "access-control-allow-origin: https://page.example" in preflight
    body = json.dumps(BODIES["/v1/chat/completions"] | {"num_ctx": 1})
    answer = curl(desk, "/v1/chat/completions", "-i", *page, "--json", body)
    headers = answer.partition("\r\n\r\n")[0].lower()
    assert "access-control-allow-origin: https://page.example" in headers
    (exposed,) = [line for line in headers.splitlines() if "expose-headers" in line]
    assert "x-eaglegate-ignored-fields" in exposed
    assert "x-eaglegate-ignored-fields: num_ctx" in headers
