"""Named keys have prefix caches of their own, unless an operator lets them share one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglegate.server.access.isolation import CacheIsolation, check_names
from eaglegate.server.errors import ConfigError
from tests.server.conftest import make_key

A, B = map(make_key, "ab")
PLAIN = replace(A, name="key-12345678", named=False)
ASK = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}
salts = (
    st.none()
    | st.text(min_size=1, max_size=12)
    | st.sampled_from(["key:a:", "key:b:x", "shared:x", "common:x"])
)


@given(salts, salts)
def test_no_salt_leads_into_the_cache_of_another_key(mine: str | None, other: str | None) -> None:
    apart, shared = CacheIsolation(), CacheIsolation(frozenset({"b"}))
    for isolation in (apart, shared):
        assert isolation.salt(A, mine) != isolation.salt(B, other)
        assert (isolation.salt(A, mine) == isolation.salt(A, other)) is (mine == other)
        for common in (None, PLAIN):
            assert isolation.salt(A, mine) not in (isolation.salt(common, None), None)
            assert isolation.salt(A, mine) != isolation.salt(common, other)
            assert (isolation.salt(common, mine) == isolation.salt(common, other)) is (
                mine == other
            )


def test_keys_share_where_they_may() -> None:
    for names in ({"all"}, {"a", "b"}):
        isolation = CacheIsolation(frozenset(names))
        assert isolation.salt(A, None) is isolation.salt(B, None) is None
        assert isolation.salt(A, "x") == isolation.salt(B, "x")


def test_keys_without_names_have_the_common_cache() -> None:
    for key in (None, PLAIN):
        assert CacheIsolation().salt(key, None) is None
        assert CacheIsolation().salt(key, "x") == "common:x"


def test_a_name_that_no_key_has_is_refused() -> None:
    check_names(("all", "a"), ["a"])
    with pytest.raises(ConfigError, match="no API key 'agent'; the keys are agents"):
        check_names(("agent",), ["agents"])


@pytest.mark.parametrize(
    "api", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"]
)
async def test_every_api_salts_by_key(lab, api) -> None:
    body = {
        "/v1/completions": {"model": "demo", "prompt": "Hi"},
        "/v1/responses": {"model": "demo", "input": "Hi"},
        "/v1/messages": ASK | {"max_tokens": 9},
    }.get(api, ASK)
    lab.admit(A, B)
    for name in "ab":
        lab.says("Hello.")
        answer = await lab.post(api, body, key=name)
        assert answer.status == 200, answer.json
        assert lab.engine.requests[-1].cache_salt == f"key:{name}:"
