"""Requests that generate nothing pay like others; what was said before is bounded."""

from __future__ import annotations

import time

import pytest

from eaglegate.server.access.notices import Notices
from eaglegate.server.access.quota import KeyQuota
from eaglegate.server.apis.shared.template import MediaPolicy
from tests.server.conftest import make_key

SAY = [{"role": "user", "content": "hi"}]
FREE = {
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [5]},
    "/v1/messages/count_tokens": {"model": "demo", "messages": SAY},
    "/v1/responses/input_tokens": {"model": "demo", "input": "hi"},
    "/v1/conversations": {},
}


def keyed(lab, **limits):
    quota = KeyQuota("user", clock=lambda: 0.0, **limits)
    lab.admit(make_key("user", quota=quota))
    return quota


@pytest.mark.parametrize("url", FREE)
async def test_endpoints_that_generate_nothing_count_for_the_request_limit(lab, url):
    keyed(lab, requests=5)
    statuses = [(await lab.post(url, FREE[url], key="user")).status for _ in range(7)]
    assert statuses == [200] * 5 + [429] * 2


async def test_a_prompt_that_is_served_is_paid_once(lab):
    lab.says("yes")
    quota = keyed(lab, tokens=100_000)
    answer = await lab.post("/v1/completions", completion(), key="user")
    assert 100_000 - quota._tokens.level == answer.json["usage"]["total_tokens"]


def completion() -> dict:
    return {"model": "demo", "prompt": "A cat sat. " * 20}


async def test_all_bytes_are_given_back(lab):
    lab.says("yes")
    for url, body in [*FREE.items(), ("/v1/completions", completion()), ("/tokenize", b"[")]:
        await lab.post(url, body)
    assert lab.gateway.budget.held == 0


@pytest.mark.parametrize("url", ["/v1/completions", "/tokenize"])
async def test_text_that_cannot_fit_is_refused_in_the_words_of_overflow(lab, url):
    answer = await lab.post(url, {"model": "demo", "prompt": "x" * 1_000_000})
    assert (answer.status, answer.json["error"]["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 256 tokens" in answer.json["error"]["message"]


async def test_only_the_end_of_a_long_text_is_read_where_it_is_truncated(lab):
    lab.says("yes")
    text = "A cat sat on a mat. " * 50_000
    body = {"model": "demo", "prompt": text, "truncate_prompt_tokens": 20}
    assert (await lab.post("/v1/completions", body)).status == 200
    expected = lab.renderer.encode(text[-2000:], True)[-20:]
    assert list(lab.engine.requests[0].prompt) == expected


def message(size: int) -> dict:
    return {"type": "message", "role": "user", "content": "a" * size}


async def test_a_conversation_grows_to_the_size_of_one_request(lab):
    lab.says("yes")
    lab.configure(max_body_bytes=10_000)
    talk = (await lab.post("/v1/conversations", {})).json["id"]
    url = f"/v1/conversations/{talk}/items"
    statuses = [(await lab.post(url, {"items": [message(4000)]})).status for _ in range(4)]
    assert statuses == [200, 200, 400, 400]
    answer = await lab.post(
        "/v1/responses", {"model": "demo", "conversation": talk, "input": "b" * 3000}
    )
    assert (answer.status, answer.json["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_chain_of_responses_is_as_long_as_one_request(lab):
    lab.says("yes")
    lab.configure(max_body_bytes=3_000)
    previous, statuses = None, []
    for _ in range(10):
        body = {"model": "demo", "input": "a " * 100, "previous_response_id": previous}
        body["truncation"] = "auto"
        answer = await lab.post("/v1/responses", body)
        statuses.append(answer.status)
        previous = answer.json.get("id", previous)
    assert statuses[0] == 200
    assert statuses[-1] == 400
    assert "limit is 3000" in answer.json["error"]["message"]


def test_only_the_beginning_of_a_name_is_looked_at():
    began = time.process_time()
    for _ in range(10):
        Notices().note("a b " * 2_000_000)
        MediaPolicy(True).text("a b " * 2_000_000, "messages[0]")
    assert time.process_time() - began < 1
