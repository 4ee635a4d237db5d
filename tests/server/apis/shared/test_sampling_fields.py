"""vLLM's fields that steer the engine: taken, bounded, given on."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from eaglegate.engine.types import PositionLogprobs, TokenLogprob

STEERING = {"allowed_token_ids": [5, 3, 5], "bad_words": ["night"], "thinking_token_budget": 7}


async def ask(lab: Any, api: str, **fields: Any) -> Any:
    return await (lab.chat if api == "chat" else lab.complete)(**fields)


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_the_engine_gets_what_was_asked(lab: Any, api: str) -> None:
    lab.says("three")
    assert (await ask(lab, api, **STEERING)).status == 200
    sampling = lab.engine.requests[0].sampling
    assert sampling.allowed_token_ids == (5, 3)
    assert sampling.bad_words == ("night",)
    assert sampling.thinking_token_budget == 7


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [1 << 40]}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"bad_words": ["  "]}, "bad_words"),
        ({"bad_words": ["\u00fc" * 127, "\u00fc" * 127, "ab"]}, "bad_words"),
        ({"logit_bias": {str(at): 1 for at in range(1025)}}, "logit_bias"),
        ({"allowed_token_ids": list(range(1025))}, "allowed_token_ids"),
        ({"stop_token_ids": list(range(101))}, "stop_token_ids"),
        ({"bad_words": ["a"] * 129}, "bad_words"),
        ({"bad_words": ["a" * 257]}, "bad_words"),
        ({"thinking_token_budget": -2}, "thinking_token_budget"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ],
)
async def test_invalid_sampling_fields_are_refused_by_name(
    lab: Any, fields: Any, param: str
) -> None:
    for api in ("chat", "completions"):
        answer = await ask(lab, api, **fields)
        assert answer.status == 400, answer.json
        assert answer.json["error"]["param"].startswith(param)


async def test_a_budget_of_minus_one_is_none(lab: Any) -> None:
    lab.says("three")
    assert (await lab.chat(thinking_token_budget=-1)).status == 200
    assert lab.engine.requests[0].sampling.thinking_token_budget is None


async def test_a_budget_the_engine_cannot_keep_is_refused(lab: Any) -> None:
    lab.change_model(thinking_budget=False)
    answer = await lab.chat(thinking_token_budget=5)
    assert (answer.status, answer.json["error"]["param"]) == (400, "thinking_token_budget")


@pytest.mark.parametrize(("keeps", "budget"), [(True, 2048), (False, None), (None, None)])
async def test_the_budget_of_a_message_is_a_wish(lab: Any, keeps: Any, budget: Any) -> None:
    lab.change_model(thinking_budget=keeps)
    lab.says("three")
    thinking = {"type": "enabled", "budget_tokens": 2048}
    assert (await lab.message(thinking=thinking)).status == 200
    assert lab.engine.requests[0].sampling.thinking_token_budget == budget


def likely(token_id: int) -> PositionLogprobs:
    return PositionLogprobs(TokenLogprob(token_id, -2.0, 7), (TokenLogprob(9, -0.5, 1),))


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_log_probabilities_of_the_prompt_by_token_id(lab: Any, api: str) -> None:
    lab.says("three")
    ids = lab.renderer.encode("one two", False)
    given = (None, *map(likely, ids[1:]))
    lab.engine.script[0] = structs.replace(lab.engine.script[0], prompt_logprobs=given)
    body = (await ask(lab, api, prompt_logprobs=1)).json
    told = body["prompt_logprobs"] if api == "chat" else body["choices"][0]["prompt_logprobs"]
    assert told[0] is None
    assert told[1][str(ids[1])] == {
        "logprob": -2.0,
        "rank": 7,
        "decoded_token": lab.renderer.decode([ids[1]]),
    }
    assert told[1]["9"]["rank"] == 1
    assert lab.engine.requests[0].sampling.prompt_logprobs == 1
    assert "prompt_token_ids" not in body


async def test_the_echo_and_the_field_must_agree(lab: Any) -> None:
    answer = await ask(lab, "completions", echo=True, logprobs=2, prompt_logprobs=1)
    assert (answer.status, answer.json["error"]["param"]) == (400, "prompt_logprobs")
