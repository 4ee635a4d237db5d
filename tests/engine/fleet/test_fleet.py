"""Workers die, fail, come and go; streams go on: each token once, and the account exact."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglegate.engine.errors import (
    EngineDead,
    EngineFailed,
    EngineOverloaded,
    RequestQuarantined,
    RequestRejected,
    WorkerMisconfigured,
)
from eaglegate.engine.fleet.types import BreakerSettings, WorkerState
from eaglegate.engine.scripted import DEFAULT_INFO
from eaglegate.engine.speculation.accounts.accounting import Account
from eaglegate.engine.steps import read_steps
from eaglegate.engine.supervision.policy import RecoveryOutcome
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import Constraint, SpeculationInfo
from tests.engine.fleet.town import PATIENCE, build_town, until_serving
from tests.engine.supervision.mortal import ask, collect, following, tokens_of, until


def account(got):
    account = Account()
    for step in got:
        account.add(step)
    return account.totals


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.integers(2, 5), st.integers(1, 12))
def test_streams_survive_whichever_worker_dies_when(seed, workers, streams):
    chance = random.Random(seed)

    async def run():
        # Chance alone may end many lives in a row before a replay has caught up.
        place = await build_town(
            "abcde"[:workers], replace(PATIENCE, continuations=10**6, losses=10**6)
        )
        for house in place.houses.values():
            isolation = place.fleet.workers[house.name].isolation
            # Two such deaths of one that made no step would rightly make it a suspect.
            house.doom = lambda _, step, i=isolation: not i._pending and chance.random() < 0.03

        async def revive():
            while True:
                await asyncio.sleep(0.004)
                for house in place.houses.values():
                    house.up = True

        reviving = asyncio.create_task(revive())
        requests = [
            ask(
                f"r{i}",
                tokens=chance.randint(1, 60),
                prompt=(i, i + 1, i + 2),
                constraint=Constraint("json_object") if i % 4 == 0 else None,
            )
            for i in range(streams)
        ]
        async with asyncio.timeout(30):
            got = await asyncio.gather(*(collect(place.fleet, r) for r in requests))
        reviving.cancel()
        for request, steps in zip(requests, got, strict=True):
            assert tokens_of(steps) == following(request)
            assert account(steps).imbalance == 0
        loads = [(status.outstanding, status.running) for status in place.fleet.list_status()]
        assert loads == [(0, 0)] * workers
        await place.fleet.aclose()

    asyncio.run(run())


async def test_nobody_is_asked_twice_when_a_worker_cannot_be_reached(town):
    place = await town("ab", poll_s=60)
    place["a"].die()
    await place.check_answers(8)
    worker = place.fleet.workers["a"]
    assert worker.counts.retried > 0
    await until(lambda: not worker.is_serving)
    assert not place.notes.outcomes, "nothing was lost"


async def test_a_busy_worker_is_passed_over_without_harm(town):
    place = await town("ab")
    place["a"].error = lambda request, step: EngineOverloaded("full")
    await place.check_answers(20)
    assert place.fleet.workers["a"].counts.retried > 3
    assert place.fleet.workers["a"].is_serving
    assert place.fleet.workers["a"].breaker.num_opened == 0


async def test_when_all_are_busy_the_client_is_told(town):
    place = await town("ab")
    place.set_all(error=lambda request, step: EngineOverloaded("full"))
    with pytest.raises(EngineOverloaded):
        await collect(place.fleet, ask())
    assert sorted(place.served("r")) == ["a", "b"]


async def test_a_stream_that_must_go_on_waits_for_a_busy_worker(town):
    place = await town("ab")
    first = next(iter(place.houses))
    died = []

    def error(request, step):
        return EngineOverloaded("full") if len(place.served("r")) < 5 and died else None

    def doom(request, step):
        if step == 2 and not died:
            died.append(place.house_of("r").name)
            return True
        return False

    place.set_all(error=error, doom=doom)
    assert tokens_of(await collect(place.fleet, ask())) == following(ask())
    assert len(place.served("r")) == 5, first


async def test_a_rejection_by_two_workers_is_the_clients(town):
    place = await town("abc")
    place.set_all(error=lambda request, step: RequestRejected("too hot"))
    with pytest.raises(RequestRejected):
        await collect(place.fleet, ask())
    assert len(place.served("r")) == 2
    assert all(worker.is_serving for worker in place.fleet.workers.values())


async def test_failures_of_one_worker_open_its_circuit_and_the_other_serves(town):
    place = await town("ab", poll_s=60, breaker=BreakerSettings(backoff_s=60))
    place["a"].error = lambda request, step: EngineFailed("500")
    await place.check_answers(12)
    worker = place.fleet.workers["a"]
    assert worker.breaker.num_opened == 1
    assert len(place["a"].requests) == 3


async def test_a_request_that_fails_everywhere_ends_and_opens_nothing(town):
    place = await town("abcd")
    place.set_all(
        error=lambda request, step: EngineFailed("bad luck") if request.id == "r" else None
    )
    with pytest.raises(EngineFailed, match="bad luck"):
        await collect(place.fleet, ask())
    assert len(place.served("r")) == 2
    assert all(worker.is_serving for worker in place.fleet.workers.values())


@pytest.mark.parametrize("houses", ["a", "ab"])
async def test_failures_that_a_request_causes_count_against_no_worker(town, houses):
    """A grammar that no engine can match: others keep their workers."""
    place = await town(houses)
    place.set_all(error=lambda request, step: EngineFailed("500") if request.id[0] == "x" else None)
    for number in range(8):
        with pytest.raises(EngineFailed):
            await collect(place.fleet, ask(f"x{number}"))
    assert all(worker.breaker.num_opened == 0 for worker in place.fleet.workers.values())
    request = ask("good")
    assert tokens_of(await collect(place.fleet, request)) == following(request)


async def test_a_worker_that_refuses_the_gateway_is_left_though_it_is_the_only_one(town):
    place = await town("a", poll_s=60, breaker=BreakerSettings(backoff_s=60))
    place["a"].error = lambda request, step: WorkerMisconfigured("401")
    for number in range(3):
        with pytest.raises(EngineFailed):
            await collect(place.fleet, ask(f"r{number}"))
    assert place.fleet.workers["a"].breaker.num_opened == 1


async def test_a_request_that_kills_two_workers_is_refused_and_the_third_lives(town):
    place = await town("abc")
    place.set_all(doom=lambda request, step: request.id == "poison")
    others = [ask(f"r{i}", tokens=40, prompt=(i, 2, 3)) for i in range(6)]
    got = await asyncio.gather(
        *(collect(place.fleet, r) for r in [ask("poison"), *others]), return_exceptions=True
    )
    assert isinstance(got[0], RequestQuarantined)
    for request, steps in zip(others, got[1:], strict=True):
        assert tokens_of(steps) == following(request)
    assert [house.up for house in place.houses.values()].count(False) == 2


async def test_cut_connections_of_living_workers_are_no_crime(town):
    place = await town("ab")
    cut = Counter()

    def error(request, step):
        cut[request.id] += 1
        return EngineDead("connection reset") if cut[request.id] <= 3 else None

    place.set_all(error=error)
    assert tokens_of(await collect(place.fleet, ask())) == following(ask())
    assert place.notes.outcomes == {RecoveryOutcome.RERUN: 3}


async def test_streams_of_a_worker_that_hangs_go_on_elsewhere(town):
    place = await town("ab")
    request = ask(tokens=30)
    steps = read_steps(place.fleet.generate, request)
    place.close_gates()
    got = [await anext(steps)]
    hanging = place.house_of("r")
    hanging.silent = True
    for house in place.houses.values():
        if house is not hanging:
            house.gate.set()
    got += [step async for step in steps]
    assert tokens_of(got) == following(request)
    assert place.fleet.workers[hanging.name].breaker.num_opened == 1


async def test_a_worker_that_answers_but_makes_no_steps_hangs_too(town):
    place = await town("ab", timeouts=replace(PATIENCE, stall_s=0.03))
    steps = read_steps(place.fleet.generate, ask(tokens=30))
    place.close_gates()
    got = [await anext(steps)]
    hanging = place.house_of("r")
    next(h for h in place.houses.values() if h is not hanging).gate.set()
    got += [step async for step in steps]
    assert tokens_of(got) == following(ask(tokens=30))


async def test_requests_wait_while_no_worker_serves_and_go_on_with_the_first(town):
    place = await town("ab")
    for house in place.houses.values():
        house.die()
    await until_serving(place, 0)
    health = await place.fleet.health()
    assert not health.live
    assert health.reason == "None of 2 workers serves."
    waiting = asyncio.create_task(collect(place.fleet, ask()))
    place["b"].up = True
    assert tokens_of(await waiting) == following(ask())
    assert (await place.fleet.health()).live


async def test_requests_wait_so_long_and_no_longer(town):
    place = await town("a", timeouts=replace(PATIENCE, wait_s=0.05))
    place["a"].die()
    with pytest.raises(EngineDead, match=r"No worker came back in time\. No worker serves"):
        await collect(place.fleet, ask())


async def test_clients_that_leave_abort_their_request_and_weigh_nothing(town):
    place = await town("ab")
    place.close_gates()
    steps = read_steps(place.fleet.generate, ask(tokens=30))
    await anext(steps)
    house = place.house_of("r")
    await steps.aclose()
    assert house.engines[-1].aborted == ["r"]
    assert [status.outstanding for status in place.fleet.list_status()] == [0, 0]


async def test_closing_ends_what_waits_and_what_runs(town):
    place = await town("a")
    place["a"].gate.clear()
    running = asyncio.create_task(collect(place.fleet, ask("running")))
    await until(lambda: place["a"].running)
    place["a"].up = False
    await place.fleet.aclose()
    with pytest.raises(EngineDead):
        await running
    with pytest.raises(EngineDead, match="closed"):
        await collect(place.fleet, ask("later"))


async def test_status_tells_of_every_worker(town):
    place = await town("ab", count_s=0.0)
    place["a"].counted = Totals(verify_steps=4, proposed=12, accepted=6)
    place["b"].die()
    await until_serving(place, 1)
    await collect(place.fleet, ask(affinity="s"))
    await until(lambda: place.fleet.workers["a"].counted)
    a, b = place.fleet.list_status()
    assert (a.name, a.state, a.reason) == ("a", WorkerState.SERVING, "")
    assert (a.requests["session"], a.tokens, a.running, a.outstanding) == (1, 12, 0, 0)
    assert a.counted.acceptance_length == 2.5
    assert (b.name, b.reason, b.openings) == ("b", "connection refused", 1)
    assert b.state in (WorkerState.OPEN, WorkerState.PROBING)


async def test_a_bound_on_depth_holds_for_requests_to_come(town):
    place = await town("a", start=False)
    speculation = SpeculationInfo("eagle3", 3)
    place["a"].info = replace(DEFAULT_INFO, speculation=speculation)
    await place.fleet.start()
    assert (await place.fleet.set_depth(2)).bound == 2
    await collect(place.fleet, ask("free"))
    await collect(place.fleet, ask("less", depth=1))
    assert [request.depth for request in place["a"].requests] == [2, 1]
    fixed = await town("a", start=False)
    fixed["a"].info = replace(DEFAULT_INFO, speculation=replace(speculation, per_request=False))
    await fixed.fleet.start()
    with pytest.raises(ValueError, match="choose their depth"):
        await fixed.fleet.set_depth(1)
