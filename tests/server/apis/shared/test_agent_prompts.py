"""Conversations of agents through all three APIs, with the templates of models that agents use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from eaglegate.text.rendering.renderer import ModelFiles, TemplateRenderer
from tests.server.conftest import DEMO, Lab

APIS = ("messages", "chat", "responses")
URLS = {
    "messages": "/v1/messages",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
}
HEAD = "{% if m.role == 'system' and not loop.first %}%s{% endif %}"
BODY = (
    "<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>{{ m.reasoning_content }}"
    "</think>{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
    "{{ c.function.name }}</tool_call>{% endfor %}<|im_end|>\n"
)
RAISE = "{{ raise_exception('System message must be at the beginning.') }}"
LENIENT = "{% for m in messages %}" + BODY + "{% endfor %}"
STRICT = "{% for m in messages %}" + HEAD.replace("%s", RAISE) + BODY + "{% endfor %}"
DROPPING = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}" + BODY
    + "{% endif %}{% endfor %}"
)  # fmt: skip
BY_PARTS = (
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endif %}\n{% endfor %}"
)
ENVIRONMENT = "# Environment\nThe folder is /work."
LATER = "Answer in French from now on."
FIRST = "You are an agent."


@cache
def renderer_of(template: str) -> Any:
    return TemplateRenderer(ModelFiles.find(str(DEMO), None, None), template)


def lab_with(template: str) -> Lab:
    return Lab(renderer=renderer_of(template), max_model_len=2048)


async def ask(lab: Lab, api: str, messages: list[dict], **fields: Any) -> Any:
    lab.says("x")
    body: dict[str, Any] = {"model": "demo"} | fields
    if api == "responses":
        body |= {"input": [item for message in messages for item in as_items(message)]}
    else:
        body |= {"messages": messages} | ({"max_tokens": 9} if api == "messages" else {})
    return await lab.post(URLS[api], body)


def as_items(message: dict) -> list[dict]:
    """A chat message as items of the Responses API."""
    content = message["content"]
    kind = "output_text" if message["role"] == "assistant" else "input_text"
    parts = content if isinstance(content, str) else [part | {"type": kind} for part in content]
    if message["role"] == "tool":
        return [
            {"type": "function_call_output", "call_id": message["tool_call_id"], "output": parts}
        ]
    calls = [
        {"type": "function_call", "call_id": call["id"], **call["function"]}
        for call in message.get("tool_calls", ())
    ]
    return [{"role": message["role"], "content": parts}, *calls]


def prompt(lab: Lab) -> str:
    return lab.renderer.decode(lab.engine.requests[-1].prompt)


def says(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def first_turn() -> list[dict]:
    """The messages of Claude Code's first request."""
    return [says("system", FIRST), says("user", "Fix it."), says("system", ENVIRONMENT)]


def later_turn() -> list[dict]:
    answered = [says("assistant", "I look."), says("user", "Go on."), says("system", LATER)]
    return [*first_turn(), *answered]


@pytest.mark.parametrize("conversation", [first_turn, later_turn])
@pytest.mark.parametrize("template", [STRICT, DROPPING], ids=["raises", "leaves out"])
@pytest.mark.parametrize("api", APIS)
async def test_later_system_messages_are_merged_where_a_template_refuses_them(
    api, template, conversation
):
    lab, messages = lab_with(template), conversation()
    answer = await ask(lab, api, messages)
    assert answer.status == 200, answer.body
    texts = [message["content"] for message in messages if message["role"] == "system"]
    assert prompt(lab).startswith("<|im_start|>system\n" + "\n\n".join(texts) + "<|im_end|>")
    assert prompt(lab).count("<|im_start|>system") == 1


@pytest.mark.parametrize("api", APIS)
async def test_later_system_messages_stay_where_a_template_takes_them(api):
    lab = lab_with(LENIENT)
    assert (await ask(lab, api, later_turn())).status == 200
    places = [prompt(lab).index(text) for text in (FIRST, "Fix it.", ENVIRONMENT, "Go on.", LATER)]
    assert places == sorted(places)
    assert prompt(lab).count("<|im_start|>system") == 3


async def test_a_conversation_without_a_head_gets_one():
    lab = lab_with(STRICT)
    assert (await ask(lab, "messages", first_turn()[1:])).status == 200
    assert prompt(lab).startswith(f"<|im_start|>system\n{ENVIRONMENT}<|im_end|>")


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_chat_shows_reasoning_under_either_name(name):
    lab = lab_with(STRICT)
    thought = says("assistant", "") | {name: "I need the door.", "tool_calls": [CALL]}
    messages = [says("user", "hi"), thought, says("tool", "open") | {"tool_call_id": "c1"}]
    assert (await ask(lab, "chat", messages)).status == 200
    assert "<think>I need the door.</think>" in prompt(lab)


BILLING = "x-anthropic-billing-header: cc_version=2.1.332; cch=8f3a1;"
RULE = "Never delete files without asking."


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


@pytest.mark.parametrize("template", [STRICT, LENIENT, BY_PARTS])
@pytest.mark.parametrize(
    "parts", [[BILLING, RULE, "Be brief."], [RULE, BILLING, "Be brief."],
              [f"{BILLING}\n{RULE}", "Be brief."], [f"{BILLING} {RULE}\nBe brief."]],
)  # fmt: skip
@pytest.mark.parametrize(
    ("api", "role"),
    [("messages", "system"), ("chat", "system"), ("chat", "developer"),
     ("responses", "system"), ("responses", "developer")],
)  # fmt: skip
async def test_the_billing_line_goes_alone(api, role, parts, template):
    lab = lab_with(template)
    content = [text(part) for part in parts]
    assert (await ask(lab, api, [says(role, content), says("user", "hi")])).status == 200
    assert "billing" not in prompt(lab)
    assert RULE in prompt(lab)
    assert "Be brief." in prompt(lab)


@pytest.mark.parametrize("api", APIS)
async def test_a_message_without_parts_is_an_empty_message(api):
    lab = lab_with(STRICT)
    assert (await ask(lab, api, [says("user", [])])).status == 200
    assert prompt(lab).startswith("<|im_start|>user\n<|im_end|>")


async def test_the_billing_line_of_instructions_goes_alone():
    for api, field in (("messages", "system"), ("responses", "instructions")):
        lab = lab_with(STRICT)
        await ask(lab, api, [says("user", "hi")], **{field: f"{BILLING}\n{RULE}"})
        assert prompt(lab).startswith(f"<|im_start|>system\n{RULE}<|im_end|>")


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
@pytest.mark.parametrize("api", APIS)
async def test_text_parts_have_lines_of_their_own(api, role):
    lab = lab_with(LENIENT)
    messages = [says(role, [text("42"), text("17")]), says("user", "?")]
    assert (await ask(lab, api, messages)).status == 200
    assert f"<|im_start|>{role}\n42\n17<|im_end|>" in prompt(lab)


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_template_that_joins_parts_gets_them_apart(api):
    lab = lab_with(BY_PARTS)
    messages = [says("user", [text("42"), text("17")]), says("user", "?")]
    assert (await ask(lab, api, messages)).status == 200
    assert prompt(lab).startswith("user: [42][17]user: ")


@pytest.mark.parametrize("template", [LENIENT, BY_PARTS])
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_tool_results_have_lines_of_their_own(api, template):
    lab = lab_with(template)
    result = says("tool", [text("42"), text("17")]) | {"tool_call_id": "c1"}
    called = says("assistant", "") | {"tool_calls": [CALL]}
    assert (await ask(lab, api, [says("user", "hi"), called, result])).status == 200
    assert "42\n17" in prompt(lab)


def call_tools(api: str, ids: Sequence[str], result_ids: Sequence[str]) -> list[dict]:
    """A turn with parallel calls, and their results in another order."""
    if api == "messages":
        uses = [{"type": "tool_use", "id": i, "name": "look", "input": {}} for i in ids]
        kind = "tool_result"
        results = [{"type": kind, "tool_use_id": i, "content": f"result {i}"} for i in result_ids]
        return [says("assistant", uses), says("user", results)]
    calls = [CALL | {"id": i} for i in ids]
    results = [says("tool", f"result {i}") | {"tool_call_id": i} for i in result_ids]
    return [says("assistant", "") | {"tool_calls": calls}, *results]


@pytest.mark.parametrize("api", APIS)
async def test_parallel_results_are_in_the_order_of_their_calls(api):
    lab = lab_with(LENIENT)
    first = call_tools(api, ("a", "b", "c"), ("c", "x", "a", "b"))
    second = call_tools(api, ("b", "a"), ("a", "b"))
    assert (await ask(lab, api, [says("user", "hi"), *first, *second])).status == 200
    assert re.findall("result (.)", prompt(lab)) == ["a", "b", "c", "x", "b", "a"]


THOUGHT = "<think>\n4 - 7: 14 - 7"
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}


async def continue_message(lab: Lab, api: str, content: str, answer: str, **fields: Any) -> Any:
    lab.says(answer)
    messages = [says("user", "14 - 7? A thought is in <think>."), says("assistant", content)]
    if api == "chat":
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    body = {"model": "demo", "max_tokens": 30, "messages": messages}
    return (await lab.post(URLS[api], body | fields)).json


@pytest.mark.parametrize(
    ("content", "answer", "reasoning", "text"),
    [
        (THOUGHT, " = 7\n</think>\n\nSeven.", " = 7", "Seven."),
        (f"{THOUGHT} = 7\n</think>\n\nIt is", " seven.", None, " seven."),
        ("It is", " seven.", None, " seven."),
    ],
)
async def test_a_continued_thought_is_thinking(content, answer, reasoning, text):
    lab = lab_with(LENIENT)
    message = (await continue_message(lab, "chat", content, answer))["choices"][0]["message"]
    assert (message.get("reasoning_content"), message["content"]) == (reasoning, text)
    blocks = (await continue_message(lab, "messages", content, answer))["content"]
    thinking = [block["thinking"] for block in blocks if block["type"] == "thinking"]
    assert thinking == ([reasoning] if reasoning else [])


async def test_the_grammar_of_a_continued_thought_opens_no_second_one():
    lab = lab_with(LENIENT)
    await continue_message(lab, "chat", THOUGHT, " = 7</think>7", response_format=SCHEMA)
    opened = lab.engine.requests[-1].constraint.value
    await continue_message(lab, "chat", f"{THOUGHT}</think>", "7", response_format=SCHEMA)
    closed = lab.engine.requests[-1].constraint.value
    assert "</think>" in opened
    assert "<think>" not in opened
    assert "think>" not in closed


@pytest.mark.parametrize(("role", "status"), [("usr", 400), ("observation", 200), ("tool", 200)])
async def test_roles_are_those_of_the_api_or_of_the_template(role, status):
    lab = lab_with("{% if messages[0].role == 'observation' %}!{% endif %}" + LENIENT)
    answer = await ask(lab, "chat", [says("user", "hi"), says(role, "a")])
    assert answer.status == status
    assert status == 200 or "the role 'usr'" in answer.json["error"]["message"]


@pytest.mark.parametrize("role", ["user", "system", "developer"])
@pytest.mark.parametrize("fields", [{}, {"content": None}])
async def test_a_message_without_content_is_refused(role, fields):
    answer = await ask(lab_with(LENIENT), "chat", [says("user", "hi"), {"role": role} | fields])
    assert (answer.status, answer.json["error"]["param"]) == (400, "messages[1].content")
