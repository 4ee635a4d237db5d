"""Fields of other servers that say what a field here says, and what ``vllm serve`` takes."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.thorough

HEADER = "x-eaglegate-ignored-fields"
USER = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ON = {"enable_thinking": True, "thinking": True}
OFF = {"enable_thinking": False, "thinking": False}


def template_kwargs(lab) -> dict:
    return lab.renderer.seen[-1]["chat_template_kwargs"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"enable_thinking": False}, OFF),
        ({"enable_thinking": True}, ON),
        ({"enable_thinking": "false"}, OFF),
        ({"thinking": {"type": "disabled"}}, OFF),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, ON),
        ({"thinking": False}, OFF),
        ({"reasoning": {"effort": "high"}}, {"reasoning_effort": "high"}),
        ({"reasoning": {"enabled": False}}, OFF),
        ({"reasoning": {"effort": "none"}}, {"reasoning_effort": "none"} | OFF),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "max"}, {"reasoning_effort": "max"}),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
         {"enable_thinking": False, "thinking": True}),
        ({"documents": [{"title": "a", "text": "b"}]},
         {"documents": [{"title": "a", "text": "b"}]}),
    ],
)  # fmt: skip
async def test_switches_of_reasoning(lab, fields, expected):
    lab.says("x")
    answer = await lab.chat(**fields)
    assert answer.status == 200
    assert HEADER not in answer.headers
    assert template_kwargs(lab) == expected


async def test_reasoning_can_be_excluded(lab):
    lab.says("<think>\nhm\n</think>\n\nyes")
    message = (await lab.chat(reasoning={"exclude": True})).json["choices"][0]["message"]
    assert set(message) == {"role", "content", "refusal"}


@pytest.mark.parametrize(
    ("url", "body", "model"),
    [
        ("/v1/chat/completions", {"messages": USER}, None),
        ("/v1/completions", {"prompt": "hi"}, None),
        ("/v1/messages", {"messages": USER, "max_tokens": 9}, None),
        ("/v1/messages", {"messages": USER, "max_tokens": 9}, ""),
        ("/v1/chat/completions", {"messages": USER}, ""),
    ],
)
async def test_a_single_model_needs_no_name(lab, url, body, model):
    lab.says("x")
    answer = await lab.post(url, body if model is None else {"model": model} | body)
    assert (answer.status, answer.json["model"]) == (200, "demo")
    counted = {"messages": USER}
    assert (await lab.post("/v1/messages/count_tokens", counted)).status == 200


@pytest.mark.parametrize("choice", [None, "auto"])
async def test_hosted_tools_are_left_out(lab, choice):
    lab.says("x")
    hosted = [{"type": "web_search"}, {"type": "code_interpreter", "container": {}}]
    fields = {} if choice is None else {"tool_choice": choice}
    answer = await lab.chat(tools=[TOOL, *hosted], web_search_options={}, **fields)
    assert answer.status == 200
    ignored = "web_search_options, tools[web_search], tools[code_interpreter]"
    assert answer.headers[HEADER] == ignored
    assert [t["function"]["name"] for t in lab.renderer.seen[-1]["tools"]] == ["f"]
    answer = await lab.chat(tools=hosted, **fields)
    assert answer.status == 200
    assert lab.renderer.seen[-1]["tools"] is None


async def test_unless_the_choice_demands_one(lab):
    answer = await lab.chat(tools=[{"type": "web_search"}], tool_choice="required")
    assert (answer.status, answer.json["error"]["param"]) == (400, "tool_choice")
    assert "a tool of type 'web_search'" in answer.json["error"]["message"]
    body = {"input": "hi", "tools": [{"type": "web_search"}], "tool_choice": "required"}
    answer = await lab.post("/v1/responses", body)
    assert "a tool of type 'web_search'" in answer.json["error"]["message"]
    answer = await lab.chat(tools=[TOOL, {"type": "x"}], tool_choice={"type": "x"})
    assert answer.status == 400
    lab.configure(unknown_fields="refuse")
    answer = await lab.chat(tools=[TOOL, {"type": "web_search"}])
    assert (answer.status, answer.json["error"]["param"]) == (400, "tools[web_search]")
    assert "hosted tools" in answer.json["error"]["message"]


MESSAGES_TOOL = {"name": "f", "input_schema": {"type": "object"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}


async def test_hosted_tools_of_messages(lab):
    lab.says("x")
    toolset = {"type": "mcp_toolset", "mcp_server_name": "x"}
    answer = await lab.message(
        tools=[MESSAGES_TOOL | {"cache_control": {"type": "ephemeral"}}, SEARCH, toolset],
        mcp_servers=[],
    )  # fmt: skip
    assert answer.status == 200
    ignored = "tools[web_search_20250305], tools[mcp_toolset]"
    assert answer.headers[HEADER] == ignored
    assert [t["function"]["name"] for t in lab.renderer.seen[-1]["tools"]] == ["f"]
    named = {"type": "tool", "name": "web_search"}
    for choice, offered in ((named, [SEARCH]), ({"type": "any"}, [SEARCH]),
                            (named, [MESSAGES_TOOL, SEARCH])):  # fmt: skip
        answer = await lab.message(tools=offered, tool_choice=choice)
        assert answer.status == 400
        message = answer.json["error"]["message"]
        assert "'tool_choice' requires a tool of type 'web_search_20250305'" in message
    own = {"name": "web_search", "input_schema": {"type": "object"}}
    answer = await lab.message(tools=[own, {"type": "web_search"}], tool_choice=named)
    assert answer.status == 200
    answer = await lab.message(tools=[{"input_schema": {"type": "object"}}])
    assert "tools[0].name" in answer.json["error"]["message"]
    assert (await lab.message(tools=[SEARCH], tool_choice={"type": "auto"})).status == 200


@pytest.mark.parametrize(
    ("text", "fields", "reason"),
    [("one two", {}, None), ("one two three", {"stop": [" three"]}, " three"),
     ("one two three", {"max_tokens": 1}, None)],
)  # fmt: skip
async def test_choices_say_what_stopped_them(lab, text, fields, reason):
    for url, body in (
        ("/v1/chat/completions", {"messages": USER}),
        ("/v1/completions", {"prompt": "hi"}),
    ):
        lab.says(text)
        assert (await lab.post(url, body | fields)).json["choices"][0]["stop_reason"] == reason
        chunks = (await lab.post(url, body | fields | {"stream": True})).chunks
        assert chunks[-1]["choices"][0]["stop_reason"] == reason


async def test_arguments_may_come_as_an_object(lab):
    lab.says("x")
    function = {"name": "f", "arguments": {"a": 1}}
    call = {"id": "c", "type": "function", "function": function}
    said = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "ok"}]  # fmt: skip
    assert (await lab.chat(messages=said)).status == 200
    seen = lab.renderer.seen[-1]["messages"][1]["tool_calls"][0]["function"]
    assert seen["arguments"] == {"a": 1}


@pytest.mark.parametrize("stream", [False, True])
async def test_the_prompt_as_the_template_wrote_it(lab, stream):
    lab.says("x")
    answer = await lab.chat(return_prompt_text=True, stream=stream)
    told = answer.chunks[0] if stream else answer.json
    assert told["prompt_text"] == "user: hi"


async def test_tokens_by_their_ids(lab):
    ids = lab.says_with_logprobs("one two")
    answer = await lab.chat(logprobs=True, return_tokens_as_token_ids=True)
    content = answer.json["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == [f"token_id:{id}" for id in ids]
    body = {"prompt": "hi", "logprobs": 1, "return_tokens_as_token_ids": True}
    answer = await lab.post("/v1/completions", body)
    assert answer.json["choices"][0]["logprobs"]["tokens"] == [f"token_id:{id}" for id in ids]
