"""POST /v1/completions on the wire."""

from __future__ import annotations

import pytest
from msgspec import structs

from eaglegate.engine.types import PositionLogprobs, Step, TokenLogprob
from eaglegate.text.events import FinishReason


def texts(chunks: list[dict]) -> dict[int, str]:
    out: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            out[choice["index"]] = out.get(choice["index"], "") + choice["text"]
    return out


async def test_a_completion_is_text_as_the_model_wrote_it(lab):
    lab.says("<think>hm</think> <tool_call>{}</tool_call>", [1, 3])
    body = (await lab.complete(max_tokens=100)).json
    assert body["object"] == "text_completion"
    assert body["choices"][0]["text"] == "<think>hm</think> <tool_call>{}</tool_call>"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["prompt_tokens"] == len(lab.renderer.encode("one two", False))


@pytest.mark.parametrize(
    ("prompt", "num"), [("a b", 1), ([5, 6], 1), (["a", "b c"], 2), ([[5], [6, 7], [8]], 3)]
)
async def test_prompts_of_every_kind(lab, prompt, num):
    lab.says("three four", [1, 2])
    body = (await lab.complete(prompt=prompt, n=2)).json
    assert [choice["index"] for choice in body["choices"]] == list(range(2 * num))
    assert {choice["text"] for choice in body["choices"]} == {"three four"}
    prompts = [r.prompt for r in sorted(lab.engine.requests, key=lambda r: r.id)]
    assert prompts[0] == prompts[1]
    assert body["usage"]["prompt_tokens"] == sum(len(p) for p in prompts) / 2
    streamed = await lab.complete(prompt=prompt, n=2, stream=True)
    assert streamed.done
    assert texts(streamed.chunks) == dict.fromkeys(range(2 * num), "three four")


async def test_the_default_limit_is_sixteen_tokens(lab):
    lab.says("x")
    await lab.complete()
    assert lab.engine.requests[0].sampling.max_tokens == 16


async def test_echo_begins_with_the_prompt(lab):
    lab.says(" three", [1])
    assert (await lab.complete(echo=True)).json["choices"][0]["text"] == "one two three"
    chunks = (await lab.complete(echo=True, stream=True)).chunks
    assert texts(chunks) == {0: "one two three"}
    ids = lab.renderer.encode("four five", False)
    body = (await lab.complete(prompt=ids, echo=True)).json
    assert body["choices"][0]["text"] == "four five three"


async def test_echo_with_logprobs_covers_the_prompt(lab):
    prompt = lab.renderer.encode("one two", False)
    given = [None, *(PositionLogprobs(TokenLogprob(i, -1.0)) for i in prompt[1:])]
    end = lab.renderer.encode(" three", False)
    lab.engine.script = [
        Step(
            tuple(end),
            logprobs=tuple(PositionLogprobs(TokenLogprob(i, -2.0)) for i in end),
            prompt_logprobs=tuple(given),
            finish=FinishReason.LENGTH,
        )
    ]
    choice = (await lab.complete(echo=True, logprobs=0)).json["choices"][0]
    found = choice["logprobs"]
    assert lab.engine.requests[0].sampling.prompt_logprobs == 0
    assert "".join(found["tokens"]) == choice["text"] == "one two three"
    assert found["token_logprobs"][0] is None
    assert found["token_logprobs"][-1] == -2.0
    for at, token in zip(found["text_offset"], found["tokens"], strict=True):
        assert choice["text"][at : at + len(token)] == token
    streamed = (await lab.complete(echo=True, logprobs=0, stream=True)).chunks
    joined = [
        t for c in streamed for t in (c["choices"][0]["logprobs"] or {"tokens": []})["tokens"]
    ]
    assert joined == found["tokens"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [99999]}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"n": 128, "prompt": ["a"] * 9}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt": "word " * 300}, "prompt"),
    ],
)
async def test_unsupported_completion_fields_are_refused_by_name(lab, fields, param):
    answer = await lab.complete(**fields)
    assert answer.status == 400
    assert answer.json["error"]["param"] == param
    assert not lab.engine.requests


async def test_usage_metrics_and_token_ids(lab):
    lab.says("three four", [1, 2])
    answer = await lab.complete(
        stream=True,
        stream_options={"include_usage": True},
        return_token_ids=True,
        per_request_spec_decode_metrics="summary",
    )
    *chunks, last = answer.chunks
    ids = lab.renderer.encode("three four<|im_end|>", False)
    assert last["usage"]["completion_tokens"] == len(ids)
    assert last["metrics"]["speculative_decoding"]["num_spec_tokens"] == 3
    assert all(chunk["usage"] is None for chunk in chunks)
    assert [i for c in chunks for i in c["choices"][0]["token_ids"]] == ids
    assert chunks[0]["choices"][0]["prompt_token_ids"] == list(lab.engine.requests[0].prompt)


async def test_usage_so_far_is_on_every_chunk_when_asked_for(lab):
    lab.says("three four five", [1, 2])
    options = {"include_usage": True, "continuous_usage_stats": True}
    *before, last = (await lab.complete(stream=True, stream_options=options)).chunks
    counts = [chunk["usage"]["completion_tokens"] for chunk in before]
    assert counts == sorted(counts)
    assert 0 < counts[0] < counts[-1] == last["usage"]["completion_tokens"]


@pytest.mark.parametrize("stream", [False, True])
async def test_without_tokens_the_prompt_is_all_of_the_answer(lab, stream):
    lab.says_with_logprobs("three four", size=1)
    ids = lab.renderer.encode("one two", False)
    first = lab.engine.script[0]
    known = tuple(PositionLogprobs(TokenLogprob(i, -0.25, 1)) for i in ids[1:])
    lab.engine.script[0] = structs.replace(first, prompt_logprobs=(None, *known))
    answer = await lab.complete(max_tokens=0, echo=True, logprobs=0, stream=stream)
    chunks = answer.chunks if stream else [answer.json]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(choice["text"] for choice in choices) == "one two"
    assert choices[-1]["finish_reason"] == "length"
    (told,) = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    assert told["token_logprobs"] == [None] + [-0.25] * (len(ids) - 1)
    if not stream:
        assert answer.json["usage"]["completion_tokens"] == 0
    assert [request.sampling.max_tokens for request in lab.engine.requests] == [1]


async def test_no_tokens_and_no_prompt_are_nothing(lab):
    answer = await lab.complete(max_tokens=0)
    assert (answer.status, answer.json["error"]["param"]) == (400, "max_tokens")
