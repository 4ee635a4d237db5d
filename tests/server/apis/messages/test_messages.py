"""POST /v1/messages on the wire, and with Anthropic's own SDK."""

from __future__ import annotations

import orjson
import pytest
from anthropic import Anthropic, NotFoundError
from msgspec.structs import replace

from eaglegate.engine.errors import EngineDead
from eaglegate.server.apis.messages.response import SIGNATURE

WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
ANSWER = (
    "<think>\nhm\n</think>\n\nLet me look."
    '\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
)


def frames(answer) -> list[tuple[str, dict]]:
    out = []
    for frame in answer.body.decode().strip().split("\n\n"):
        name, data = frame.split("\n")
        out.append((name.removeprefix("event: "), orjson.loads(data.removeprefix("data: "))))
    return out


async def test_a_message_has_blocks(lab):
    lab.says(ANSWER, [1, 2, 3])
    body = (await lab.message(tools=[WEATHER])).json
    assert body["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": SIGNATURE},
        {"type": "text", "text": "Let me look."},
        {
            "type": "tool_use",
            "id": body["content"][2]["id"],
            "name": "get_weather",
            "input": {"city": "Oslo"},
        },
    ]
    assert (body["stop_reason"], body["stop_sequence"]) == ("tool_use", None)
    assert body["usage"]["input_tokens"] == len(lab.engine.requests[0].prompt)


async def test_the_stream_has_the_blocks_one_after_the_other(lab):
    lab.says(ANSWER, [1, 2, 3])
    answer = await lab.message(tools=[WEATHER], stream=True)
    found = frames(answer)
    assert all(name == data["type"] for name, data in found)
    names = [name for name, _ in found if name != "content_block_delta"]
    block = ["content_block_start", "content_block_stop"]
    assert names == ["message_start", *block, *block, *block, "message_delta", "message_stop"]
    assert [d["index"] for n, d in found if n == "content_block_start"] == [0, 1, 2]
    prompt = len(lab.engine.requests[0].prompt)
    assert found[0][1]["message"]["usage"]["input_tokens"] == prompt
    assert found[-2][1]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_is_signed_and_comes_back(lab, stream):
    """AI SDK 7, Microsoft's Agent Framework and TanStack send no thinking back without one."""
    lab.says(ANSWER, [1, 2, 3])
    answer = await lab.message(tools=[WEATHER], stream=stream)
    if stream:
        thinking = [data for _, data in frames(answer) if data.get("index") == 0]
        assert thinking[0]["content_block"]["signature"] == ""
        assert thinking[-2]["delta"] == {"type": "signature_delta", "signature": SIGNATURE}
        assert thinking[-1]["type"] == "content_block_stop"
    else:
        assert answer.json["content"][0]["signature"] == SIGNATURE
    signed = {"type": "thinking", "thinking": "hm", "signature": SIGNATURE}
    turn = {"role": "assistant", "content": [signed, {"type": "text", "text": "a"}]}
    user = {"role": "user", "content": "hi"}
    lab.says("x")
    assert (await lab.message(messages=[user, turn, user])).status == 200
    assert lab.renderer.seen[-1]["messages"][1]["reasoning"] == "hm"


@pytest.mark.parametrize(
    ("text", "fields", "reason", "sequence"),
    [
        ("one two", {}, "end_turn", None),
        ("one two three", {"max_tokens": 2}, "max_tokens", None),
        ("one two three", {"stop_sequences": [" three"]}, "stop_sequence", " three"),
    ],
)
async def test_the_reason_of_the_end(lab, text, fields, reason, sequence):
    lab.says(text, [1])
    body = (await lab.message(**fields)).json
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, sequence)


async def test_a_reference_to_a_tool_in_a_result_is_its_name(lab):
    lab.says("x")
    found = [{"type": "tool_reference", "tool_name": name} for name in ("look_up", "note")]
    use = {"type": "tool_use", "id": "t1", "name": "ToolSearch", "input": {"query": "notes"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": found}
    messages = [
        {"role": "user", "content": "note it"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    assert (await lab.message(messages=messages)).status == 200
    assert lab.renderer.seen[-1]["messages"][-1]["content"] == "look_up\nnote"


async def test_a_conversation_with_tools_reaches_the_template(lab):
    lab.says("x")
    use = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Oslo"}}
    rain = {"type": "text", "text": "rain"}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [rain]}
    thinking = {"type": "thinking", "thinking": "hm", "signature": ""}
    await lab.message(
        system=[{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": [thinking, {"type": "text", "text": "looking"}, use]},
            {"role": "user", "content": [result, {"type": "text", "text": "so?"}]},
        ],
        thinking={"type": "enabled", "budget_tokens": 1024},
    )
    seen = lab.renderer.seen[-1]
    assert [m["role"] for m in seen["messages"]] == ["system", "user", "assistant", "tool", "user"]
    assert seen["messages"][2]["reasoning_content"] == "hm"
    assert seen["messages"][2]["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo"}
    assert seen["messages"][3] == {"role": "tool", "tool_call_id": "t1", "content": "rain"}
    assert seen["chat_template_kwargs"] == {"enable_thinking": True, "thinking": True}


async def test_a_last_message_of_the_assistant_is_continued(lab):
    lab.says("x")
    turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    await lab.message(messages=turn)
    assert lab.renderer.seen[-1]["continue_final_message"]
    assert not lab.renderer.seen[-1]["add_generation_prompt"]


async def test_tokens_are_counted_without_an_engine(lab):
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi there"}]}
    answer = await lab.post("/v1/messages/count_tokens", body)
    assert answer.json == {"input_tokens": len(lab.renderer.encode("user: hi there", False))}
    assert not lab.engine.requests


@pytest.mark.parametrize(
    ("fields", "status", "kind", "words"),
    [
        ({"model": "nope"}, 404, "not_found_error", "does not exist"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            400,
            "invalid_request_error",
            "messages[0].content[0]",
        ),
        ({"tool_choice": {"type": "tool"}}, 400, "invalid_request_error", "tool_choice"),
    ],
)
async def test_errors_have_anthropic_s_shape(lab, fields, status, kind, words):
    answer = await lab.message(**fields)
    assert answer.status == status
    assert answer.json["type"] == "error"
    assert answer.json["error"]["type"] == kind
    assert words in answer.json["error"]["message"]


async def test_an_error_in_mid_stream_is_an_error_event(lab):
    lab.says("one two three", [1, 1, 1])
    lab.engine.script = [*lab.engine.script[:2], EngineDead("gone")]
    found = frames(await lab.message(stream=True))
    assert found[-1][0] == "error"
    assert found[-1][1]["error"]["type"] == "overloaded_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_cached_tokens_are_the_same_at_both_ends(lab, stream):
    lab.says("one two three", [1, 1])
    lab.engine.script[0] = replace(lab.engine.script[0], cached_tokens=2)
    answer = await lab.message(stream=stream)
    ends = ("message_start", "message_delta")
    bodies = [data for name, data in frames(answer) if name in ends] if stream else [answer.json]
    usages = [body.get("message", body)["usage"] for body in bodies]
    assert len(usages) == 1 + stream
    prompt = len(lab.engine.requests[0].prompt)
    for usage in usages:
        assert (usage["cache_read_input_tokens"], usage["input_tokens"]) == (2, prompt - 2)


def test_anthropic_s_client_lists_the_models(lab, url):
    client = Anthropic(base_url=url, api_key="none", max_retries=0)
    page = client.models.list()
    assert [model.id for model in page] == ["demo", "alias"]
    assert (page.has_more, page.first_id, page.last_id) == (False, "demo", "alias")
    model = client.models.retrieve("demo")
    assert model == page.data[0]
    assert (model.type, model.display_name, model.created_at.timestamp()) == ("model", "demo", 1)
    with pytest.raises(NotFoundError, match="does not exist here"):
        client.models.retrieve("nope")
