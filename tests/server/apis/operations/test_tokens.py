"""POST /tokenize and /detokenize."""

from __future__ import annotations

import pytest


async def test_text_and_messages_become_tokens_and_text_again(lab):
    body = {"prompt": "grün is 12", "return_token_strs": True}
    out = (await lab.post("/tokenize", body)).json
    assert out["tokens"] == lab.renderer.encode("grün is 12", True)
    assert (out["count"], out["max_model_len"]) == (len(out["tokens"]), 256)
    assert len(out["token_strs"]) == out["count"]
    back = (await lab.post("/detokenize", {"tokens": out["tokens"]})).json
    assert back == {"prompt": "grün is 12"}
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
    out = (await lab.post("/tokenize", body)).json
    assert out["tokens"] == lab.renderer.encode("user: hi", False)
    assert not lab.engine.requests


async def test_tools_count_as_the_model_sees_them(lab):
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [
        {"type": "function", "function": {"name": "f"}},
        {"type": "custom", "custom": {"name": "g"}},
        {"type": "web_search"},
    ]}  # fmt: skip
    answer = await lab.post("/tokenize", body)
    assert answer.headers["x-eaglegate-ignored-fields"] == "tools[web_search]"
    assert [t["function"]["name"] for t in lab.renderer.seen[-1]["tools"]] == ["f", "g"]


@pytest.mark.parametrize(
    ("url", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user"}]}, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "nope"}, "model"),
        ("/detokenize", {"tokens": [99999]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
    ],
)
async def test_invalid_token_requests_are_refused_by_name(lab, url, body, param):
    answer = await lab.post(url, body)
    assert answer.status in (400, 404)
    assert answer.json["error"]["param"] == param
