"""A sample of the strange and malformed requests; ``python -m tests.attacks.fuzz`` sends 20,000."""

from __future__ import annotations

import asyncio

import pytest

from tests.attacks.fields import ENDPOINTS
from tests.attacks.fuzz import bad, fuzz
from tests.attacks.grammar import RequestGrammar
from tests.attacks.run import running

pytestmark = pytest.mark.thorough


def test_strange_and_malformed_requests_are_answered():
    with running() as (url, _):
        seen = asyncio.run(fuzz(url, 900, seed=2)).seen
    assert bad(seen) == 0, dict(seen)
    assert seen["2xx"] + seen["streams"] > 150
    assert seen["4xx"] > 200
    assert seen["raw"] == 90


def test_requests_are_of_every_kind_and_repeatable():
    one, other = (
        [grammar.request() for _ in range(2000)] for grammar in map(RequestGrammar, (1, 1))
    )
    assert one == other
    assert set(ENDPOINTS) <= {path for _, path, _ in one}
    bodies = b"\n".join(body for *_, body in one)
    for field in (b"tool_choice", b"structured_outputs", b"previous_response_id", b"stream"):
        assert field in bodies
