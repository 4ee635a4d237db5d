"""Tools that OpenAI defines and the client runs are functions to the model."""

from __future__ import annotations

import json

import orjson
import pytest
from openai.types.responses import Response

SHELL = {"type": "shell", "environment": {"type": "local"}}
LOCAL = {"type": "local_shell"}
PATCH = {"type": "apply_patch"}
EXEC = {"command": ["ls", "-l"], "working_directory": "/tmp"}
CALLS = {
    "shell": (
        SHELL,
        {"commands": ["ls", "pwd"], "timeout_ms": 500},
        {"action": {"commands": ["ls", "pwd"], "timeout_ms": 500, "max_output_length": None},
         "environment": {"type": "local"}},
        {"output": [
            {"stdout": "a\n", "stderr": "no\n", "outcome": {"type": "exit", "exit_code": 1}},
            {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},
        ]},
        "a\nno\n[exit 1]\n[timed out]",
    ),
    "local_shell": (
        LOCAL,
        EXEC,
        {"action": EXEC | {"type": "exec", "env": {}, "timeout_ms": None, "user": None}},
        {"output": "a\nb"},
        "a\nb",
    ),
    "apply_patch": (
        PATCH,
        {"type": "create_file", "path": "a.py", "diff": "+1"},
        {"operation": {"type": "create_file", "path": "a.py", "diff": "+1"}},
        {"status": "failed", "output": "exists"},
        "Error: exists",
    ),
    "apply_patch of nothing": (
        PATCH,
        {"type": "delete_file", "path": "a.py"},
        {"operation": {"type": "delete_file", "path": "a.py"}},
        {"status": "completed"},
        "Done.",
    ),
}  # fmt: skip


async def ask(lab, given: object, **fields):
    return await lab.post("/v1/responses", {"model": "demo", "input": given} | fields)


def written(tool: dict, arguments: object) -> str:
    call = {"name": tool["type"], "arguments": arguments}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def frames(answer) -> list[dict]:
    blocks = answer.body.decode().strip().split("\n\n")
    return [orjson.loads(block.split("data: ", 1)[1]) for block in blocks]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_and_its_output_go_round(lab, name, stream):
    tool, arguments, members, output, seen = CALLS[name]
    lab.says(written(tool, arguments), [1, 2, 3])
    answer = await ask(lab, "hi", tools=[tool], stream=stream)
    assert answer.status == 200
    assert "x-eaglegate-ignored-fields" not in answer.headers
    (offered,) = lab.renderer.seen[-1]["tools"]
    assert offered["function"]["name"] == tool["type"]
    assert set(arguments) <= set(offered["function"]["parameters"]["properties"])
    body = frames(answer)[-1]["response"] if stream else answer.json
    (call,) = body["output"]
    assert call == {
        "id": call["id"], "type": f"{tool['type']}_call", "call_id": call["call_id"],
        "status": "completed", **members,
    }  # fmt: skip
    assert body["tools"] == [tool]
    if stream:
        kinds = [frame["type"] for frame in frames(answer)]
        assert kinds[2:-1] == ["response.output_item.added", "response.output_item.done"]
    Response.model_validate(body)

    named = "id" if tool is LOCAL else "call_id"
    result = {"type": f"{tool['type']}_call_output", named: call["call_id"], **output}
    user = {"role": "user", "content": "hi"}
    lab.says("Yes.")
    assert (await ask(lab, [user, call, result], tools=[tool])).status == 200
    _, assistant, told = lab.renderer.seen[-1]["messages"]
    (function,) = [one["function"] for one in assistant["tool_calls"]]
    assert function["name"] == tool["type"]
    assert function["arguments"] == arguments
    assert told == {"role": "tool", "tool_call_id": call["call_id"], "content": seen}


async def test_a_stored_call_is_continued(lab):
    lab.says(written(LOCAL, EXEC))
    first = (await ask(lab, "hi", tools=[LOCAL])).json
    lab.says("Yes.")
    result = {"type": "local_shell_call_output", "id": first["output"][0]["call_id"], "output": "a"}
    answer = await ask(lab, [result], tools=[LOCAL], previous_response_id=first["id"])
    assert answer.status == 200, answer.json
    roles = [message["role"] for message in lab.renderer.seen[-1]["messages"]]
    assert roles == ["user", "assistant", "tool"]


@pytest.mark.parametrize("arguments", ["rm -rf /", {"commands": 3}, {}])
async def test_arguments_that_cannot_be_read_run_nothing(lab, arguments):
    lab.says(written(SHELL, arguments))
    (call,) = (await ask(lab, "hi", tools=[SHELL])).json["output"]
    assert call["action"]["commands"] == []


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "shell"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "shell"}]},
    ],
)
async def test_a_client_tool_can_be_required(lab, choice):
    lab.says(written(SHELL, {"commands": ["ls"]}))
    answer = await ask(lab, "hi", tools=[SHELL, PATCH], tool_choice=choice)
    assert answer.status == 200, answer.json
    assert answer.json["output"][0]["type"] == "shell_call"
    assert "apply_patch" not in lab.engine.requests[-1].constraint.value


async def test_a_shell_s_skills_are_shown(lab):
    lab.says("x")
    skill = {"name": "pdf", "description": "Reads PDF.", "path": "/skills/pdf"}
    tool = {"type": "shell", "environment": {"type": "local", "skills": [skill]}}
    await ask(lab, "hi", tools=[tool])
    (offered,) = lab.renderer.seen[-1]["tools"]
    assert "- pdf: Reads PDF. (/skills/pdf)" in offered["function"]["description"]


async def test_a_shell_in_openai_s_container_is_hosted(lab):
    lab.says("x")
    answer = await ask(
        lab, "hi", tools=[{"type": "shell", "environment": {"type": "container_auto"}}]
    )
    assert answer.headers["x-eaglegate-ignored-fields"] == "tools[shell]"


@pytest.mark.parametrize("kind", ["computer", "computer_use_preview"])
async def test_a_computer_answers_with_screenshots_and_is_refused(lab, kind):
    answer = await ask(lab, "hi", tools=[{"type": kind}])
    assert (answer.status, answer.json["error"]["param"]) == (400, "tools[0]")
    assert "reads text only" in answer.json["error"]["message"]


@pytest.mark.parametrize("kind", ["computer", "shell", "local_shell", "apply_patch"])
async def test_chat_completions_have_none_of_them(lab, kind):
    answer = await lab.chat(tools=[{"type": kind}])
    assert answer.status == 400
    assert "/v1/responses" in answer.json["error"]["message"]


async def test_a_call_before_its_text_is_one_turn(lab):
    """Haystack's agents send such turns."""
    lab.says("x")
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    text = {"type": "message", "role": "assistant", "content": "I look."}
    output = {"type": "function_call_output", "call_id": "c", "output": "found"}
    await ask(lab, [{"role": "user", "content": "hi"}, call, text, output])
    messages = lab.renderer.seen[-1]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["content"] == "I look."
    assert messages[1]["tool_calls"][0]["id"] == "c"


@pytest.mark.parametrize("option", [{"async": True}, {"allowed_callers": ["programmatic"]}])
async def test_a_function_that_the_model_cannot_call_so_is_refused(lab, option):
    function = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    answer = await ask(lab, "hi", tools=[function | option])
    assert answer.status == 400
    assert answer.json["error"]["param"] == f"tools[0].{next(iter(option))}"
    lab.says("x")
    usual = {"async": False, "allowed_callers": ["direct", "programmatic"]}
    assert (await ask(lab, "hi", tools=[function | usual])).status == 200
