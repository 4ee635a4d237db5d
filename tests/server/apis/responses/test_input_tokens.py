"""POST /v1/responses/input_tokens: what the same body would count as a prompt."""

from __future__ import annotations

import pytest

URL = "/v1/responses/input_tokens"
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
ITEM = {"type": "message", "role": "user", "content": "What is a cat?"}
BODIES = [
    {"input": "What is a cat?"},
    {"input": [ITEM, ITEM], "instructions": "Be short."},
    {"input": "Look it up.", "tools": [TOOL], "tool_choice": "auto"},
    {"input": "x", "stream": True, "store": False, "max_output_tokens": 5},
    {"input": "x", "background": True},
]


@pytest.mark.parametrize("more", BODIES)
async def test_the_count_is_that_of_the_response(lab, more):
    lab.says("An animal.")
    body = {"model": "demo"} | more
    counted = await lab.post(URL, body)
    assert (counted.status, counted.json["object"]) == (200, "response.input_tokens")
    assert not lab.engine.requests, "nothing is generated"
    await lab.post("/v1/responses", body | {"stream": False, "background": False})
    assert counted.json["input_tokens"] == len(lab.engine.requests[0].prompt)


@pytest.mark.parametrize("kind", ["previous_response_id", "conversation"])
async def test_earlier_turns_are_counted_and_nothing_is_stored(lab, kind):
    lab.says("An animal.")
    if kind == "conversation":
        id = (await lab.post("/v1/conversations", {"items": [ITEM]})).json["id"]
    else:
        id = (await lab.post("/v1/responses", {"model": "demo", "input": [ITEM]})).json["id"]
    body = {"model": "demo", "input": "And a dog?"}
    alone = (await lab.post(URL, body)).json["input_tokens"]
    counts = [(await lab.post(URL, body | {kind: id})).json["input_tokens"] for _ in range(2)]
    assert counts[0] == counts[1] > alone
    missing = await lab.post(URL, body | {kind: id[:5] + "none"})
    assert missing.status == 404


async def test_a_prompt_beyond_the_context_is_counted_up_to_four_times(lab):
    counted = await lab.post(URL, {"model": "demo", "input": "word " * 300})
    assert counted.json["input_tokens"] > 256
    refused = await lab.post(URL, {"model": "demo", "input": "word " * 5000})
    assert (refused.status, refused.json["error"]["param"]) == (400, "input")


async def test_no_response_is_called_input_tokens(lab):
    assert (await lab.get(URL)).status == 404
    assert (await lab.delete(URL)).status == 404
