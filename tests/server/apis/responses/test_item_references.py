"""Items named by their id: from responses, from conversations, and nobody else's."""

from __future__ import annotations

import pytest

from tests.server.apis.responses.test_responses import WEATHER

pytestmark = pytest.mark.thorough

THOUGHT = "<think>\nhm\n</think>\n\n"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
QUESTION = {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]}


def named(item: dict) -> dict:
    return {"type": "item_reference", "id": item["id"]}


async def called(lab, **fields) -> list[dict]:
    """The output of a response that thinks and calls a tool."""
    lab.says(THOUGHT + CALL, [2, 3])
    return (await lab.respond(input=[QUESTION], tools=[WEATHER], **fields)).json["output"]


def result(call: dict) -> dict:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}


async def test_the_second_step_of_a_tool_loop_names_the_first(lab):
    thought, call = await called(lab)
    lab.says("It rains.")
    items = [QUESTION, named(thought), {"id": call["id"]}, result(call)]
    answer = await lab.respond(input=items, tools=[WEATHER])
    assert answer.status == 200, answer.body
    _, turn, told = lab.renderer.seen[-1]["messages"]
    assert turn["reasoning"] == "hm"
    assert turn["tool_calls"][0]["function"] == {
        "name": "get_weather",
        "arguments": {"city": "Oslo"},
    }
    assert told["content"] == "rain"
    listed = (await lab.get(f"/v1/responses/{answer.json['id']}/input_items?order=asc")).json
    assert [item["type"] for item in listed["data"]][1:3] == ["reasoning", "function_call"]


async def test_items_of_the_input_can_be_named_too(lab):
    lab.says("yes")
    made = (await lab.respond(input="first")).json
    (given,) = (await lab.get(f"/v1/responses/{made['id']}/input_items")).json["data"]
    await lab.respond(input=[named(given), {"role": "user", "content": "second"}])
    assert [m["content"] for m in lab.renderer.seen[-1]["messages"]] == ["first", "second"]


async def test_a_reference_to_a_reference_is_found(lab):
    thought, call = await called(lab)
    lab.says("ok")
    first = (await lab.respond(input=[QUESTION, named(thought), named(call), result(call)])).json
    await lab.delete(f"/v1/responses/{first['id']}")
    again = await lab.respond(input=[QUESTION, named(thought), named(call), result(call)])
    assert again.status == 200


async def test_items_of_conversations_can_be_named(lab):
    items = [{"role": "user", "content": "from the conversation"}]
    made = (await lab.post("/v1/conversations", {"items": items})).json
    listed = (await lab.get(f"/v1/conversations/{made['id']}/items")).json["data"]
    lab.says("ok")
    assert (await lab.respond(input=[named(listed[0])])).status == 200
    assert lab.renderer.seen[-1]["messages"][0]["content"] == "from the conversation"
    other = (await lab.post("/v1/conversations", {"items": [named(listed[0])]})).json
    copied = (await lab.get(f"/v1/conversations/{other['id']}/items")).json["data"]
    assert copied == listed


@pytest.mark.parametrize("how", ["previous_response_id", "conversation"])
async def test_referenced_items_of_the_history_are_not_repeated(lab, how):
    lab.says(THOUGHT + CALL)
    made = (await lab.respond(input=[QUESTION], tools=[WEATHER])).json
    thought, call = made["output"]
    before = made["id"]
    if how == "conversation":
        items = {"items": [QUESTION, thought, call]}
        before = (await lab.post("/v1/conversations", items)).json["id"]
    lab.says("ok")
    answer = await lab.respond(input=[named(thought), named(call), result(call)], **{how: before})
    assert answer.status == 200
    roles = [m["role"] for m in lab.renderer.seen[-1]["messages"]]
    assert roles == ["user", "assistant", "tool"]


@pytest.mark.parametrize("where", ["unknown", "unstored", "deleted", "no store"])
async def test_a_missing_item_is_a_404_with_advice(lab, where):
    item = {"id": "rs_0123"}
    if where == "unstored":
        item = (await called(lab, store=False))[0]
    if where == "deleted":
        lab.says(THOUGHT + "yes")
        made = (await lab.respond()).json
        item = made["output"][0]
        await lab.delete(f"/v1/responses/{made['id']}")
    if where == "no store":
        item = (await called(lab))[0]
        lab.gateway.store = None
    answer = await lab.respond(input=[QUESTION, named(item)])
    error = answer.json["error"]
    assert (answer.status, error["param"], error["code"]) == (404, "input[1]", "item_not_found")
    assert item["id"] in error["message"]
    assert "item itself" in error["message"]


@pytest.mark.parametrize("id", ["", "x" * 65, 5, None])
async def test_an_id_is_a_short_text(lab, id):
    answer = await lab.respond(input=[{"type": "item_reference", "id": id}])
    assert (answer.status, answer.json["error"]["param"]) == (400, "input[0].id")
    answer = await lab.respond(input=[QUESTION | {"id": "x" * 65}])
    assert (answer.status, answer.json["error"]["param"]) == (400, "input[0].id")
