"""POST /v1/chat/completions on the wire."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from engine.errors import EngineDead, EngineOverloaded, RequestRejected
from engine.observer import Ending, NullObservation, NullObserver
from engine.scripted import Pause, ScriptedEngine
from engine.types import DecodeStep, FinishReason, Step
from server.access.admission import Bounds
from server.http.response import Timing
from tests.server.conftest import call

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
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


def fold(chunks: list[dict]) -> dict:
    """What an SDK makes of the chunks of one choice."""
    message: dict = {"content": "", "reasoning": "", "tool_calls": []}
    finish = None
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning") or ""
            for made in delta.get("tool_calls", ()):
                if "id" in made:
                    message["tool_calls"].append(
                        {"id": made["id"], "name": made["function"]["name"], "arguments": ""}
                    )
                message["tool_calls"][made["index"]]["arguments"] += made["function"]["arguments"]
            finish = choice["finish_reason"] or finish
    return message | {"finish_reason": finish}


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


@pytest.mark.parametrize("cuts", [(), (2,), (1, 4, 4, 4), (100,)])
async def test_the_stream_folds_to_the_answer(lab, cuts):
    lab.says(f"<think>\nhm\n</think>\n\nfirst {CALL}", cuts)
    whole = (await lab.chat(tools=[WEATHER])).json["choices"][0]
    streamed = await lab.chat(tools=[WEATHER], stream=True)
    assert streamed.done
    folded = fold(streamed.chunks)
    assert folded["content"] == (whole["message"]["content"] or "")
    assert folded["reasoning"] == whole["message"]["reasoning"]
    assert folded["finish_reason"] == whole["finish_reason"] == "tool_calls"
    function = whole["message"]["tool_calls"][0]["function"]
    assert folded["tool_calls"][0]["name"] == function["name"] == "get_weather"
    assert folded["tool_calls"][0]["arguments"] == function["arguments"] == '{"city": "Oslo"}'


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


async def test_draft_tokens_are_in_the_usage(lab):
    ids = lab.renderer.encode("one two three four", False)
    lab.engine.script = [
        Step(tuple(ids[:1])),
        Step(tuple(ids[1:4]), decode=(DecodeStep(3, 2, 3),)),
        Step(tuple(ids[4:5]), decode=(DecodeStep(3, 0, 1),), finish=FinishReason.STOP),
    ]
    details = (await lab.chat()).json["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == 2
    assert details["rejected_prediction_tokens"] == 4


async def test_choices_are_generated_apart(lab):
    lab.says("same text", [1, 2])
    body = (await lab.chat(n=3, seed=7)).json
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in body["choices"]} == {"same text"}
    assert sorted(r.sampling.seed for r in lab.engine.requests) == [7, 8, 9]
    streamed = await lab.chat(n=2, stream=True)
    assert {c["choices"][0]["index"] for c in streamed.chunks} == {0, 1}


async def test_sampling_reaches_the_engine(lab):
    lab.says("x")
    await lab.chat(
        max_completion_tokens=9, temperature=0.5, top_p=0.9, seed=3, num_speculative_tokens=2
    )
    request = lab.engine.requests[0]
    assert request.sampling.max_tokens == 9
    assert (request.sampling.temperature, request.sampling.top_p) == (0.5, 0.9)
    assert request.depth == 2


async def test_without_a_limit_the_context_is_the_limit(lab):
    lab.says("x")
    await lab.chat()
    request = lab.engine.requests[0]
    assert request.sampling.max_tokens == 256 - len(request.prompt)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"model": "nope"}, "model", "does not exist"),
        ({"max_tokens": -1}, "max_tokens", "greater than or equal to 1"),
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hi"}, "messages", "list"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"min_tokens": 1000}, "messages", "maximum context length is 256"),
        ({"tool_choice": "required"}, "tool_choice", "needs 'tools'"),
        ({"num_speculative_tokens": 9}, "num_speculative_tokens", "from 0 to 3"),
        ({"top_logprobs": 2}, "top_logprobs", "needs 'logprobs'"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs 'stream'"),
        ({"stop": ""}, "stop", "must not be empty"),
        ({"messages": [{"role": "user", "content": "refuse me"}]}, "messages", "alternate"),
    ],
)
async def test_bad_input_is_refused_by_name(lab, fields, param, words):
    answer = await lab.chat(**fields)
    assert answer.status in (400, 404)
    error = answer.json["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert words in error["message"]
    assert not lab.engine.requests


async def test_an_image_is_refused_by_name(lab):
    part = {"type": "image_url", "image_url": {"url": "data:,"}}
    answer = await lab.chat(messages=[{"role": "user", "content": [part]}])
    assert answer.status == 400
    assert answer.json["error"]["param"] == "messages[0].content[0]"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{not json", 400, "not valid JSON"),
        (b"[1]", 400, "must be a JSON object"),
        (b'{"model": "demo"}', 400, "Missing required parameter: 'messages'"),
        (b" " * (9 << 20), 413, "at most"),
        (b'{"model": "demo", "messages": [{"role": "user"', 400, "not valid JSON"),
    ],
)
async def test_bad_bodies_are_refused(lab, body, status, words):
    answer = await lab.post("/v1/chat/completions", body)
    assert answer.status == status
    assert words in answer.json["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestRejected("the grammar does not compile", param="response_format"), 400),
        (EngineOverloaded("the queue is full"), 429),
        (EngineDead("gone"), 503),
    ],
)
async def test_an_error_before_the_first_token_keeps_its_status(lab, stream, error, status):
    lab.engine.script = [error]
    answer = await lab.chat(stream=stream)
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["error"]["message"]
    assert ("retry-after" in answer.headers) == (status in (429, 503))


async def test_an_error_in_mid_stream_is_a_frame(lab):
    lab.says("one two three", [1, 1, 1])
    lab.engine.script = [*lab.engine.script[:2], EngineDead("gone")]
    answer = await lab.chat(stream=True)
    assert answer.status == 200
    assert answer.chunks[-1]["error"]["code"] == "engine_dead"
    assert answer.done


async def test_a_slow_first_token_does_not_hold_the_status_line(lab):
    ids = lab.renderer.encode("late", False)
    lab.engine.script = [Pause(0.2), Step(tuple(ids), finish=FinishReason.STOP)]
    lab.gateway.timing = Timing(first_event_grace_s=0.01, keep_alive_s=0.02)
    answer = await lab.chat(stream=True)
    assert answer.status == 200
    assert b": keep-alive\n\n" in answer.sends
    assert fold(answer.chunks)["content"] == "late"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_frees_the_engine(lab, stream, begun):
    leave = asyncio.Event()
    step = Step(tuple(lab.renderer.encode("word", False)))

    def script(_request):
        if begun:
            yield step
        leave.set()
        yield Pause(60)

    lab.engine.script = script
    body = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "stream": stream}
    await asyncio.wait_for(lab.post("/v1/chat/completions", body, leave=leave), 5)
    assert not lab.engine.running
    assert len(lab.engine.aborted) == 1


async def test_the_engine_must_be_ready(lab):
    lab.gateway.state = "starting"
    answer = await lab.chat()
    assert answer.status == 503
    assert answer.json["error"]["code"] == "engine_starting"
    assert "retry-after" in answer.headers


async def test_an_unforeseen_fault_says_nothing_of_its_inside(lab):
    class Broken(ScriptedEngine):
        def generate(self, request):
            raise RuntimeError("secret detail")

    lab.engine = Broken()
    lab.gateway.path = lab.path()
    seen = []
    body = orjson.dumps({"model": "demo", "messages": [{"role": "user", "content": "hi"}]})
    with pytest.raises(RuntimeError):  # Starlette answers, then raises for the server's log
        await call(lab.app, "POST", "/v1/chat/completions", body, on_send=seen.append)
    assert seen[-1].status == 500
    assert seen[-1].json["error"]["type"] == "server_error"
    assert b"secret" not in seen[-1].body
    assert b"RuntimeError" not in seen[-1].body


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_ends_the_engine_request(lab, stream):
    lab.engine.script = [Pause(60)]
    answer = await asyncio.wait_for(lab.chat(stream=stream, timeout_s=0.02), 5)
    assert answer.status == 504
    assert answer.json["error"]["code"] == "deadline_exceeded"
    assert not lab.engine.running
    assert not lab.gateway.path.admission.num_inside


async def test_a_deadline_in_mid_stream_is_an_error_frame(lab):
    step = Step(tuple(lab.renderer.encode("word", False)))
    lab.engine.script = [step, Pause(60)]
    answer = await asyncio.wait_for(lab.chat(stream=True, timeout_s=0.5), 5)
    assert answer.status == 200
    assert answer.chunks[-1]["error"]["code"] == "deadline_exceeded"
    assert answer.done
    assert not lab.engine.running


async def test_over_the_bounds_is_429_before_any_work(lab):
    lab.gateway.path.admission.bounds = Bounds(queued=0)
    answer = await lab.chat()
    assert answer.status == 429
    assert answer.json["error"]["code"] == "queue_full"
    assert 1 <= int(answer.headers["retry-after"]) <= 120
    assert not lab.renderer.seen


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/responses", {"input": "x"}),
    ],
)
async def test_a_client_that_does_not_read_is_cut_off(lab, path, asked):
    lab.gateway.timing = Timing(reader_s=0.02)
    step = Step(tuple(lab.renderer.encode("word", False)))
    lab.engine.script = [step] * 50
    endings = []

    class Notes(NullObserver):
        def begin(self, facts):
            observation = NullObservation()
            observation.end = endings.append
            return observation

    lab.gateway.observer = Notes()
    body = orjson.dumps({"model": "demo", "stream": True} | asked)

    async def receive():
        if not receive.sent:
            receive.sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await asyncio.Event().wait()

    async def send(message):
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    receive.sent = False
    scope = {
        "type": "http", "method": "POST", "path": path,
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "query_string": b"",
        "http_version": "1.1", "scheme": "http", "root_path": "",
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    await asyncio.wait_for(lab.app(scope, receive, send), 5)
    assert endings == [Ending.SLOW_READER]
    assert not lab.engine.running
    assert not lab.gateway.path.admission.num_inside


async def test_messages_and_tools_are_bounded_in_number(lab):
    many = [{"role": "user", "content": "x"}] * 4097
    answer = await lab.chat(messages=many)
    assert (answer.status, answer.json["error"]["param"]) == (400, "messages")
    answer = await lab.chat(tools=[WEATHER] * 1025)
    assert (answer.status, answer.json["error"]["param"]) == (400, "tools")


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
