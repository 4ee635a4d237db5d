"""Tools that Anthropic defines and the client runs are functions to the model."""

from __future__ import annotations

import json

import pytest

HEADER = "x-eaglegate-ignored-fields"
USER = {"role": "user", "content": "hi"}
BASH = {"type": "bash_20250124", "name": "bash"}
EDITOR = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}
OLD_EDITOR = {"type": "text_editor_20250124", "name": "str_replace_editor"}
MEMORY = {"type": "memory_20250818", "name": "memory"}
COMPUTER = {
    "type": "computer_20251124", "name": "computer",
    "display_width_px": 1024, "display_height_px": 768, "enable_zoom": True,
}  # fmt: skip
CALLS = {
    "bash": (BASH, {"command": "ls"}),
    "restart": (BASH, {"restart": True}),
    "edit": (EDITOR, {"command": "str_replace", "path": "a", "old_str": "b", "new_str": "c"}),
    "insert": (EDITOR, {"command": "insert", "path": "a", "insert_line": 0, "insert_text": "x"}),
    "undo": (OLD_EDITOR, {"command": "undo_edit", "path": "a"}),
    "rename": (MEMORY, {"command": "rename", "old_path": "/memories/a", "new_path": "/memories/b"}),
    "click": (COMPUTER, {"action": "left_click", "coordinate": [3, 4]}),
    "zoom": (COMPUTER, {"action": "zoom", "region": [0, 0, 9, 9]}),
    "scroll": (COMPUTER, {"action": "scroll", "scroll_direction": "up", "scroll_amount": 2}),
}


async def ask(lab, *messages, **fields):
    body = {"max_tokens": 99, "messages": [USER, *messages]} | fields
    return await lab.post("/v1/messages", body)


@pytest.mark.thorough
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_and_its_result_go_round(lab, name, stream):
    tool, arguments = CALLS[name]
    lab.says(
        f"<tool_call>\n{json.dumps({'name': tool['name'], 'arguments': arguments})}\n</tool_call>"
    )
    answer = await ask(lab, tools=[tool], stream=stream)
    assert answer.status == 200
    assert HEADER not in answer.headers
    (offered,) = lab.renderer.seen[-1]["tools"]
    assert offered["function"]["name"] == tool["name"]
    assert set(arguments) <= set(offered["function"]["parameters"]["properties"])
    if stream:
        return
    (use,) = answer.json["content"]
    assert (use["name"], use["input"]) == (tool["name"], arguments)
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": "done"}
    lab.says("Yes.")
    answer = await ask(
        lab, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]},
        tools=[tool],
    )  # fmt: skip
    assert answer.json["content"][0]["text"] == "Yes."
    said, read = lab.renderer.seen[-1]["messages"][-2:]
    assert said["tool_calls"][0]["function"] == {"name": tool["name"], "arguments": arguments}
    assert read["content"] == "done"


def parameters(lab, name="action"):
    return lab.renderer.seen[-1]["tools"][0]["function"]["parameters"]["properties"][name]


async def test_versions_differ_as_they_are_documented(lab):
    lab.says("x")
    await ask(lab, tools=[COMPUTER])
    assert "1024 x 768" in lab.renderer.seen[-1]["tools"][0]["function"]["description"]
    assert {"zoom", "scroll"} <= set(parameters(lab)["enum"])
    await ask(lab, tools=[COMPUTER | {"enable_zoom": False}])
    assert "zoom" not in parameters(lab)["enum"]
    await ask(lab, tools=[COMPUTER | {"type": "computer_20241022", "enable_zoom": None}])
    assert "scroll" not in parameters(lab)["enum"]
    await ask(lab, tools=[EDITOR])
    assert "undo_edit" not in parameters(lab, "command")["enum"]


async def test_a_client_tool_can_be_required_and_strict(lab):
    call = {"name": "bash", "arguments": {"command": "ls"}}
    lab.says(f"<tool_call>\n{json.dumps(call)}\n</tool_call>")
    choice = {"type": "tool", "name": "bash"}
    answer = await ask(lab, tools=[BASH | {"strict": True}], tool_choice=choice)
    assert answer.json["stop_reason"] == "tool_use", answer.json
    assert '"command"' in lab.engine.requests[-1].constraint.value


async def test_a_toolset_whose_calls_cannot_be_written_is_refused(lab):
    """``computer_toolset_20260801`` is the client's, and has calls of another shape."""
    answer = await ask(lab, tools=[{"type": "computer_toolset_20260801"}])
    assert answer.status == 400
    assert "computer_toolset_20260801" in answer.json["error"]["message"]
