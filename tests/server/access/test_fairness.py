"""One key's flood is that key's own trouble: simulated with the real admission, many seeds."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from random import Random

import orjson
import pytest

from eaglegate.engine.errors import EngineDead
from eaglegate.engine.scripted import Pause
from eaglegate.server.access.admission import Admission, AdmissionLimits
from eaglegate.server.access.caller import Requester
from eaglegate.server.access.fair_order import Priority
from eaglegate.server.errors import TooManyRequests
from tests.server.access.fair_sim import Load, play
from tests.server.access.test_admission import Client, Clock, settle
from tests.server.conftest import Answer, call, make_key, wait_until

pytestmark = pytest.mark.thorough

VICTIM, FLOOD = Requester("victim"), Requester("flood")
ALL = frozenset({Priority.HIGH, Priority.NORMAL, Priority.LOW})
SEEDS = range(5)


def mixed(random: Random) -> float:
    """A duration: some long answers among short ones, 1 s on average."""
    return random.expovariate(2.0) if random.random() < 0.75 else random.uniform(1.5, 3.5)


async def slowdown(seed: int, flood: Load, places: int = 16, **options: object) -> float:
    """The factor by which the flood raises the median latency of a key that uses an eighth of the
    places."""
    victim = Load(VICTIM, places / 8, mixed, seed=seed)
    bounds, until_s = AdmissionLimits(places, queued=4 * places), 60.0
    (alone,) = await play(bounds, [victim], until_s, **options)
    beside, of_flood = await play(bounds, [victim, flood], until_s, **options)
    assert of_flood.refused > len(of_flood.latencies), "it is a flood"
    assert of_flood.served * flood.sequences > until_s * places / 2, "it is served, too"
    assert beside.refused == 0
    return beside.median / alone.median


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_flood_of_equal_class_costs_less_than_a_fifth(seed):
    flood = Load(FLOOD, 40, mixed, seed=100 + seed)
    assert await slowdown(seed, flood) < 1.20


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_flood_of_a_lower_class_costs_less_than_a_twentieth(seed):
    flood = Load(Requester("flood", Priority.LOW), 40, mixed, seed=100 + seed)
    assert await slowdown(seed, flood, classes=ALL) < 1.05


@pytest.mark.parametrize("seed", SEEDS[:2])
async def test_places_are_shared_by_weight(seed):
    loads = [
        Load(Requester("light", weight=1), 8, mixed, seed=seed),
        Load(Requester("heavy", weight=3), 16, mixed, seed=seed + 50),
        Load(Requester("wide", weight=1), 4, mixed, sequences=2, seed=seed + 90),
    ]
    light, heavy, wide = await play(AdmissionLimits(10, 100), loads, 200)
    assert heavy.served / light.served == pytest.approx(3, rel=0.15)
    assert 2 * wide.served / light.served == pytest.approx(1, rel=0.15)


# -- a full queue


async def full_queue(flood: Requester, queued: int = 8) -> tuple[Admission, list[Client]]:
    admission = Admission(AdmissionLimits(running=1, queued=queued), Clock())
    clients = [Client(admission, flood)]
    await settle()
    clients += [Client(admission, flood) for _ in range(queued)]
    await settle()
    assert admission.queued == queued
    with pytest.raises(TooManyRequests):
        admission.check(flood)
    return admission, clients


def refused(clients: list[Client]) -> list[Client]:
    return [c for c in clients if c.task.done() and c.task.exception() is not None]


async def test_a_full_queue_has_room_for_a_key_below_its_share():
    admission, flood = await full_queue(FLOOD)
    others = []
    for _ in range(4):
        admission.check(VICTIM)
        others.append(Client(admission, VICTIM))
        await settle()
        assert admission.queued == 8
    assert refused(flood) == flood[-4:], "the newest give way"
    assert "fewer waiting" in str(flood[-1].task.exception())
    for key in (VICTIM, FLOOD):
        with pytest.raises(TooManyRequests, match="which is the limit"):
            admission.check(key)
        with pytest.raises(TooManyRequests):
            Client(admission, key)
    assert not refused(others)
    for client in [*flood, *others]:
        await client.leave()
    assert (admission.queued, admission.queued_tokens, admission.num_in_flight) == (0, 0, 0)


async def test_a_request_that_is_still_rendered_gives_way_at_its_turn():
    admission = Admission(AdmissionLimits(running=1, queued=2), Clock())
    with ExitStack() as inside:
        first, second, _ = [
            inside.enter_context(admission.enter(v)) for v in (FLOOD, FLOOD, VICTIM)
        ]
        assert admission.queued == 2
        with pytest.raises(TooManyRequests, match="fewer waiting"):
            await second.admit(1, 10)
        await first.admit(1, 10)
    assert (admission.queued, admission.running, admission.num_in_flight) == (0, 0, 0)


async def test_queued_tokens_are_shared_too():
    admission = Admission(AdmissionLimits(running=1, queued_tokens=1000))
    flood = [Client(admission, FLOOD, tokens=300) for _ in range(4)]
    await settle()
    assert admission.queued_tokens == 900
    big = Client(admission, VICTIM, tokens=1200)
    await settle()
    assert "1200" in str(big.task.exception())
    assert not refused(flood), "nobody gives way to one that does not fit"
    victim = Client(admission, VICTIM, tokens=350)
    await settle()
    assert refused(flood) == flood[-1:]
    assert not victim.task.done()
    assert admission.queued_tokens == 950
    for client in [*flood, victim, big]:
        await client.leave()
    assert admission.queued_tokens == 0


# -- on the wire

BODY = {"model": "demo", "messages": [{"role": "user", "content": "x"}]}
LEVELS = {"low": Priority.LOW, "peer": Priority.LOW, "high": Priority.HIGH}


@pytest.fixture
def busy(lab):
    """One place, two that may wait; answers take as long as the test likes."""
    lab.engine.script = [Pause(60)]
    lab.gateway.pipeline.admission.bounds = AdmissionLimits(running=1, queued=2)
    lab.admit(*(make_key(name, priority=level) for name, level in LEVELS.items()))
    return lab


def ask(lab, key: str) -> asyncio.Task[Answer]:
    return asyncio.ensure_future(lab.chat(key=key))


async def test_a_flood_is_what_a_full_queue_refuses(busy):
    admission = busy.gateway.pipeline.admission
    flood = [ask(busy, "low")]
    await wait_until(lambda: admission.running == 1)
    flood += [ask(busy, "low") for _ in range(2)]
    await wait_until(lambda: admission.queued == 2)
    refused = await ask(busy, "low")
    assert (refused.status, refused.json["error"]["code"]) == (429, "queue_full")
    others = [ask(busy, "peer"), ask(busy, "high")]
    assert [(await task).status for task in flood[1:]] == [429, 429]
    await wait_until(lambda: set(admission.count_by_key()) == {"low", "peer", "high"})
    assert admission.count_by_key()["low"] == {"running": 1, "queued": 0}
    assert not any(task.done() for task in others)
    await busy.engine.aclose()
    await asyncio.gather(*flood, *others)
    assert (admission.running, admission.queued, admission.queued_tokens) == (0, 0, 0)


async def test_the_service_rate_is_learnt_from_served_requests_only(lab):
    lab.says("x")
    rate = lab.gateway.pipeline.admission.rate
    assert rate.wait_s(1, 1) is None
    assert (await lab.chat()).status == 200
    assert 0 < rate.wait_s(1, 1) < 5
    lab.engine.script = [EngineDead("gone")]
    held = rate.wait_s(1, 1)
    assert (await lab.chat()).status == 503
    assert rate.wait_s(1, 1) == held, "one that failed says nothing"


async def test_without_keys_a_client_s_address_stands_for_one(lab):
    lab.engine.script = [Pause(60)]
    admission = lab.gateway.pipeline.admission
    admission.bounds = AdmissionLimits(running=1, queued=2)

    def from_address(address: str, **headers: str) -> asyncio.Task[Answer]:
        asked = call(
            lab.app, "POST", "/v1/chat/completions", orjson.dumps(BODY), client=(address, 1),
            headers=headers,
        )  # fmt: skip
        return asyncio.ensure_future(asked)

    flood = [from_address("2001:db8::1")]
    await wait_until(lambda: admission.running == 1)
    flood += [from_address("2001:db8::1") for _ in range(2)]
    await wait_until(lambda: admission.queued == 2)
    for address in ("2001:db8::1", "2001:db8::ffff:2"):
        refused = await from_address(address, **{"x-forwarded-for": "203.0.113.7"})
        assert refused.status == 429, "a client has a whole /64, and names no address of its own"
    other = from_address("192.0.2.1")
    done, _ = await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result().status for task in done] == [429]
    assert not other.done()
    await lab.engine.aclose()
    await asyncio.gather(*flood, other)
