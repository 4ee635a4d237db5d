"""Conversation objects, on the wire and with the OpenAI SDK."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from eaglegate.server.store.base import Retention, StoreLimits
from eaglegate.server.store.sql import SqlResponseStore

URL = "/v1/conversations"
HELLO = {"type": "message", "role": "user", "content": "hello"}


async def test_a_conversation_is_made_found_changed_and_gone(lab):
    made = (await lab.post(URL, {"metadata": {"a": "b"}})).json
    assert made["object"] == "conversation"
    assert made["id"].startswith("conv_")
    at = f"{URL}/{made['id']}"
    assert (await lab.get(at)).json == made
    assert (await lab.post(at, {"metadata": {"c": "d"}})).json["metadata"] == {"c": "d"}
    assert (await lab.get(at)).json == made | {"metadata": {"c": "d"}}
    gone = (await lab.delete(at)).json
    assert gone == {"id": made["id"], "object": "conversation.deleted", "deleted": True}
    assert (await lab.get(at)).status == 404
    assert (await lab.get(f"{at}/items")).status == 404


async def test_items_come_go_and_are_listed(lab):
    made = (await lab.post(URL, {"items": [HELLO]})).json
    at = f"{URL}/{made['id']}/items"
    more = {"type": "message", "role": "assistant", "content": "good day"}
    (added,) = (await lab.post(at, {"items": [more]})).json["data"]
    assert added["content"][0]["type"] == "output_text"
    listed = (await lab.get(f"{at}?order=asc")).json
    assert [item["role"] for item in listed["data"]] == ["user", "assistant"]
    assert [item["role"] for item in (await lab.get(at)).json["data"]] == ["assistant", "user"]
    assert (await lab.get(f"{at}/{added['id']}")).json == added
    assert (await lab.delete(f"{at}/{added['id']}")).json["id"] == made["id"]
    assert (await lab.get(f"{at}/{added['id']}")).status == 404
    assert len((await lab.get(at)).json["data"]) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_reads_the_conversation_and_adds_to_it(lab, stream):
    made = (await lab.post(URL, {"items": [HELLO]})).json
    for said in ("one", "two"):
        lab.says(said)
        body = {"model": "demo", "input": f"say {said}", "conversation": made["id"]}
        answer = await lab.post("/v1/responses", body | {"stream": stream, "store": False})
        assert answer.status == 200
        if not stream:
            assert answer.json["conversation"] == {"id": made["id"]}
    seen = [(m["role"], m["content"]) for m in lab.renderer.seen[-1]["messages"]]
    assert seen == [
        ("user", "hello"),
        ("user", "say one"),
        ("assistant", "one"),
        ("user", "say two"),
    ]
    items = (await lab.get(f"{URL}/{made['id']}/items?order=asc")).json["data"]
    assert [item["content"][0]["text"] for item in items][-2:] == ["say two", "two"]
    assert len({item["id"] for item in items}) == 5


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"conversation": "conv_nobody"}, 404, "conversation_id"),
        ({"conversation": {"id": "conv_nobody"}}, 404, "conversation_id"),
        ({"conversation": "x", "previous_response_id": "y"}, 400, "conversation"),
    ],
)
async def test_invalid_conversations_of_a_response_are_refused(lab, fields, status, param):
    answer = await lab.post("/v1/responses", {"model": "demo", "input": "x"} | fields)
    assert (answer.status, answer.json["error"]["param"]) == (status, param)


async def test_items_that_are_no_text_are_refused_by_their_place(lab):
    picture = {"type": "input_image", "image_url": "data:"}
    item = {"type": "message", "role": "user", "content": [picture]}
    answer = await lab.post(URL, {"items": [HELLO, item]})
    assert (answer.status, answer.json["error"]["param"]) == (400, "items[1].content[0]")


async def test_without_a_store_there_are_none(lab):
    lab.gateway.store = None
    answer = await lab.post(URL, {})
    assert answer.status == 400
    assert "--responses-store" in answer.json["error"]["message"]


def count_rows(lab, table):
    with lab.gateway.store._engine.connect() as connection:
        return connection.execute(text(f"select count(*) from {table}")).scalar()


async def test_a_refused_conversation_leaves_nothing(lab):
    """Two items fit, a third does not."""
    lab.gateway.store = SqlResponseStore("sqlite://", Retention(3600), StoreLimits(items=2))
    message = {"type": "message", "role": "user", "content": "hi"}
    refused = await lab.post("/v1/conversations", {"items": [message] * 3})
    assert (refused.status, refused.json["error"]["code"]) == (400, "conversation_too_large")
    for table in ("eaglegate_conversations", "eaglegate_conversation_items"):
        assert count_rows(lab, table) == 0
    made = (await lab.post("/v1/conversations", {"items": [message]})).json
    url = f"/v1/conversations/{made['id']}/items"
    assert (await lab.post(url, {"items": [message] * 2})).status == 400
    assert len((await lab.get(url)).json["data"]) == 1
    assert (await lab.post(url, {"items": [message]})).status == 200
