"""The wall clock jumps: nothing that waits or is measured may notice, only what has a date."""

from __future__ import annotations

import time

import pytest

from eaglegate.engine.scripted import Pause
from eaglegate.engine.types import Step
from eaglegate.server.access.keys import KeyRing
from eaglegate.server.access.quota import KeyQuota
from tests.server.conftest import make_key

YEARS = 10 * 365 * 86400.0


class WallClock:
    """``time.time``, some way off."""

    def __init__(self) -> None:
        self._true = time.time
        self.off = 0.0

    def __call__(self) -> float:
        return self._true() + self.off


@pytest.fixture
def wall(monkeypatch):
    clock = WallClock()
    monkeypatch.setattr(time, "time", clock)
    return clock


@pytest.mark.parametrize("jump", [YEARS, -YEARS])
async def test_a_stream_with_a_deadline_does_not_notice(lab, wall, jump):
    word = Step(tuple(lab.renderer.encode("word", False)))
    lab.says("end")
    lab.engine.script = [word, Pause(0.02), *[word] * 3, *lab.engine.script]

    def on_send(answer):
        wall.off = jump if answer.sends else 0.0

    body = b'{"model":"demo","stream":true,"messages":[{"role":"user","content":"x"}]}'
    options = {"headers": {"x-request-timeout": "5"}, "on_send": on_send}
    answer = await lab.post("/v1/chat/completions", body, **options)
    assert wall.off == jump
    assert answer.done
    assert answer.chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert 0 <= lab.gateway.pipeline.admission.rate.typical_s < 5


@pytest.mark.parametrize("jump", [YEARS, -YEARS])
async def test_a_minute_of_a_key_stays_a_minute(lab, wall, jump):
    lab.says("x")
    quota = KeyQuota("user", requests=1)
    lab.admit(make_key("user", quota=quota))
    assert (await lab.chat(key="user")).status == 200
    wall.off = jump
    refused = await lab.chat(key="user")
    assert refused.status == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60


async def test_dates_follow_the_wall_clock(lab, wall):
    lab.gateway.keys = KeyRing((make_key("user", expires=time.time() + 60),), wall)
    statuses = []
    for wall.off in (0.0, 61.0, 0.0, -YEARS):
        statuses.append((await lab.get("/v1/models", key="user")).status)
    assert statuses == [200, 401, 200, 200]


async def test_stored_responses_outlive_a_clock_that_was_wrong_for_a_while(lab, wall):
    lab.says("yes")
    made = (await lab.respond()).json
    found = []
    for wall.off in (-YEARS, YEARS, 0.0):
        found.append((await lab.get(f"/v1/responses/{made['id']}")).status)
    assert found == [200, 404, 200]
