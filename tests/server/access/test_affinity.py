"""Affinity keys, which tell the engine that requests belong together."""

from __future__ import annotations

import pytest

from eaglegate.text.events import FinishReason

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "prompt_cache_key": "k"}),
        ("/v1/chat/completions", {"messages": MESSAGES, "user": "k"}),
        ("/v1/chat/completions", {"messages": MESSAGES, "session_id": "k"}),
        ("/v1/completions", {"prompt": "hi", "user": "k"}),
        ("/v1/responses", {"input": "hi", "prompt_cache_key": "k"}),
        ("/v1/responses", {"input": "hi", "prompt_cache_key": "c", "session_id": "k"}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 4, "metadata": {"user_id": "k"}}),
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
    await lab.post("/v1/messages", {"model": "demo", "messages": MESSAGES, "max_tokens": 4})
    assert [request.affinity for request in lab.engine.requests] == [None, None]


async def test_the_header_goes_by_the_name_that_was_set(lab):
    lab.configure(session_header="x-agent")
    lab.says("hello")
    body = {"model": "demo", "messages": MESSAGES}
    await lab.post("/v1/chat/completions", body, headers={"x-agent": "a", "x-session-id": "s"})
    assert lab.engine.requests[0].affinity == "a"
