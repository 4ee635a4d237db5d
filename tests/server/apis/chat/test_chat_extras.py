"""Chat completions beyond the plain answer: log probabilities, speculation, names of fields."""

from __future__ import annotations

import math

import orjson
import pytest
from msgspec import structs

from eaglegate.engine.errors import RequestRejected
from eaglegate.engine.types import DecodeStep, PositionLogprobs, Step, TokenLogprob
from eaglegate.text.events import FinishReason
from tests.server.apis.chat.test_chat import WEATHER


def named(name: str) -> dict:
    return {"type": "function", "function": {"name": name}}


OTHER = named("other")


async def test_logprobs_have_an_entry_per_token(lab):
    ids = lab.says_with_logprobs("grün is 12")
    body = (await lab.chat(logprobs=True, top_logprobs=1)).json
    content = body["choices"][0]["logprobs"]["content"]
    assert len(content) == len(ids) == body["usage"]["completion_tokens"]
    text = b"".join(bytes(entry["bytes"]) for entry in content).decode()
    assert text == "grün is 12<|im_end|>"
    assert all(entry["top_logprobs"][0]["token"] == entry["token"] for entry in content)
    assert lab.engine.requests[0].sampling.logprobs == 1


async def test_streamed_logprobs_are_those_of_the_answer(lab):
    lab.says_with_logprobs("grün is 12 <think>")
    whole = (await lab.chat(logprobs=True)).json["choices"][0]["logprobs"]["content"]
    streamed = []
    for chunk in (await lab.chat(logprobs=True, stream=True)).chunks:
        streamed += (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    assert streamed == whole


async def test_a_stop_string_ends_the_logprobs_too(lab):
    lab.says_with_logprobs("one two three four", size=20)
    body = (await lab.chat(logprobs=True, stop=[" three"])).json
    content = body["choices"][0]["logprobs"]["content"]
    assert len(content) == body["usage"]["completion_tokens"]
    assert "four" not in "".join(entry["token"] for entry in content)
    assert body["choices"][0]["stop_reason"] == " three"


async def test_minus_infinity_is_no_json(lab):
    lab.says_with_logprobs("a", size=1)
    first = lab.engine.script[0]
    never = PositionLogprobs(TokenLogprob(first.token_ids[0], -math.inf))
    lab.engine.script[0] = structs.replace(first, logprobs=(never,))
    body = (await lab.chat(logprobs=True)).json
    assert body["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0


def speculating(lab) -> None:
    ids = lab.renderer.encode("one two three four five", False)
    lab.engine.script = [
        Step(tuple(ids[:1])),
        Step(tuple(ids[1:4]), decode=(DecodeStep(3, 2, 3),)),
        Step(tuple(ids[4:5]), decode=(DecodeStep(3, 0, 1),), finish=FinishReason.STOP),
    ]


EXPECTED = {
    "mean_acceptance_length": 2.0,
    "draft_acceptance_rate": 2 / 6,
    "acceptance_histogram": [1, 0, 1, 0],
    "num_spec_steps": 2,
    "num_accepted_draft_tokens": 2,
    "num_draft_tokens": 6,
    "num_spec_tokens": 3,
}


@pytest.mark.thorough
async def test_speculation_is_in_the_answer_when_asked_for(lab):
    speculating(lab)
    assert "metrics" not in (await lab.chat()).json
    body = (await lab.chat(per_request_spec_decode_metrics="summary")).json
    assert body["metrics"]["speculative_decoding"] == EXPECTED
    assert body["choices"][0]["metrics"] == body["metrics"]
    body = (await lab.chat(per_request_spec_decode_metrics="detailed")).json
    detailed = {"per_step_accepted": [2, 0], "per_step_drafted": [3, 3]}
    assert body["metrics"]["speculative_decoding"] == EXPECTED | detailed


@pytest.mark.parametrize("options", [None, {"include_usage": True}])
async def test_speculation_is_in_the_stream_too(lab, options):
    speculating(lab)
    fields = {"per_request_spec_decode_metrics": "summary", "stream": True}
    if options:
        fields["stream_options"] = options
    chunks = (await lab.chat(**fields)).chunks
    assert chunks[-1]["metrics"]["speculative_decoding"] == EXPECTED
    assert chunks[-2]["choices"][0]["metrics"]["speculative_decoding"] == EXPECTED


async def test_each_of_several_choices_has_its_own_speculation(lab):
    speculating(lab)
    body = (await lab.chat(n=2, per_request_spec_decode_metrics="summary")).json
    assert "metrics" not in body
    assert [c["metrics"]["speculative_decoding"] for c in body["choices"]] == [EXPECTED] * 2
    chunks = (await lab.chat(n=2, per_request_spec_decode_metrics="summary", stream=True)).chunks
    last = [c["choices"][0] for c in chunks if c["choices"][0]["finish_reason"]]
    assert [choice["metrics"]["speculative_decoding"] for choice in last] == [EXPECTED] * 2


@pytest.mark.parametrize("fields", [("reasoning",), ("reasoning_content",)])
async def test_the_name_of_the_reasoning_is_a_setting(lab, fields):
    lab.change_model(reasoning_fields=fields)
    lab.says("<think>\nhm\n</think>\n\nyes", [1, 2, 2])
    message = (await lab.chat()).json["choices"][0]["message"]
    assert {name for name in message if name.startswith("reasoning")} == set(fields)
    deltas = [c["choices"][0]["delta"] for c in (await lab.chat(stream=True)).chunks]
    assert {n for delta in deltas for n in delta if n.startswith("reasoning")} == set(fields)


async def test_reasoning_can_be_left_out(lab):
    lab.says("<think>\nhm\n</think>\n\nyes", [1, 2, 2])
    body = (await lab.chat(include_reasoning=False)).json
    assert set(body["choices"][0]["message"]) == {"role", "content", "refusal"}
    chunks = (await lab.chat(include_reasoning=False, stream=True)).chunks
    assert not any("reasoning" in c["choices"][0]["delta"] for c in chunks)


async def test_token_ids_come_back_when_asked_for(lab):
    lab.says("one two", [1, 2])
    body = (await lab.chat(return_token_ids=True)).json
    assert tuple(body["prompt_token_ids"]) == lab.engine.requests[0].prompt
    ids = lab.renderer.encode("one two<|im_end|>", False)
    assert body["choices"][0]["token_ids"] == ids
    chunks = (await lab.chat(return_token_ids=True, stream=True)).chunks
    assert chunks[0]["prompt_token_ids"] == body["prompt_token_ids"]
    assert [i for c in chunks for i in c["choices"][0].get("token_ids", ())] == ids


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"audio": {"voice": "x"}}, "audio"),
        ({"modalities": ["audio"]}, "modalities[0]"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": "{", "regex": None}}, "structured_outputs.json"),
        ({"guided_json": {"type": "nonsense"}}, "guided_json"),
        ({"guided_json": '{"not":' * 900 + "{}" + "}" * 900}, "guided_json"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": named("nobody")}, "tool_choice"),
    ],
)
async def test_unsupported_chat_fields_are_refused_by_name(lab, fields, param):
    answer = await lab.chat(**fields)
    assert answer.status == 400
    assert answer.json["error"]["param"] == param


async def test_neutral_values_of_what_is_refused_do_no_harm(lab):
    lab.says("yes")
    answer = await lab.chat(
        audio=None, functions=[], use_beam_search=False, modalities=["text"], n=None, store=True
    )
    assert answer.status == 200


async def test_the_service_tier_says_who_served(lab):
    lab.says("yes")
    assert (await lab.chat(service_tier="flex")).json["service_tier"] == "default"
    assert "service_tier" not in (await lab.chat()).json


def tag_of(lab) -> dict:
    constraint = lab.engine.requests[-1].constraint
    assert constraint.kind == "structural_tag"
    assert not constraint.after_reasoning
    return orjson.loads(constraint.value)["format"]


async def test_forced_calls_become_a_grammar(lab):
    lab.says("x")
    await lab.chat(tools=[OTHER, WEATHER], tool_choice=named("get_weather"))
    _, calls = tag_of(lab)["elements"]
    assert [tag["begin"] for tag in calls["tags"]] == [
        '<tool_call>\n{"name": "get_weather", "arguments": '
    ]
    assert calls["stop_after_first"]
    await lab.chat(tools=[OTHER, WEATHER], tool_choice="required")
    _, calls = tag_of(lab)["elements"]
    assert len(calls["tags"]) == 2
    assert not calls["stop_after_first"]
    await lab.chat(tools=[OTHER, WEATHER], tool_choice="auto")
    assert lab.engine.requests[-1].constraint is None


async def test_strict_and_allowed_tools_become_a_grammar(lab):
    lab.says("x")
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    await lab.chat(tools=[OTHER, strict])
    _, text = tag_of(lab)["elements"]
    schemas = [tag["content"]["json_schema"] for tag in text["tags"]]
    assert schemas == [{"type": "object"}, WEATHER["function"]["parameters"]]
    tools = {"mode": "required", "tools": [named("other")]}
    allowed = {"type": "allowed_tools", "allowed_tools": tools}
    await lab.chat(tools=[OTHER, WEATHER], tool_choice=allowed, parallel_tool_calls=False)
    _, calls = tag_of(lab)["elements"]
    assert len(calls["tags"]) == 1
    assert calls["stop_after_first"]


async def test_without_a_reasoning_parser_the_constraint_is_itself(lab):
    lab.reasoning_parser = None
    lab.gateway.pipeline = lab.path()
    lab.says("x")
    await lab.chat(structured_outputs={"regex": "[ab]"})
    assert lab.engine.requests[-1].constraint.kind == "regex"
    await lab.chat(guided_choice=["a", "b"])
    assert lab.engine.requests[-1].constraint.choices == ("a", "b")


async def test_a_grammar_the_engine_cannot_compile_names_its_field(lab):
    lab.engine.script = [RequestRejected("no such thing")]
    answer = await lab.chat(guided_regex="[unclosed")
    assert (answer.status, answer.json["error"]["param"]) == (400, "guided_regex")
    assert "cannot be compiled into a grammar: no such thing" in answer.json["error"]["message"]
    answer = await lab.chat(tools=[WEATHER], tool_choice="required")
    assert answer.json["error"]["param"] == "tools"
