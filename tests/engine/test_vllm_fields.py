"""Fields of a request in vLLM's ``extra_args``."""

from __future__ import annotations

from copy import deepcopy

from eaglegate.engine.types import EngineRequest, Sampling
from eaglegate.engine.vllm_fields import QUOTES, build_sampling_fields, unpack_tokens

TOKENS = (0, 5, 151_935, -1)


def test_quotes_are_not_copied_number_by_number() -> None:
    """vLLM copies the fields of every request on the event loop."""
    request = EngineRequest("a", (1,), Sampling(max_tokens=1), quotes=TOKENS)
    extra = build_sampling_fields(request)["extra_args"]
    assert deepcopy(extra)[QUOTES] is extra[QUOTES]
    assert unpack_tokens(extra[QUOTES]) == list(TOKENS)
