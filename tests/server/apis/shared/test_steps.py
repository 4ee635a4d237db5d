"""``return_steps``: every token with its origin, on every API, streamed and whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eaglegate.engine.speculation.accounts.accounting import sum_steps
from eaglegate.engine.types import (
    DecodeStep,
    DepthReason,
    Drafter,
    Step,
    StepTrace,
    UndraftedReason,
)
from eaglegate.text.events import FinishReason

MESSAGES = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}
BODIES = {
    "/v1/chat/completions": MESSAGES,
    "/v1/completions": {"prompt": "hi", "max_tokens": 50},
    "/v1/responses": {"input": "hi", "max_output_tokens": 50},
    "/v1/messages": MESSAGES,
}


def script(lab, text: str = "one grün three four five six") -> list[int]:
    """Prefill, a verify step with one rejected draft, a plain step, and one cut by the limit."""
    ids = lab.renderer.encode(text, False)
    wrong = lab.renderer.encode(" wrong", False)[0]
    lab.engine.script = [
        Step(tuple(ids[:1]), traces=(StepTrace(5.0),)),
        Step(
            tuple(ids[1:4]),
            decode=(DecodeStep(3, 2, 3),),
            traces=(StepTrace(5.25, (ids[1], ids[2], wrong)),),
        ),
        Step(
            tuple(ids[4:5]),
            decode=(DecodeStep(0, 0, 1, undrafted=UndraftedReason.REFUSED),),
            traces=(StepTrace(5.35),),
        ),
        Step(
            tuple(ids[5:7]),
            decode=(DecodeStep(3, 2, 2, 1),),
            finish=FinishReason.LENGTH,
            traces=(StepTrace(5.5, (ids[5], ids[6], wrong)),),
        ),
    ]
    return ids[:7]


def read_whole(body: dict) -> list[dict]:
    return body["choices"][0]["steps"] if "choices" in body else body["steps"]


def read_stream(chunks: list[dict]) -> list[dict]:
    steps: list[dict] = []
    for chunk in chunks:
        if "choices" in chunk:
            for choice in chunk["choices"]:
                steps += choice.get("steps", [])
        elif chunk.get("type") in ("steps", "response.steps"):
            steps += chunk["steps"]
    return steps


@pytest.mark.parametrize("url", BODIES)
async def test_every_token_has_its_origin(lab, url):
    lab.tool_parser = lab.reasoning_parser = None
    ids = script(lab)
    whole = read_whole((await lab.post(url, BODIES[url] | {"return_steps": True})).json)
    body = BODIES[url] | {"return_steps": True, "stream": True}
    streamed = (await lab.post(url, body)).chunks
    for steps in (whole, read_stream(streamed)):
        tokens = [token for step in steps for token in step["tokens"]]
        assert [token["id"] for token in tokens] == ids
        assert [t["draft_position"] for t in tokens] == [None, 1, 2, None, None, 1, 2]
        assert "".join(token["text"] for token in tokens) == lab.renderer.decode(ids)
        assert [step["kind"] for step in steps] == ["prefill", "verify", "plain", "verify"]
        assert [step["index"] for step in steps] == [0, 1, 2, 3]
        assert [step["ms"] for step in steps[1:]] == [250.0, 100.0, 150.0]
        wrong = lab.renderer.encode(" wrong", False)[0]
        said = lab.gateway.pipeline.parsers.pieces[wrong].decode()
        assert steps[1]["rejected"] == [{"id": wrong, "text": said, "draft_position": 3}]
        assert steps[2]["reason"] == "undrafted"
        assert (steps[3]["drafted"], steps[3]["accepted"], steps[3]["cut"]) == (3, 2, 1)
        assert steps[3]["rejected"] == []


async def test_a_lookup_is_named(lab):
    lab.tool_parser = lab.reasoning_parser = None
    ids = lab.renderer.encode("one two three four five six", False)
    lab.engine.script = [
        Step(tuple(ids[:1])),
        Step(tuple(ids[1:4]), decode=(DecodeStep(8, 2, 3, drafter=Drafter.LOOKUP),)),
        Step(tuple(ids[4:6]), decode=(DecodeStep(3, 1, 2),), finish=FinishReason.LENGTH),
    ]
    steps = read_whole((await lab.chat(return_steps=True)).json)
    assert [step.get("drafter") for step in steps] == [None, "lookup", None]


async def test_a_planned_step_has_the_rates_of_every_depth(lab):
    lab.tool_parser = lab.reasoning_parser = None
    ids = lab.renderer.encode("one two three", False)[:2]
    probe = DecodeStep(0, 0, 1, 0, UndraftedReason.PLANNED, DepthReason.PROBE)
    lab.engine.script = [
        Step(tuple(ids[:1]), traces=(StepTrace(1.0),)),
        Step(
            tuple(ids[1:]),
            decode=(probe,),
            traces=(StepTrace(2.0, (), (100.5, 90.0), 0.2),),
            finish=FinishReason.LENGTH,
        ),
    ]
    first, step = read_whole((await lab.chat(return_steps=True)).json)
    assert not {"rates", "token_price"} & first.keys()
    assert (step["kind"], step["reason"], step["planned"]) == ("plain", "planned", "probe")
    assert (step["rates"], step["token_price"]) == ([100.5, 90.0], 0.2)


@pytest.mark.parametrize("url", BODIES)
async def test_steps_are_left_out_unless_asked_for(lab, url):
    script(lab)
    for stream in (False, True):
        answer = await lab.post(url, BODIES[url] | {"stream": stream})
        assert b'"steps"' not in answer.body
        assert b"draft_position" not in answer.body
    assert not any(request.traced for request in lab.engine.requests)


async def test_steps_sum_up_to_the_account_where_a_stop_string_cuts_one(lab):
    ids = lab.renderer.encode("one two three four five", False)
    cut = len(lab.renderer.encode("one two three", False))
    lab.engine.script = [
        Step(tuple(ids[:1])),
        Step(
            tuple(ids[1:]),
            decode=(DecodeStep(len(ids), len(ids) - 2, len(ids) - 1),),
            finish=FinishReason.STOP,
        ),
    ]
    asked = {"return_steps": True, "per_request_spec_decode_metrics": "detailed", "stop": ["three"]}
    body = (await lab.chat(**asked)).json
    steps = body["choices"][0]["steps"]
    found = body["metrics"]["speculative_decoding"]
    assert sum(len(step["tokens"]) for step in steps) == body["usage"]["completion_tokens"] == cut
    assert [step["accepted"] for step in steps if step["drafted"]] == found["per_step_accepted"]
    assert [step["drafted"] for step in steps if step["drafted"]] == found["per_step_drafted"]
    origins = [token["draft_position"] for token in steps[1]["tokens"]]
    assert origins == list(range(1, cut))
    assert steps[1]["cut"] == len(ids) - 2 - (cut - 1)
    assert len(steps[1]["rejected"]) == 2
    assert {token["text"] for token in steps[1]["rejected"]} == {None}


async def test_joined_steps_are_told_apart(lab):
    ids = lab.renderer.encode("one two three four five six", False)
    left = len(ids) - 4
    decode = (DecodeStep(3, 1, 2), DecodeStep(3, 0, 1), DecodeStep(left, left - 1, left))
    lab.engine.script = [Step(tuple(ids), decode=decode, finish=FinishReason.STOP)]
    steps = (await lab.chat(return_steps=True)).json["choices"][0]["steps"]
    assert [len(step["tokens"]) for step in steps] == [1, 2, 1, left]
    assert [step["kind"] for step in steps] == ["prefill", "verify", "verify", "verify"]
    totals = sum_steps(decode, first_tokens=1)
    assert sum(step["accepted"] for step in steps) == totals.accepted


async def test_an_engine_that_accounts_at_the_end_gives_all_steps_with_the_last(lab):
    pipeline = lab.gateway.pipeline
    lab.gateway.pipeline = replace(pipeline, info=replace(pipeline.info, accounts_at_end=True))
    ids = lab.renderer.encode("one two three four", False)
    left = len(ids) - 4
    decode = (DecodeStep(3, 2, 3), DecodeStep(left, left - 1, left))
    lab.engine.script = [
        Step(tuple(ids[:2])),
        Step(tuple(ids[2:5])),
        Step(tuple(ids[5:]), decode=decode, finish=FinishReason.STOP),
    ]
    chunks = (await lab.chat(return_steps=True, stream=True)).chunks
    (steps,) = [c["choices"][0]["steps"] for c in chunks if "steps" in c["choices"][0]]
    assert [len(step["tokens"]) for step in steps] == [1, 3, left]
    assert [step["kind"] for step in steps] == ["prefill", "verify", "verify"]


async def test_without_an_account_the_origin_is_unknown(lab):
    ids = lab.renderer.encode("one two three four", False)
    lab.engine.script = [
        Step(tuple(ids[:1])),
        Step(tuple(ids[1:3])),
        Step(tuple(ids[3:]), finish=FinishReason.STOP),
    ]
    steps = (await lab.chat(return_steps=True)).json["choices"][0]["steps"]
    assert [step["kind"] for step in steps] == ["prefill", "unknown", "unknown"]


async def test_each_choice_has_its_own_steps(lab):
    ids = script(lab)
    for stream in (False, True):
        answer = await lab.chat(n=2, return_steps=True, stream=stream)
        for choice in (0, 1):
            if stream:
                parts = [c for chunk in answer.chunks for c in chunk["choices"]]
                steps = [s for c in parts if c["index"] == choice for s in c.get("steps", ())]
            else:
                steps = answer.json["choices"][choice]["steps"]
            assert [t["id"] for step in steps for t in step["tokens"]] == ids


async def test_timings_stand_beside_the_usage_under_names_that_clients_show(lab):
    script(lab)
    whole = (await lab.chat()).json["timings"]
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    last = (await lab.chat(**asked)).chunks[-1]
    assert last["usage"]["completion_tokens"] == 7
    for timings in (whole, last["timings"]):
        assert timings["predicted_n"] == 7
        assert timings["draft_n"] == 6 and timings["draft_n_accepted"] == 4
        assert timings["acceptance_length"] == 3.0
        assert timings["draft_acceptance_rate"] == 0.6667
        speed = 6000 / timings["predicted_ms"]
        assert timings["predicted_per_second"] == pytest.approx(speed, rel=0.01)
    assert "timings" not in (await lab.chat(n=2)).json
    assert "timings" not in (await lab.chat(stream=True)).chunks[-1]
