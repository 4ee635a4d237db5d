"""Sessions against a server on a real port."""

from __future__ import annotations

from itertools import pairwise

import pytest

from eaglegate.lab.measure.datasets import Session, Turn
from eaglegate.lab.measure.load import (
    LoadClient,
    Target,
    draw_arrivals,
    draw_bursts,
    read_arrivals,
    run_closed,
    run_open,
)

pytestmark = pytest.mark.thorough


def ask(*texts, **body):
    return tuple(Turn(({"role": "user", "content": text},), body) for text in texts)


async def run(url, sessions, concurrency=2, **target):
    results = []
    async with LoadClient.open(Target(url, **target)) as client:
        await run_closed(client, sessions, concurrency, results.append)
    return results


async def test_a_request_is_streamed_with_its_usage(server, url):
    (result,) = await run(url, [Session("s", ask("hi"), "chat")], defaults={"temperature": 0})
    assert server.bodies[0] == {
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }
    assert (result.ok, result.output_tokens, result.category) == (True, 8, "chat")
    assert result.text == "w0 w1 w2 w3 w4 w5 w6 w7 "
    assert len(result.gaps) == 3


async def test_the_answer_goes_into_the_next_turn(server, url):
    await run(url, [Session("s", ask("one", "two"))])
    assert [m["role"] for m in server.bodies[1]["messages"]] == ["user", "assistant", "user"]
    assert server.bodies[1]["messages"][1]["content"] == "w0 w1 w2 w3 w4 w5 w6 w7 "


async def test_a_recorded_answer_takes_its_place(server, url):
    recorded = Turn(
        ({"role": "assistant", "content": "said before"}, {"role": "user", "content": "two"})
    )
    await run(url, [Session("s", (*ask("one"), recorded))])
    said = [message["content"] for message in server.bodies[1]["messages"]]
    assert said == ["one", "said before", "two"]


async def test_fields_win_over_bodies_and_defaults_do_not(server, url):
    session = Session("s", ask("hi", temperature=0.5, seed=1))
    await run(url, [session], defaults={"temperature": 0, "max_tokens": 9}, fields={"seed": 2})
    body = server.bodies[0]
    assert (body["temperature"], body["seed"], body["max_tokens"]) == (0.5, 2, 9)


async def test_a_client_that_left_leaves_again(server, url):
    turn = Turn(({"role": "user", "content": "hi"},), {"return_token_ids": True}, leave_after=4)
    server.step_s = 0.05
    (result,) = await run(url, [Session("s", (turn,))])
    assert result.left
    assert 4 <= result.output_tokens < 8


async def test_the_open_loop_keeps_its_times(server, url):
    server.wait_s = 0.3
    results = []
    sessions = [Session(f"s{at}", ask("hi")) for at in range(4)]
    async with LoadClient.open(Target(url)) as client:
        await run_open(client, sessions, [0.0, 0.05, 0.1, 0.15], results.append)
    starts = sorted(result.started for result in results)
    assert starts[3] < 0.3, "the fourth begins although none has ended"
    assert all(start >= at for start, at in zip(starts, (0, 0.05, 0.1, 0.15), strict=True))


def test_poisson_arrivals_end_when_the_rate_says():
    times = draw_arrivals(400, rate=20, burstiness=1.0, seed=1)
    assert times == sorted(times)
    assert times[-1] == pytest.approx(20)
    gaps = [after - before for before, after in pairwise(times)]
    spread = (sum((gap - 0.05) ** 2 for gap in gaps) / len(gaps)) ** 0.5 / 0.05
    assert 0.85 < spread < 1.15, "as wide as its mean"


def test_bursts_and_traces():
    assert draw_bursts(5, rate=2, size=2) == [0, 0, 1, 1, 2]
    sessions = [Session(str(at), (Turn(arrival_s=at),)) for at in (10.0, 11.0, 14.0)]
    assert read_arrivals(sessions, speed=2) == [0, 0.5, 2]


async def test_no_gateway_captures_a_measurement(server, url):
    await run(url, [Session("s", ask("hi"), "chat")], headers={"x-session-id": "a"})
    assert server.captures == ["off"]
