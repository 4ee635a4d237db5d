"""Fields of Anthropic's newer clients: each is acted on, refused, or cannot matter."""

from __future__ import annotations

import pytest

USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "Be brief."}
SCHEMA = {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
    "additionalProperties": False,
}  # fmt: skip
TOOL = {"name": "weather", "input_schema": {"type": "object"}}
REFERENCE = {"type": "tool_reference", "name": "weather"}
IGNORED = "x-eaglegate-ignored-fields"
CLEARED = {"type": "clear_tool_uses_20250919"}


async def ask(lab, *messages, url="/v1/messages", **fields):
    body = {"max_tokens": 99, "messages": [*messages] or [USER]} | fields
    return await lab.post(url, body)


def shown(lab) -> list[tuple[str, str]]:
    return [(one["role"], one["content"]) for one in lab.renderer.seen[-1]["messages"]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}]
)
async def test_a_thread_is_refused_so_that_clients_send_the_whole_conversation(lab, thread, stream):
    answer = await ask(lab, thread=thread, stream=stream)
    assert answer.status == 400
    assert answer.json["error"]["type"] == "invalid_request_error"
    assert answer.json["error"]["details"] == {
        "error_code": "thread_unsupported_request",
        "unsupported": ["thread"],
    }


async def test_no_thread_is_no_thread(lab):
    lab.says("x")
    answer = await ask(lab, thread=None, compaction=None)
    assert (answer.status, answer.headers.get(IGNORED)) == (200, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("compaction", {"type": "summarize"}),
        ("context_management", {"edits": [{"type": "compact_20260112"}]}),
        ("context_management", {"edits": [CLEARED, {"type": "replace_20270101"}]}),
        ("mcp_servers", [{"type": "url", "name": "a", "url": "https://a.example"}]),
        ("container", {"skills": [{"type": "anthropic", "skill_id": "pdf"}]}),
        ("output_config", {"task_budget": {"type": "tokens", "total": 9}}),
        ("tools", [{"type": "computer_toolset_20260801"}]),
        ("tools", [{"type": "browser_toolset_20260801"}]),
        ("tools", [TOOL | {"allowed_callers": ["code_execution_20260120"]}]),
        ("messages", [SYSTEM | {"output_config": {"effort": "low"}}, USER]),
        ("messages", [USER, {"role": "system", "content": [
            {"type": "tool_addition", "tool": {"type": "mcp_tool_reference", "name": "a"}}]}]),
    ],
)  # fmt: skip
async def test_unsupported_fields_that_change_the_answer_are_refused(lab, field, value):
    answer = await ask(lab, **{field: value})
    assert answer.status == 400
    expected = "task_budget" if field == "output_config" else field.rstrip("s")
    assert expected in answer.json["error"]["message"]
    assert "details" not in answer.json["error"]


@pytest.mark.parametrize(
    ("edit", "ignored"),
    [
        (CLEARED, "context_management"),
        ({"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}},
         "context_management"),
        ({"type": "clear_thinking_20251015", "keep": "all"}, None),
    ],
)  # fmt: skip
async def test_edits_that_clear_are_named_where_they_would_change_the_prompt(lab, edit, ignored):
    """Claude Code keeps all thinking in every request."""
    lab.says("Hi.")
    answer = await ask(lab, context_management={"edits": [edit]})
    assert (answer.status, answer.headers.get(IGNORED)) == (200, ignored)


@pytest.mark.parametrize("field", ["output_format", "output_config"])
async def test_a_format_is_enforced_under_both_names(lab, field):
    lab.says('{"city": "Oslo"}')
    shape = {"type": "json_schema", "schema": SCHEMA}
    answer = await ask(lab, **{field: shape if field == "output_format" else {"format": shape}})
    assert (answer.status, answer.headers.get(IGNORED)) == (200, None)
    assert "city" in str(lab.engine.requests[-1].constraint)


async def test_one_format_is_enough(lab):
    shape = {"type": "json_schema", "schema": SCHEMA}
    answer = await ask(lab, output_format=shape, output_config={"format": shape})
    assert answer.status == 400
    assert "mutually exclusive" in answer.json["error"]["message"]


async def test_a_container_without_skills_is_named_as_ignored(lab):
    lab.says("x")
    assert (await ask(lab, container="container_1")).headers[IGNORED] == "container"


def change(kind: str, tool: dict) -> dict:
    return {"role": "system", "content": [{"type": kind, "tool": tool}]}


DEFINED = {"type": "tool_definition", "definition": TOOL | {"name": "clock"}}


@pytest.mark.parametrize(
    ("changes", "offered"),
    [
        ([change("tool_removal", REFERENCE)], []),
        ([change("tool_removal", REFERENCE), change("tool_addition", REFERENCE)], ["weather"]),
        ([change("tool_addition", DEFINED)], ["weather", "clock"]),
    ],
)
async def test_tools_come_and_go_with_the_conversation(lab, changes, offered):
    lab.says("x")
    assert (await ask(lab, USER, *changes, tools=[TOOL])).status == 200
    seen = lab.renderer.seen[-1]["tools"] or ()
    assert [tool["function"]["name"] for tool in seen] == offered
    assert shown(lab) == [("user", "hi")]


async def test_a_system_message_is_shown_until_it_is_cleared(lab):
    lab.says("x")
    passing = {"role": "system", "content": "Now in French.", "clear_at": "next_user_message"}
    await ask(lab, USER, passing)
    assert ("system", "Now in French.") in shown(lab)
    lab.says("x")
    await ask(lab, USER, passing, {"role": "assistant", "content": "Oui."}, USER)
    assert ("system", "Now in French.") not in shown(lab)


async def test_the_model_sees_examples_context_summaries_and_failures(lab):
    lab.says("x")
    document = {
        "type": "document", "title": "Log", "context": "of Monday",
        "source": {"type": "text", "media_type": "text/plain", "data": "all well"},
    }  # fmt: skip
    use = {"type": "tool_use", "id": "t", "name": "weather", "input": {}}
    failed = {"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": "no route"}
    summary = {"type": "compaction", "content": "They greeted."}
    answer = await ask(
        lab,
        {"role": "user", "content": [document]},
        {"role": "assistant", "content": [summary, {"type": "fallback"}, use]},
        {"role": "user", "content": [failed]},
        tools=[TOOL | {"input_examples": [{"city": "Oslo"}]}],
    )
    assert answer.status == 200
    assert shown(lab) == [
        ("user", "Log\nof Monday\nall well"),
        ("assistant", "They greeted."),
        ("tool", "Error: no route"),
    ]
    (tool,) = lab.renderer.seen[-1]["tools"]
    assert tool["function"]["parameters"]["examples"] == [{"city": "Oslo"}]
