"""A sample of the malformed requests; ``python -m tests.faults.fuzz`` tries ten thousand."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults import fuzz

pytestmark = pytest.mark.thorough


def test_malformed_requests_are_refused_in_the_api_s_shape():
    seen = fuzz.on_the_scripted_engine(lambda url: asyncio.run(fuzz.fuzz(url, 600, seed=3)))
    assert fuzz.bad(seen) == 0, dict(seen)
    assert seen["4xx"] > 200
    assert seen["2xx"] > 50
