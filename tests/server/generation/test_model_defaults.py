"""Sampling defaults of a model that no request could be run with."""

from __future__ import annotations

import pytest

from eaglegate.server.errors import ConfigError
from eaglegate.server.generation.model_defaults import check_default_sampling


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("temperature", -1, "'temperature' must be 0 or more; given -1"),
        ("temperature", float("nan"), "given nan"),
        ("temperature", "hot", "given 'hot'"),
        ("top_p", 0, "above 0 and at most 1"),
        ("top_p", 1.5, "above 0 and at most 1"),
        ("top_k", -2, "a whole number from -1"),
        ("top_k", 1.5, "a whole number from -1"),
        ("min_p", 2, "from 0 to 1"),
        ("repetition_penalty", 0, "above 0"),
        ("max_tokens", 0, "'max_new_tokens' must be a whole number from 1"),
        ("max_tokens", True, "given True"),
    ],
)
def test_a_value_that_no_request_could_be_run_with_is_refused(
    name: str, value: object, says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_default_sampling({"top_p": 0.9, name: value})
    assert says in str(refused.value)
    assert "--generation-config vllm" in str(refused.value)


def test_usual_defaults_are_taken() -> None:
    check_default_sampling({})
    check_default_sampling(
        {"temperature": 2.5, "top_p": 1, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.05,
         "max_tokens": 2048.0}
    )  # fmt: skip
