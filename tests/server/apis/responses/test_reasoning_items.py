"""Reasoning that goes to a client and comes back: summaries and encrypted content."""

from __future__ import annotations

from base64 import b64decode

import pytest
from cryptography.fernet import Fernet

from eaglegate.server.apis.shared.encryption import ReasoningCipher
from tests.server.apis.responses.test_responses import plain, said

THOUGHT = "<think>\nso it is 42\n</think>\n\nForty-two."
SEALED = {"include": ["reasoning.encrypted_content"], "store": False}


def thought(lab) -> str:
    """The reasoning that the template saw in the assistant's last message."""
    turns = [m for m in lab.renderer.seen[-1]["messages"] if m["role"] == "assistant"]
    return turns[-1]["reasoning"]


async def sealed(lab, **fields) -> dict:
    lab.says(THOUGHT, [2, 3])
    body = (await lab.respond(**SEALED, **fields)).json
    return body["output"][0]


async def again(lab, item, headers=None, **fields):
    items = [{"role": "user", "content": "q"}, item, {"role": "user", "content": "why?"}]
    body = {"model": "demo", "input": items, "store": False} | fields
    return await lab.post("/v1/responses", body, headers=headers)


@pytest.mark.parametrize("field", ["summary", "generate_summary"])
async def test_a_summary_that_was_asked_for_is_the_reasoning(lab, field):
    lab.says(THOUGHT, [1, 2, 3])
    asked = {"reasoning": {field: "auto"}}
    whole = (await lab.respond(**asked)).json
    reasoning = whole["output"][0]
    assert reasoning["summary"] == [{"type": "summary_text", "text": "so it is 42"}]
    assert "content" not in reasoning
    events = said(await lab.respond(**asked, stream=True))
    assert plain(events[-1]["response"]) == plain(whole)
    of_summary = [e for e in events if "reasoning" in e["type"]]
    kinds = [event["type"].removeprefix("response.reasoning_summary_") for event in of_summary]
    assert list(dict.fromkeys(kinds)) == ["part.added", "text.delta", "text.done", "part.done"]
    assert all(event["summary_index"] == 0 for event in of_summary)
    assert all("content_index" not in event for event in of_summary)
    deltas = [e["delta"] for e in of_summary if e["type"].endswith("text.delta")]
    assert "".join(deltas) == of_summary[-2]["text"] == "so it is 42"
    assert of_summary[-1]["part"] == {"type": "summary_text", "text": "so it is 42"}


async def test_a_summary_that_comes_back_reaches_the_template(lab):
    lab.says("ok")
    parts = [{"type": "summary_text", "text": "one"}, {"type": "summary_text", "text": "two"}]
    assert (await again(lab, {"type": "reasoning", "summary": parts})).status == 200
    assert thought(lab) == "one\n\ntwo"
    shown = [{"type": "reasoning_text", "text": "all of it"}]
    await again(lab, {"type": "reasoning", "summary": parts, "content": shown})
    assert thought(lab) == "all of it"


@pytest.mark.parametrize("summary", [{}, {"reasoning": {"summary": "detailed"}}])
async def test_encrypted_reasoning_survives_without_a_store(lab, summary):
    item = await sealed(lab, **summary)
    token = item["encrypted_content"]
    assert b"so it is" not in b64decode(token, altchars=b"-_")
    bare = {"type": "reasoning", "id": item["id"], "summary": [], "encrypted_content": token}
    assert (await again(lab, bare)).status == 200
    assert thought(lab) == "so it is 42"


async def test_encrypted_reasoning_takes_precedence_over_its_plain_text(lab):
    item = await sealed(lab)
    assert item["content"] == [{"type": "reasoning_text", "text": "so it is 42"}]
    await again(lab, item | {"content": [{"type": "reasoning_text", "text": "changed"}]})
    assert thought(lab) == "so it is 42"


async def test_the_stream_has_it_when_the_item_is_done(lab):
    lab.says(THOUGHT, [2])
    events = said(await lab.respond(**SEALED, stream=True))
    (added, _) = [e["item"] for e in events if e["type"] == "response.output_item.added"]
    done = next(e["item"] for e in events if e["type"] == "response.output_item.done")
    assert "encrypted_content" not in added
    assert done == events[-1]["response"]["output"][0]
    assert (await again(lab, done)).status == 200
    assert thought(lab) == "so it is 42"


async def test_reasoning_is_encrypted_only_on_request(lab):
    lab.says(THOUGHT)
    assert "encrypted_content" not in (await lab.respond()).json["output"][0]


@pytest.mark.parametrize("change", [lambda t: t[:-4] + "AAAA", lambda t: "x", lambda t: t[:40]])
async def test_a_changed_one_is_refused_by_its_place(lab, change):
    item = await sealed(lab)
    answer = await again(lab, item | {"encrypted_content": change(item["encrypted_content"])})
    error = answer.json["error"]
    assert answer.status == 400
    assert error["param"] == "input[1].encrypted_content"
    assert error["code"] == "invalid_encrypted_content"


@pytest.mark.thorough
async def test_a_retired_key_still_reads(lab):
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    lab.gateway.cipher = ReasoningCipher([old])
    item = await sealed(lab)
    lab.gateway.cipher = ReasoningCipher([new, old])
    assert (await again(lab, item)).status == 200
    lab.gateway.cipher = ReasoningCipher([new])
    assert (await again(lab, item)).status == 400


async def test_a_conversation_takes_it(lab):
    item = await sealed(lab)
    bare = {"type": "reasoning", "summary": [], "encrypted_content": item["encrypted_content"]}
    made = (await lab.post("/v1/conversations", {"items": [bare]})).json
    lab.says("ok")
    assert (await lab.respond(conversation=made["id"])).status == 200
    assert thought(lab) == "so it is 42"
    wrong = bare | {"encrypted_content": "x"}
    answer = await lab.post(f"/v1/conversations/{made['id']}/items", {"items": [wrong]})
    assert (answer.status, answer.json["error"]["param"]) == (400, "items[0].encrypted_content")


async def test_reasoning_can_be_left_out(lab):
    lab.says(THOUGHT, [2])
    whole = (await lab.respond(include_reasoning=False)).json
    assert [item["type"] for item in whole["output"]] == ["message"]
    events = said(await lab.respond(include_reasoning=False, stream=True))
    assert plain(events[-1]["response"]) == plain(whole)
