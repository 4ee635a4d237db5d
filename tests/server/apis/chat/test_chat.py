"""POST /v1/chat/completions: answers, streams and what reaches the engine."""

from __future__ import annotations

import pytest

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


async def test_an_answer_has_text_usage_and_a_finish_reason(lab):
    lab.says("The answer is 12.", cuts=[1, 3, 2])
    answer = await lab.chat(temperature=0)
    assert answer.status == 200
    body = answer.json
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["content"] == "The answer is 12."
    assert body["choices"][0]["finish_reason"] == "stop"
    num = len(lab.renderer.encode("The answer is 12.<|im_end|>", False))
    assert body["usage"]["completion_tokens"] == num
    assert body["usage"]["prompt_tokens"] == len(lab.engine.requests[0].prompt)
    assert body["usage"]["total_tokens"] == num + len(lab.engine.requests[0].prompt)


async def test_every_chunk_is_one_of_the_same_answer(lab):
    lab.says("a b c d", [1, 2])
    chunks = (await lab.chat(stream=True)).chunks
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert all("usage" not in chunk for chunk in chunks)


async def test_usage_comes_last_when_asked_for(lab):
    lab.says("a b c", [1, 2])
    answer = await lab.chat(stream=True, stream_options={"include_usage": True})
    *before, last = answer.chunks
    assert all(chunk["usage"] is None for chunk in before)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] > 0
    assert answer.done


async def test_usage_so_far_is_on_every_chunk_when_asked_for(lab):
    lab.says("<think>\nhm\n</think>\n\na b c", [1, 2])
    options = {"include_usage": True, "continuous_usage_stats": True}
    *before, last = (await lab.chat(stream=True, stream_options=options)).chunks
    counts = [chunk["usage"]["completion_tokens"] for chunk in before]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] == last["usage"]["completion_tokens"]
    assert {chunk["usage"]["prompt_tokens"] for chunk in before} == {last["usage"]["prompt_tokens"]}
    options["include_usage"] = False
    assert all(
        "usage" not in c for c in (await lab.chat(stream=True, stream_options=options)).chunks
    )


async def test_usage_so_far_is_of_one_choice_and_in_the_end_of_all(lab):
    lab.says("a b c", [1, 2])
    options = {"include_usage": True, "continuous_usage_stats": True}
    *before, last = (await lab.chat(stream=True, n=2, stream_options=options)).chunks
    latest = {chunk["choices"][0]["index"]: chunk["usage"] for chunk in before}
    assert (
        sum(usage["completion_tokens"] for usage in latest.values())
        == (last["usage"]["completion_tokens"])
    )
    assert {usage["prompt_tokens"] for usage in latest.values()} == {last["usage"]["prompt_tokens"]}


async def test_a_stop_string_ends_the_answer_and_the_engine_request(lab):
    lab.says("one two three four", [1, 100])
    body = (await lab.chat(stop=[" three"])).json
    assert body["choices"][0]["message"]["content"] == "one two"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] < len(
        lab.renderer.encode("one two three four", False)
    )
    assert not lab.engine.running


async def test_max_tokens_ends_with_length(lab):
    lab.says("one two three four five six", [1, 100])
    body = (await lab.chat(max_tokens=3)).json
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 3


async def test_choices_are_generated_apart(lab):
    lab.says("same text", [1, 2])
    body = (await lab.chat(n=3, seed=7)).json
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in body["choices"]} == {"same text"}
    seeds = {r.sampling.seed for r in lab.engine.requests}
    assert len(seeds) == 3
    assert 7 in seeds, "the first choice is that of a request for one"
    await lab.chat(n=3, seed=7)
    assert {r.sampling.seed for r in lab.engine.requests} == seeds
    await lab.chat(n=3, seed=8)
    assert len({r.sampling.seed for r in lab.engine.requests}) == 6, "seeds share no choice"
    streamed = await lab.chat(n=2, stream=True)
    assert {c["choices"][0]["index"] for c in streamed.chunks} == {0, 1}


async def test_without_a_limit_the_context_is_the_limit(lab):
    lab.says("x")
    await lab.chat()
    request = lab.engine.requests[0]
    assert request.sampling.max_tokens == 256 - len(request.prompt)


@pytest.mark.parametrize("arguments", ['{"city": Oslo}', "[1]", '"Oslo"', "no"])
async def test_a_badly_written_call_does_not_end_the_conversation(lab, arguments):
    """Agents send back what the model wrote, whatever it was."""
    function = {"name": "get_weather", "arguments": arguments}
    call = {"id": "a", "type": "function", "function": function}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "That is no JSON."},
    ]
    lab.says("Sorry.")
    answer = await lab.chat(messages=messages)
    assert answer.status == 200
    (given,) = lab.renderer.seen[-1]["messages"][1]["tool_calls"]
    assert given["function"]["arguments"] == {"raw_arguments": arguments}


async def test_the_developer_role_reaches_the_template_as_it_is(lab):
    lab.says("x")
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert (await lab.chat(messages=messages)).status == 200
    assert [m["role"] for m in lab.renderer.seen[-1]["messages"]] == ["developer", "user"]
