"""Tools of type custom, whose argument is one text: chat, Responses, and the OpenAI SDK."""

from __future__ import annotations

import orjson
import pytest

from eaglegate.text.events import FinishReason
from eaglegate.text.parsing.tools import PARAMETERS
from tests.server.apis.responses.test_responses import plain, said

TEXT = 'print("größe")\n'
INPUT = orjson.dumps({"input": TEXT}).decode()
CALL = f'<tool_call>\n{{"name": "run", "arguments": {INPUT}}}\n</tool_call>'
BOTH = f'{CALL}\n<tool_call>\n{{"name": "add", "arguments": {{"input": "1"}}}}\n</tool_call>'
CUTS = list(range(1, 40))

CUSTOM = {"type": "custom", "custom": {"name": "run", "description": "Runs Python."}}
NAMED = {"type": "custom", "custom": {"name": "run"}}
ADD = {"type": "function", "function": {"name": "add", "parameters": dict(PARAMETERS)}}
RUN_ITEM = {"type": "custom", "name": "run", "description": "Runs Python."}
ADD_ITEM = {"type": "function", "name": "add", "parameters": dict(PARAMETERS), "strict": False}


async def test_a_call_is_delivered_as_text(lab):
    lab.says(BOTH, [1, 2, 3])
    choice = (await lab.chat(tools=[CUSTOM, ADD])).json["choices"][0]
    first, second = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert first == {"id": first["id"], "type": "custom", "custom": {"name": "run", "input": TEXT}}
    assert second["function"] == {"name": "add", "arguments": '{"input": "1"}'}


async def test_the_stream_tells_the_same(lab):
    lab.says(BOTH, CUTS)
    chunks = (await lab.chat(tools=[CUSTOM, ADD], stream=True)).chunks
    deltas = [
        call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())
    ]
    opened = [call for call in deltas if "id" in call]
    assert [call["type"] for call in opened] == ["custom", "function"]
    assert opened[0]["custom"] == {"name": "run", "input": ""}
    pieces = [call["custom"]["input"] for call in deltas if call["index"] == 0]
    assert "".join(pieces) == TEXT
    assert len(pieces) > 2
    assert all("custom" not in call for call in deltas if call["index"] == 1)


async def test_the_model_is_offered_a_function(lab):
    lab.says("ok")
    await lab.chat(tools=[CUSTOM])
    (offered,) = lab.renderer.seen[-1]["tools"]
    assert offered == {
        "type": "function",
        "function": {"name": "run", "description": "Runs Python.", "parameters": PARAMETERS},
    }


async def test_earlier_calls_reach_the_template_as_it_was_offered(lab):
    lab.says("ok")
    call = {"id": "c1", "type": "custom", "custom": {"name": "run", "input": TEXT}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    items = [
        {"role": "user", "content": "go"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "run", "input": TEXT},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
    ]
    assert (await lab.chat(messages=messages, tools=[CUSTOM])).status == 200
    assert (await lab.respond(input=items, tools=[RUN_ITEM])).status == 200
    for seen in lab.renderer.seen[-2:]:
        (shown,) = seen["messages"][1]["tool_calls"]
        assert shown["function"] == {"name": "run", "arguments": {"input": TEXT}}
        assert seen["messages"][2]["content"] == "done"


@pytest.mark.parametrize(
    "choice",
    [
        NAMED,
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
    ],
)
async def test_a_call_can_be_forced(lab, choice):
    lab.says(CALL)
    answer = await lab.chat(tools=[CUSTOM, ADD], tool_choice=choice)
    assert answer.json["choices"][0]["message"]["tool_calls"][0]["custom"]["input"] == TEXT
    (grammar,) = [request.constraint.value for request in lab.engine.requests]
    assert ('"name\\": \\"run' in grammar, '"name\\": \\"add' in grammar) == (True, False)
    forced = {"type": "custom", "name": "run"}
    body = (await lab.respond(tools=[RUN_ITEM, ADD_ITEM], tool_choice=forced)).json
    assert body["tool_choice"] == forced


async def test_custom_tool_input_of_another_shape_is_delivered_unchanged(lab):
    lab.says('<tool_call>\n{"name": "run", "arguments": ["ls"]}\n</tool_call>', CUTS)
    body = (await lab.chat(tools=[CUSTOM])).json
    assert body["choices"][0]["message"]["tool_calls"][0]["custom"]["input"] == '["ls"]'


async def test_a_call_that_the_limit_cuts_is_delivered_so_far(lab):
    lab.says(CALL[:60], finish=FinishReason.LENGTH)
    choice = (await lab.chat(tools=[CUSTOM])).json["choices"][0]
    assert choice["finish_reason"] == "length"
    text = choice["message"]["tool_calls"][0]["custom"]["input"]
    assert text
    assert TEXT.startswith(text)


async def test_responses_have_items_of_their_own(lab):
    lab.says(BOTH, CUTS)
    whole = (await lab.respond(tools=[RUN_ITEM, ADD_ITEM])).json
    call, other = whole["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "run", TEXT)
    assert call["id"].startswith("ctc_")
    assert other["type"] == "function_call"
    assert whole["tools"][0] == RUN_ITEM
    events = said(await lab.respond(tools=[RUN_ITEM, ADD_ITEM], stream=True))
    deltas = [e for e in events if e["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(event["delta"] for event in deltas) == TEXT
    (done,) = [e for e in events if e["type"] == "response.custom_tool_call_input.done"]
    assert set(done) == {"type", "item_id", "output_index", "input", "sequence_number"}
    assert done["input"] == TEXT
    assert plain(events[-1]["response"]) == plain(whole)
