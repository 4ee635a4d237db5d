"""A request that no engine can answer is the client's to mend: 400, which SDKs do not repeat."""

from __future__ import annotations

import pytest

from eaglegate.engine.errors import EngineFailed, RequestQuarantined

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
