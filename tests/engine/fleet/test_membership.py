"""Workers that join, leave, come back, and are not let in."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from eaglegate.engine.errors import EngineStartError
from eaglegate.engine.fleet.types import WorkerState
from eaglegate.engine.scripted import DEFAULT_INFO
from eaglegate.engine.steps import read_steps
from tests.engine.fleet.town import until_serving
from tests.engine.supervision.mortal import ask, following, tokens_of, until


async def test_a_fleet_starts_with_the_first_worker_that_does(town):
    place = await town("ab", start=False)
    place["a"].up = False
    info = await place.fleet.start()
    assert info == DEFAULT_INFO
    assert [w.name for w in place.fleet.workers.values() if w.is_serving] == ["b"]
    place["a"].up = True
    await until_serving(place, 2)


async def test_several_versions_of_workers_are_named(town, caplog):
    place = await town("a", start=False)
    place["a"].info = replace(DEFAULT_INFO, details={"version": "0.33.0"})
    await place.fleet.start()
    place.build("b", info=replace(DEFAULT_INFO, details={"version": "0.32.0"}))
    place.build("c")
    await until_serving(place, 3)
    versions = [status.version for status in place.fleet.list_status()]
    assert versions == ["0.33.0", "0.32.0", None]
    sentence = "the workers have several versions: 0.32.0 (b); 0.33.0 (a)"
    assert caplog.messages.count(sentence) == 1


async def test_a_worker_that_joins_takes_requests(town):
    place = await town("a")
    place.build("b")
    await until_serving(place, 2)
    await place.check_answers(20)
    assert place["b"].requests


async def test_a_worker_that_leaves_ends_what_it_runs_and_gets_nothing_new(town):
    place = await town("ab")
    place.close_gates()
    steps = read_steps(place.fleet.generate, request := ask(tokens=30))
    got = [await anext(steps)]
    leaving = place.house_of("r")
    place.streets.names.discard(leaving.name)
    worker = place.fleet.workers[leaving.name]
    await until(lambda: worker.draining)
    assert worker.state is WorkerState.DRAINING
    for house in place.houses.values():
        if house is not leaving:
            house.gate.set()
    await place.check_answers(6)
    assert [r.id for r in leaving.requests] == ["r"]
    leaving.gate.set()
    got += [step async for step in steps]
    assert tokens_of(got) == following(request)
    assert place.served("r") == [leaving.name], "it was not moved"
    await until(lambda: leaving.name not in place.fleet.workers)
    await until(leaving.engines[-1].closed.is_set)


async def test_a_worker_that_is_named_again_while_it_drains_stays(town):
    place = await town("ab")
    place["a"].gate.clear()
    place["b"].gate.clear()
    steps = read_steps(place.fleet.generate, ask(tokens=30))
    await anext(steps)
    leaving = place.house_of("r")
    worker = place.fleet.workers[leaving.name]
    place.streets.names.discard(leaving.name)
    await until(lambda: worker.draining)
    place.streets.names.add(leaving.name)
    await until(lambda: worker.is_serving)
    assert place.fleet.workers[leaving.name] is worker
    await steps.aclose()


async def test_a_source_that_cannot_be_read_changes_nothing(town):
    place = await town("ab")
    place.streets.broken = True
    place.streets.names.clear()
    await asyncio.sleep(0.03)
    assert sorted(place.fleet.workers) == ["a", "b"]
    assert all(worker.is_serving for worker in place.fleet.workers.values())


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"model": "another"}, "its model is another"),
        ({"vocab_size": 7}, "its vocab_size is 7"),
        ({"max_model_len": 100}, "its max_model_len is 100"),
        ({"reports_decode_steps": False}, "its reports_decode_steps is False"),
    ],
)
async def test_a_worker_that_serves_something_else_is_not_let_in(town, other, reason):
    place = await town("a")
    place.build("b", info=replace(DEFAULT_INFO, **other))
    await until(lambda: "b" in place.fleet.workers)
    await until(lambda: reason in place.fleet.workers["b"].reason)
    assert not place.fleet.workers["b"].is_serving


async def test_a_worker_that_comes_back_must_make_a_token_first(town):
    place = await town("ab")
    place["a"].die()
    await until_serving(place, 1)
    place["a"].cuts = ()
    place["a"].up = True
    await until_serving(place, 2)
    probes = [r.id for r in place["a"].engines[-1].requests]
    assert probes == ["eaglegate-probe"]


async def test_running_requests_finish_behind_an_open_circuit(town):
    place = await town("a", poll_s=60)
    place["a"].gate.clear()
    steps = read_steps(place.fleet.generate, request := ask(tokens=30))
    got = [await anext(steps)]
    place.fleet.workers["a"].breaker.open(asyncio.get_running_loop().time())
    place["a"].gate.set()
    got += [step async for step in steps]
    assert tokens_of(got) == following(request)
    assert place.served("r") == ["a"]


async def test_a_fleet_without_a_worker_does_not_start_and_says_why(town):
    place = await town("a", start=False, start_s=0.05)
    place["a"].up = False
    with pytest.raises(EngineStartError, match="a: connection refused"):
        await place.fleet.start()
