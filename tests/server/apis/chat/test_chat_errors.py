"""POST /v1/chat/completions: bad input, engine errors, deadlines, clients that leave."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import orjson
import pytest

from eaglegate.engine.errors import (
    EngineDead,
    EngineFailed,
    EngineOverloaded,
    RequestQuarantined,
    RequestRejected,
)
from eaglegate.engine.events import Ending, Observation, Observer
from eaglegate.engine.scripted import Pause
from eaglegate.engine.types import Step
from eaglegate.server.access.admission import AdmissionLimits
from eaglegate.server.http.response import StreamTiming
from eaglegate.text.events import FinishReason
from tests.server.apis.chat.test_chat import WEATHER
from tests.server.conftest import make_scope, read_head_only, send_once, wait_until
from tests.streams import fold_chat


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"model": "nope"}, "model", "does not exist"),
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
        ({"messages": "hi"}, "messages", "list"),
        ({"messages": [{"role": "user", "content": "x"}] * 4097}, "messages", "at most 4096"),
        ({"min_tokens": 1000}, "messages", "maximum context length is 256"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "limit of 8 tokens; given 9"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "-1, for as many"),
        ({"tools": [WEATHER, WEATHER]}, "tools", "the name 'get_weather'"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "Missing required parameter: 'response_format.json_schema'",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "Missing"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "Missing"),
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


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{not json", 400, "not valid JSON"),
        (b"[1]", 400, "must be a JSON object; given [1]"),
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
    lab.gateway.timing = StreamTiming(first_event_grace_s=0.01, keep_alive_s=0.02)
    answer = await lab.chat(stream=True)
    assert answer.status == 200
    assert b": keep-alive\n\n" in answer.sends
    assert fold_chat(answer.chunks)["content"] == "late"


async def test_a_client_that_leaves_while_a_late_stream_opens_leaves_no_timer(lab, monkeypatch):
    """A timer that outlived the answer would write into a closed connection."""
    leave, opening, open_now = asyncio.Event(), asyncio.Event(), asyncio.Event()
    lab.engine.script = lambda _request: iter([Pause(60)])
    lab.gateway.timing = StreamTiming(first_event_grace_s=0, keep_alive_s=3600)
    loop = asyncio.get_running_loop()
    timers, call_later = [], loop.call_later

    def remember(*given, **named):
        timers.append(call_later(*given, **named))
        return timers[-1]

    monkeypatch.setattr(loop, "call_later", remember)
    sent, body = [], {"model": "demo", "messages": [{"role": "user", "content": "x"}]}
    given = [{"type": "http.request", "body": orjson.dumps(body | {"stream": True})}]

    async def receive():
        if given:
            return given.pop()
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        opening.set()
        with suppress(asyncio.CancelledError):  # a server that has begun to write goes on
            await open_now.wait()
        sent.append(message)

    async with asyncio.timeout(5):
        answer = asyncio.create_task(
            lab.app(make_scope("POST", "/v1/chat/completions"), receive, send)
        )
        await opening.wait()
        leave.set()
        await answer
        open_now.set()
        await wait_until(lambda: sent)
        await asyncio.sleep(0)
    far = [timer for timer in timers if timer.when() > loop.time() + 60 and not timer.cancelled()]
    assert not far
    assert [message["type"] for message in sent] == ["http.response.start"]


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


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_ends_the_engine_request(lab, stream):
    lab.engine.script = [Pause(60)]
    answer = await asyncio.wait_for(lab.chat(stream=stream, timeout_s=0.02), 5)
    assert answer.status == 504
    assert answer.json["error"]["code"] == "deadline_exceeded"
    assert not lab.engine.running
    assert not lab.gateway.pipeline.admission.num_in_flight


async def test_a_deadline_in_mid_stream_is_an_error_frame(lab):
    step = Step(tuple(lab.renderer.encode("word", False)))
    lab.engine.script = [step, Pause(60)]
    answer = await asyncio.wait_for(lab.chat(stream=True, timeout_s=0.5), 5)
    assert answer.status == 200
    assert answer.chunks[-1]["error"]["code"] == "deadline_exceeded"
    assert answer.done
    assert not lab.engine.running


async def test_over_the_bounds_is_429_before_any_work(lab):
    lab.gateway.pipeline.admission.bounds = AdmissionLimits(queued=0)
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
    lab.gateway.timing = StreamTiming(reader_s=0.02)
    step = Step(tuple(lab.renderer.encode("word", False)))
    lab.engine.script = [step] * 50
    endings = []

    class Note(Observation):
        def end(self, ending):
            endings.append(ending)

    class Notes(Observer):
        def begin(self, facts):
            return Note()

    lab.gateway.observer = Notes()
    body = orjson.dumps({"model": "demo", "stream": True} | asked)
    answering = lab.app(make_scope("POST", path), send_once(body), read_head_only)
    await asyncio.wait_for(answering, 5)
    assert endings == [Ending.SLOW_READER]
    assert not lab.engine.running
    assert not lab.gateway.pipeline.admission.num_in_flight


CHOICE = {"guided_choice": ["yes"]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": [5]}, "allowed_token_ids"),
        ({"bad_words": ["yes"]}, "bad_words"),
        ({"logit_bias": {"5": -100}, "repetition_penalty": 1e-6}, "logit_bias"),
        ({"min_tokens": 9}, "min_tokens"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_fields_that_leave_no_token_for_a_grammar_are_named(lab, fields, param, stream):
    lab.engine.script = [EngineFailed("The engine failed on this request.")]
    answer = await lab.chat(**CHOICE, **fields, stream=stream)
    assert answer.status == 400
    error = answer.json["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert "'guided_choice'" in error["message"]
    assert all(f"'{name}'" in error["message"] for name in fields)


@pytest.mark.parametrize(
    ("fields", "failure"),
    [
        (CHOICE, EngineFailed("no")),
        ({"allowed_token_ids": [5]}, EngineFailed("no")),
        (CHOICE | {"allowed_token_ids": [5]}, RequestQuarantined("no")),
    ],
)
async def test_other_failures_are_the_engine_s(lab, fields, failure):
    lab.engine.script = [failure]
    assert (await lab.chat(**fields)).status == 500


@pytest.mark.parametrize("value", [5e-324, 1e-38, 1e39])
async def test_a_penalty_that_no_float_of_the_engine_holds_is_refused(lab, value):
    answer = await lab.chat(repetition_penalty=value)
    assert answer.status == 400
    assert answer.json["error"]["param"] == "repetition_penalty"
