"""More context than the KV cache holds: requests give way and come back, none is lost."""

from __future__ import annotations

import asyncio

import pytest

from tests.conftest import serving
from tests.faults import streams

pytestmark = pytest.mark.slow

BLOCK, BLOCKS = 32, 40
LONGEST = BLOCK * (BLOCKS - 4)
"""A single request always fits."""


def test_many_long_requests_on_a_small_cache_all_end_as_they_would_alone(tmp_path):
    arguments = (
        "--block-size", str(BLOCK), "--num-gpu-blocks-override", str(BLOCKS),
        "--max-model-len", str(LONGEST),
    )  # fmt: skip
    kinds = ("chat", "structured", "logprobs", "penalised")
    bodies = [streams.request(kinds[at % 4], at, 380) for at in range(12)]
    with serving(tmp_path / "serve.log", arguments) as gateway:
        (alone,) = asyncio.run(streams.hear_all(gateway.url, bodies[:1]))
        together = asyncio.run(streams.hear_all(gateway.url, bodies))
        assert all(heard.whole for heard in together), [heard.error for heard in together]
        assert together[0].said == alone.said
        needed = sum(heard.usage["total_tokens"] for heard in together)
        assert needed > 3 * BLOCK * BLOCKS, "or the cache was not exhausted"
        assert gateway.metric("vllm:num_preemptions_total") > 0
        assert not gateway.metric("vllm:num_requests_running")
        assert gateway.metric("vllm:kv_cache_usage_perc") < 0.05
