"""The Responses API on the wire, and with the OpenAI SDK."""

from __future__ import annotations

import asyncio
import time

import orjson
import pytest

from eaglegate.engine.errors import EngineDead, EngineOverloaded
from eaglegate.engine.events import Observer
from eaglegate.engine.scripted import Pause
from eaglegate.engine.types import Step
from eaglegate.server.errors import StoreFailed

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
ANSWER = f"<think>\nhm\n</think>\n\nLet me look.\n{CALL}"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
UNREADABLE = {"type": "json_schema", "name": "a", "schema": {"type": 1}}
URL = "/v1/responses"


def said(answer) -> list[dict]:
    out = []
    for frame in answer.body.decode().strip().split("\n\n"):
        name, data = frame.split("\n")
        event = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        out.append(event)
    return out


def plain(response: dict) -> dict:
    """A response without the fields that differ between two answers to the same request."""
    drop = ("id", "created_at", "completed_at")
    out = {key: value for key, value in response.items() if key not in drop}
    items = [{k: v for k, v in i.items() if k not in ("id", "call_id")} for i in out["output"]]
    return out | {"output": items}


async def test_a_response_has_items(lab):
    lab.says(ANSWER, [1, 2, 3])
    body = (await lab.respond(tools=[WEATHER])).json
    assert [item["type"] for item in body["output"]] == ["reasoning", "message", "function_call"]
    reasoning, message, call = body["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert message["content"][0]["text"] == "Let me look."
    assert orjson.loads(call["arguments"]) == {"city": "Oslo"}
    assert body["status"] == "completed"
    assert body["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


async def test_the_stream_tells_the_same_story(lab):
    lab.says(ANSWER, [1, 2, 3])
    whole = (await lab.respond(tools=[WEATHER])).json
    events = said(await lab.respond(tools=[WEATHER], stream=True))
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"]
    assert kinds[-1] == "completed"
    text_part = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    firsts = list(dict.fromkeys(kinds))
    for kind in ("output_item.added", *text_part, "function_call_arguments.done"):
        assert kind in firsts
    assert plain(events[-1]["response"]) == plain(whole)
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "Let me look."


async def test_a_limit_makes_it_incomplete(lab):
    lab.says("one two three four", [1])
    body = (await lab.respond(max_output_tokens=2)).json
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["output"][0]["status"] == "incomplete"
    assert said(await lab.respond(max_output_tokens=2, stream=True))[-1]["type"] == (
        "response.incomplete"
    )


async def test_a_conversation_goes_on_from_the_stored_response(lab):
    lab.says("Paris.")
    first = (await lab.respond(input="capital of France?", instructions="be brief")).json
    second = (await lab.respond(input="and its river?", previous_response_id=first["id"])).json
    third = await lab.respond(input="sure?", previous_response_id=second["id"])
    assert third.status == 200
    told = [(m["role"], m["content"]) for m in lab.renderer.seen[-1]["messages"]]
    assert told == [
        ("user", "capital of France?"),
        ("assistant", "Paris."),
        ("user", "and its river?"),
        ("assistant", "Paris."),
        ("user", "sure?"),
    ]


async def test_stored_responses_can_be_fetched_listed_and_deleted(lab):
    lab.says("yes")
    items = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    made = (await lab.respond(input=items)).json
    assert (await lab.get(f"{URL}/{made['id']}")).json == made
    listed = (await lab.get(f"{URL}/{made['id']}/input_items?limit=1")).json
    assert listed["data"][0]["content"] == [{"type": "input_text", "text": "b"}]
    assert listed["has_more"]
    rest = f"{URL}/{made['id']}/input_items?after={listed['last_id']}"
    assert (await lab.get(rest)).json["data"][0]["content"][0]["text"] == "a"
    for query, words in (
        ("after=nobody", "'after' must be the id of an item in this list; given 'nobody'"),
        ("order=up", "'order': Input should be 'asc' or 'desc'; given 'up'"),
        ("limit=0", "greater than or equal to 1; given '0'"),
    ):
        refused = await lab.get(f"{URL}/{made['id']}/input_items?{query}")
        assert refused.status == 400
        assert refused.json["error"]["param"] == query.partition("=")[0]
        assert words in refused.json["error"]["message"]
    assert (await lab.delete(f"{URL}/{made['id']}")).json["deleted"]
    assert (await lab.get(f"{URL}/{made['id']}")).status == 404
    assert (await lab.delete(f"{URL}/{made['id']}")).status == 404


async def test_responses_are_stored_only_if_allowed(lab):
    lab.says("yes")
    made = (await lab.respond(store=False)).json
    assert made["store"] is False
    assert (await lab.get(f"{URL}/{made['id']}")).status == 404
    lab.gateway.store = None
    assert (await lab.respond()).status == 200
    refused = await lab.respond(store=True)
    assert (refused.status, refused.json["error"]["param"]) == (400, "store")


async def test_a_conversation_with_tools_reaches_the_template(lab):
    lab.says("x")
    thought = {"type": "reasoning_text", "text": "hm"}
    call = {"type": "function_call", "call_id": "c1", "name": "get_weather"}
    items = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [thought]},
        call | {"arguments": '{"city": "Oslo"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    ]
    await lab.respond(input=items, reasoning={"effort": "none"})
    developer, user, assistant, tool = lab.renderer.seen[-1]["messages"]
    assert (developer["role"], user["content"]) == ("developer", "weather?")
    assert assistant["reasoning"] == "hm"
    assert assistant["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo"}
    assert tool == {"role": "tool", "tool_call_id": "c1", "content": "rain"}
    assert lab.renderer.seen[-1]["chat_template_kwargs"]["enable_thinking"] is False


async def test_truncation_leaves_out_the_oldest(lab):
    lab.says("x")
    turns = [{"role": "user", "content": f"{at} " + "word " * 30} for at in range(12)]
    refused = await lab.respond(input=turns)
    assert refused.json["error"]["code"] == "context_length_exceeded"
    answer = await lab.respond(input=turns, truncation="auto", instructions="be brief")
    assert answer.status == 200
    kept = lab.renderer.seen[-1]["messages"]
    assert kept[0]["content"] == "be brief"
    assert kept[-1]["content"].startswith("11 ")
    assert 2 <= len(kept) < 12


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True, "store": False}, "background"),
        ({"previous_response_id": "resp_no"}, "previous_response_id"),
        ({"text": {"format": UNREADABLE}}, "text.format.schema"),
    ],
)
async def test_unsupported_response_fields_are_refused_by_name(lab, fields, param):
    answer = await lab.respond(**fields)
    assert answer.status in (400, 404)
    assert answer.json["error"]["param"] == param
    assert not lab.engine.requests


async def test_an_error_in_mid_stream_is_told_and_ends_it(lab):
    lab.says("one two three", [1, 1, 1])
    lab.engine.script = [*lab.engine.script[:2], EngineDead("gone")]
    *_, error, failed = said(await lab.respond(stream=True))
    assert (error["type"], error["code"]) == ("error", "engine_dead")
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"]["code"] == "server_error"
    assert failed["response"]["output"][0]["content"][0]["text"].startswith("one")


async def test_an_error_before_the_first_token_keeps_its_status(lab):
    lab.engine.script = [EngineOverloaded("full")]
    assert (await lab.respond()).status == 429
    assert (await lab.respond(stream=True)).status == 429


async def test_a_background_response_runs_by_itself(lab):
    lab.says("one two", [1])
    made = (await lab.respond(background=True)).json
    assert made["status"] == "queued"
    await lab.runs.get(made["id"], "").task
    response = (await lab.get(f"{URL}/{made['id']}")).json
    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"] == "one two"
    lab.runs.forget(made["id"])
    assert (await lab.get(f"{URL}/{made['id']}")).json == response


async def test_a_background_response_can_be_cancelled(lab):
    begun = asyncio.Event()

    def script(_request):
        yield Step(tuple(lab.renderer.encode("one", False)))
        begun.set()
        yield Pause(60)

    lab.engine.script = script
    made = (await lab.respond(background=True)).json
    await asyncio.wait_for(begun.wait(), 5)
    assert (await lab.get(f"{URL}/{made['id']}")).json["status"] == "in_progress"
    cancelled = await lab.post(f"{URL}/{made['id']}/cancel", {})
    assert cancelled.json["status"] == "cancelled"
    assert not lab.engine.running
    assert (await lab.get(f"{URL}/{made['id']}")).json["status"] == "cancelled"
    lab.says("yes")
    other = (await lab.respond()).json
    assert (await lab.post(f"{URL}/{other['id']}/cancel", {})).status == 400


async def test_a_response_that_ran_when_the_gateway_stopped_has_failed(lab):
    lab.engine.script = [Pause(60)]
    made = (await lab.respond(background=True)).json
    await asyncio.sleep(0)
    run = lab.runs.get(made["id"], "")
    lab.runs.forget(made["id"])
    assert (await lab.get(f"{URL}/{made['id']}")).json["status"] == "in_progress"
    await lab.gateway.store.hold([made["id"]], time.time() - 1)
    response = (await lab.get(f"{URL}/{made['id']}")).json
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    await run.cancel()


@pytest.fixture
def forgetful(lab):
    """A lab whose store accepts no more responses."""
    lab.not_stored = []

    class Notes(Observer):
        def record_storage_failure(self):
            lab.not_stored.append(1)

    async def put(_stored):
        raise StoreFailed("Responses cannot be stored at the moment.", retry_after_s=5)

    lab.gateway.observer = Notes()
    lab.gateway.store.put = lab.gateway.store.settle = put
    return lab


async def test_an_answer_that_cannot_be_stored_is_delivered_says_so_and_is_counted(forgetful):
    forgetful.says("yes")
    whole = await forgetful.respond()
    assert (whole.status, whole.json["store"]) == (200, False)
    assert whole.json["output"][0]["content"][0]["text"] == "yes"
    events = said(await forgetful.respond(stream=True))
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["store"] is False
    assert len(forgetful.not_stored) == 2
    assert (await forgetful.get(f"{URL}/{whole.json['id']}")).status == 404


async def test_a_background_response_needs_a_store_to_begin_but_not_to_end(lab, forgetful):
    lab.says("one two", [1])
    refused = await lab.respond(background=True)
    assert (refused.status, refused.json["error"]["code"]) == (503, "store_failed")
    assert not lab.engine.requests
    failing = lab.gateway.store.put
    del lab.gateway.store.put, lab.gateway.store.settle
    made = (await lab.respond(background=True)).json
    lab.gateway.store.settle = failing
    await lab.runs.get(made["id"], "").task
    response = (await lab.get(f"{URL}/{made['id']}")).json
    assert (response["status"], response["store"]) == ("completed", False)
    assert said(await lab.get(f"{URL}/{made['id']}?stream=true"))[-1]["response"] == response


async def test_logprobs_are_those_of_the_text(lab):
    lab.says_with_logprobs("<think>\nhm\n</think>\n\nit is", size=1)
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    body = (await lab.respond(**fields)).json
    found = body["output"][1]["content"][0]["logprobs"]
    assert "".join(entry["token"] for entry in found).strip().startswith("it is")
    events = said(await lab.respond(**fields, stream=True))
    assert events[-1]["response"]["output"][1]["content"][0]["logprobs"] == found
