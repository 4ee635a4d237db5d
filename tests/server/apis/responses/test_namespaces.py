"""Tools in namespaces: offered as NAMESPACE__NAME, delivered as the client named them."""

from __future__ import annotations

import pytest

from tests.server.apis.responses.test_responses import plain, said

ADD = {
    "type": "function",
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": False,
}
SUMS = {"type": "namespace", "name": "mcp__sums", "description": "Arithmetic.", "tools": [ADD]}
NOTE = {"type": "custom", "name": "note", "description": "Writes down."}
NOTES = {"type": "namespace", "name": "notes", "description": "Paper.", "tools": [NOTE, ADD]}
CALL = '<tool_call>\n{"name": "mcp__sums__add", "arguments": {"a": 1}}\n</tool_call>'
NOTED = '<tool_call>\n{"name": "notes__note", "arguments": {"input": "two"}}\n</tool_call>'


def offered(lab) -> list[str]:
    return [tool["function"]["name"] for tool in lab.renderer.seen[-1]["tools"]]


async def test_the_model_is_offered_flat_names(lab):
    lab.says("ok")
    body = (await lab.respond(tools=[SUMS, NOTES])).json
    assert offered(lab) == ["mcp__sums__add", "notes__note", "notes__add"]
    shown = lab.renderer.seen[-1]["tools"][0]["function"]
    assert shown["description"] == "Adds two numbers."
    assert shown["parameters"] == ADD["parameters"]
    assert body["tools"] == [SUMS, NOTES]


async def test_a_call_names_its_namespace(lab):
    lab.says(f"{CALL}\n{NOTED}", [3, 4, 5])
    whole = (await lab.respond(tools=[SUMS, NOTES])).json
    call, noted = whole["output"]
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "mcp__sums", "add")
    assert (noted["namespace"], noted["name"], noted["input"]) == ("notes", "note", "two")
    events = said(await lab.respond(tools=[SUMS, NOTES], stream=True))
    added = [e["item"] for e in events if e["type"] == "response.output_item.added"]
    assert [(item["namespace"], item["name"]) for item in added] == [
        ("mcp__sums", "add"),
        ("notes", "note"),
    ]
    (done,) = [e for e in events if e["type"] == "response.function_call_arguments.done"]
    assert done["name"] == "add"
    assert plain(events[-1]["response"]) == plain(whole)


async def test_a_call_outside_any_namespace_has_none(lab):
    lab.says('<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>')
    (call,) = (await lab.respond(tools=[SUMS, ADD])).json["output"]
    assert call["name"] == "add"
    assert "namespace" not in call


async def test_earlier_calls_reach_the_template_flat(lab):
    lab.says("ok")
    sum_call = {"type": "function_call", "call_id": "c1", "arguments": '{"a": 1}'}
    note_call = {"type": "custom_tool_call", "call_id": "c2", "input": "x"}
    items = [
        {"role": "user", "content": "go"},
        sum_call | {"namespace": "mcp__sums", "name": "add"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        note_call | {"namespace": "notes", "name": "note"},
    ]
    assert (await lab.respond(input=items, tools=[SUMS])).status == 200
    calls = [
        call["function"]["name"]
        for message in lab.renderer.seen[-1]["messages"]
        for call in message.get("tool_calls", ())
    ]
    assert calls == ["mcp__sums__add", "notes__note"]


@pytest.mark.parametrize("name", ["mcp__sums__add", "add"])
async def test_a_call_can_be_forced_by_its_full_name_or_its_own(lab, name):
    lab.says(CALL)
    choice = {"type": "function", "name": name}
    body = (await lab.respond(tools=[SUMS], tool_choice=choice)).json
    assert body["output"][0]["name"] == "add"
    (request,) = lab.engine.requests
    assert '\\"mcp__sums__add' in request.constraint.value


async def test_a_name_that_two_namespaces_have_must_be_given_in_full(lab):
    choice = {"type": "function", "name": "add"}
    answer = await lab.respond(tools=[SUMS, NOTES], tool_choice=choice)
    assert (answer.status, answer.json["error"]["param"]) == (400, "tool_choice")
    assert "mcp__sums__add" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "namespace", "name": "a"}, "tools[0].tools"),
        ({"type": "namespace", "tools": [ADD]}, "tools[0].name"),
        ({"type": "namespace", "name": "a", "tools": [{"type": "function"}]}, "tools[0].tools[0]"),
        ({"type": "namespace", "name": "a", "tools": [SUMS]}, "tools[0].tools[0]"),
    ],
)
async def test_a_malformed_namespace_is_refused_by_its_place(lab, tool, param):
    answer = await lab.respond(tools=[tool])
    assert (answer.status, answer.json["error"]["param"]) == (400, param)


async def test_two_tools_with_the_same_flat_name_are_refused(lab):
    twin = ADD | {"name": "mcp__sums__add"}
    answer = await lab.respond(tools=[SUMS, twin])
    assert (answer.status, answer.json["error"]["param"]) == (400, "tools")


async def test_there_is_a_limit_on_all_of_them(lab):
    many = [ADD | {"name": f"t{at}"} for at in range(600)]
    two = [SUMS | {"name": name, "tools": many} for name in "ab"]
    answer = await lab.respond(tools=two)
    assert (answer.status, answer.json["error"]["param"]) == (400, "tools")
