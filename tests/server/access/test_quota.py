"""A key's tokens per minute over HTTP: what is reserved, what is paid, and what is given back."""

from __future__ import annotations

import asyncio

import pytest

from eaglegate.engine.scripted import Pause
from eaglegate.engine.types import Step
from eaglegate.server.access.caller import Requester
from eaglegate.server.access.cross_origin import READABLE
from eaglegate.server.access.quota import KeyQuota
from eaglegate.server.access.rate_limits import _format_duration
from eaglegate.text.events import FinishReason
from tests.server.conftest import make_key, wait_until

CHAT = "/v1/chat/completions"
BODY = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}


class Metered:
    """A gateway with one key, whose clock stands still."""

    def __init__(self, lab, **limits) -> None:
        self.lab, self.now = lab, 0.0
        concurrency = limits.pop("concurrency", None)
        self.quota = KeyQuota("user", clock=lambda: self.now, **limits)
        lab.admit(make_key("user", concurrency=concurrency, quota=self.quota))

    @property
    def level(self) -> float:
        return self.quota._tokens.level

    async def chat(self, content="hi", **fields):
        messages = [{"role": "user", "content": content}]
        return await self.lab.chat(key="user", messages=messages, **fields)

    def answers(self, tokens: int, pause_s: float = 0.0) -> None:
        """Every answer has so many tokens."""
        word = self.lab.renderer.encode("word", False)[:1]
        steps = [Step(tuple(word)) for _ in range(tokens - 1)]
        script = [*steps, Step(tuple(word), finish=FinishReason.STOP)]
        self.lab.engine.script = [Pause(pause_s), *script] if pause_s else script


@pytest.fixture
def meter(lab):
    return lambda **limits: Metered(lab, **limits)


async def test_a_large_body_with_a_small_prompt_is_served_again_and_again(meter):
    """20 kB that are no prompt cost a key of 1,000 tokens a minute what its prompt has."""
    metered = meter(tokens=1000)
    metered.answers(2)
    for _ in range(5):
        answer = await metered.chat(metadata={"a": "x" * 500}, unknown="y" * 20_000)
        assert answer.status == 200
    used = 5 * answer.json["usage"]["total_tokens"]
    assert metered.level == 1000 - used


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"model": "none", "unknown": "x" * (8 << 19)}, 404),
        ({"temperature": 9, "unknown": "x" * (8 << 19)}, 400),
        ({"unknown": "x" * (9 << 20)}, 413),
    ],
)
async def test_a_body_that_is_refused_unread_locks_nobody_out(meter, fields, status):
    metered = meter(tokens=1000)
    metered.answers(2)
    assert (await metered.chat(**fields)).status == status
    assert metered.level == 1000
    assert (await metered.chat()).status == 200


async def test_a_body_that_is_read_is_estimated_at_no_more_than_a_context(meter):
    """The prompt was tokenized until it was too long."""
    metered = meter(tokens=1000)
    answer = await metered.chat("word " * 50_000)
    assert (answer.status, answer.json["error"]["code"]) == (400, "context_length_exceeded")
    assert metered.level == 1000 - 256


async def test_a_prompt_that_can_never_be_paid_is_a_400_that_says_so(meter):
    metered = meter(tokens=10)
    metered.answers(2)
    answer = await metered.chat("word " * 40)
    assert answer.status == 400
    error = answer.json["error"]
    assert error["code"] == "prompt_exceeds_key_tokens"
    assert "10 tokens per minute" in error["message"]
    assert "at most 20" in error["message"]
    assert not metered.lab.engine.requests


async def test_after_retry_after_a_prompt_of_more_than_a_minute_is_served(meter):
    """The prompt overdraws its minute, by one minute at most, and has to find enough there."""
    metered = meter(tokens=30)
    metered.answers(2)
    large = "word " * 40
    first = await metered.chat(large)
    assert first.status == 200
    assert 30 < first.json["usage"]["prompt_tokens"] <= 60
    assert metered.level >= -30
    refused = await metered.chat(large)
    assert (refused.status, refused.json["error"]["code"]) == (429, "key_tokens_exceeded")
    assert int(refused.headers["retry-after"]) <= 120
    for _ in range(2):  # until it may enter, and until its prompt has room
        metered.now += int(refused.headers["retry-after"])
        refused = await metered.chat(large)
        if refused.status == 200:
            break
    assert refused.status == 200


async def test_an_answer_locks_its_key_for_two_minutes_at_most(meter):
    metered = meter(tokens=30)
    metered.answers(200)
    assert (await metered.chat()).status == 200
    refused = await metered.chat()
    assert refused.status == 429
    assert 60 < int(refused.headers["retry-after"]) <= 64
    metered.now += int(refused.headers["retry-after"])
    assert (await metered.chat()).status == 200


@pytest.mark.parametrize("n", [1, 2])
async def test_requests_that_come_at_once_reserve_what_they_ask_for(meter, n):
    """64 of up to 100 tokens, and a minute of 1,000: about ten are served, not all."""
    metered = meter(tokens=1000)
    metered.answers(100, pause_s=0.05)
    asked = [metered.chat(max_tokens=100, n=n) for _ in range(64)]
    answers = await asyncio.gather(*asked)
    served = [answer for answer in answers if answer.status == 200]
    used = sum(answer.json["usage"]["total_tokens"] for answer in served)
    assert 800 <= used <= 2000
    assert {answer.status for answer in answers} == {200, 429}
    assert metered.level == 1000 - used


async def test_without_max_tokens_an_answer_is_taken_for_as_long_as_those_before(meter):
    metered = meter(tokens=1000)
    metered.answers(200, pause_s=0.05)
    assert (await metered.chat()).status == 200
    metered.now += 60
    answers = await asyncio.gather(*(metered.chat() for _ in range(64)))
    assert 4 <= len([answer for answer in answers if answer.status == 200]) <= 6


async def test_a_client_that_leaves_pays_for_what_it_was_sent(meter):
    """The client pays for its prompt and the tokens until then; the rest of the reservation is
    given back."""
    metered = meter(tokens=1000)
    word = Step(tuple(metered.lab.renderer.encode("word", False)[:1]))
    leave = asyncio.Event()

    def script(_request):
        yield from [word] * 7
        leave.set()
        yield Pause(60)

    metered.lab.engine.script = script
    async with asyncio.timeout(5):
        await metered.lab.post(CHAT, BODY | {"stream": True}, key="user", leave=leave)
    prompt = len(metered.lab.engine.requests[0].prompt)
    assert metered.level == 1000 - prompt - 7


async def test_a_client_that_leaves_before_its_turn_gets_its_reservation_back(meter):
    metered = meter(tokens=1000)
    metered.answers(2)
    admission = metered.lab.gateway.require().admission
    leave = asyncio.Event()
    with admission.enter(Requester("other")) as other:
        await other.admit(admission.bounds.running, 1)
        waiting = asyncio.create_task(metered.lab.post(CHAT, BODY, key="user", leave=leave))
        await wait_until(lambda: admission.queued_tokens)
        assert metered.level < 900
        leave.set()
        await asyncio.wait_for(waiting, 5)
    assert 990 < metered.level <= 1000


async def test_a_key_s_concurrency_counts_answers(meter):
    metered = meter(tokens=100_000, concurrency=1)
    metered.answers(2)
    answer = await metered.chat(n=128)
    assert answer.status == 400
    error = answer.json["error"]
    assert (error["code"], error["param"]) == ("key_concurrency_exceeded", "n")
    assert "needs 128 answers" in error["message"]
    assert not metered.lab.engine.requests
    assert (await metered.chat()).status == 200


def limits(answer) -> dict[str, str]:
    return {
        name.removeprefix("x-ratelimit-"): value
        for name, value in answer.headers.items()
        if name.startswith("x-ratelimit-")
    }


async def test_answers_show_what_is_left_of_a_key_s_limits(meter):
    metered = meter(requests=60, tokens=6000, concurrency=2)
    metered.answers(10)
    answer = await metered.chat()
    left = 6000 - answer.json["usage"]["total_tokens"]
    shown = limits(answer)
    assert {f"x-ratelimit-{name}" for name in shown} <= set(READABLE), "pages may read them"
    assert int(shown.pop("remaining-tokens")) == left
    assert shown.pop("reset-tokens").endswith("ms")
    assert shown == {
        "limit-requests": "60",
        "remaining-requests": "59",
        "reset-requests": "1s",
        "limit-tokens": "6000",
        "limit-concurrency": "2",
        "remaining-concurrency": "2",
    }
    assert limits(await metered.chat(stream=True))["remaining-requests"] == "58"
    listed = await metered.lab.get("/v1/models", key="user")
    assert limits(listed)["remaining-requests"] == "58"


async def test_a_stream_that_begins_shows_its_reservation_and_its_place(meter):
    metered = meter(tokens=6000, concurrency=2)
    metered.answers(10, pause_s=0.01)
    shown = limits(await metered.chat(stream=True, max_tokens=500))
    assert int(shown["remaining-tokens"]) < 5500
    assert shown["remaining-concurrency"] == "1"
    assert metered.level > 5900


@pytest.mark.parametrize(("limit", "reset"), [("requests", "1m0s"), ("tokens", "2m0s")])
async def test_a_429_shows_when_a_key_s_limit_is_whole_again(meter, limit, reset):
    metered = meter(**{limit: 1})
    metered.quota.take()
    metered.quota.pay(90)
    refused = await metered.chat()
    assert refused.status == 429
    shown = limits(refused)
    assert shown == {f"limit-{limit}": "1", f"remaining-{limit}": "0", f"reset-{limit}": reset}


async def test_a_key_without_limits_has_none_to_show(lab):
    lab.says("x")
    lab.admit("user")
    assert not limits(await lab.get("/v1/models", key="user"))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, b"0ms"), (0.02, b"20ms"), (1, b"1s"), (1.5, b"1.5s"), (59.9994, b"59.999s"),
     (60, b"1m0s"), (86.25, b"1m26.25s"), (119.99999, b"2m0s")],
)  # fmt: skip
def test_durations_are_written_as_openai_writes_them(seconds, text):
    assert _format_duration(seconds) == text


async def test_remaining_concurrency_is_never_negative(lab):
    """A reload has lowered the limit below what is in use."""
    lab.admit(make_key("ann", concurrency=3))
    lab.engine.script = [Pause(60)]
    running = asyncio.create_task(lab.complete(n=3, key="ann"))
    await wait_until(lambda: lab.gateway.require().admission.running == 3)
    lab.admit(make_key("ann", concurrency=1))
    answer = await lab.get("/v1/models", key="ann")
    assert answer.headers["x-ratelimit-limit-concurrency"] == "1"
    assert answer.headers["x-ratelimit-remaining-concurrency"] == "0"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
