"""Stored responses that still run, and the items by which all are found."""

from __future__ import annotations

import time

import orjson

from eaglegate.server.store.base import Retention, StoredResponse
from eaglegate.server.store.sql import SqlResponseStore
from tests.server.store.test_store import item_of, rows


def held(id: str, owner: str = "ann", until: float | None = 2e9) -> StoredResponse:
    response = {"id": id, "status": "in_progress", "output": []}
    return StoredResponse(id, owner, time.time(), response, [{"id": f"in-{id}"}], held_until=until)


def settled(id: str, owner: str = "ann") -> StoredResponse:
    response = {"id": id, "status": "completed", "output": [{"id": f"out-{id}"}]}
    return StoredResponse(id, owner, time.time(), response, [{"id": f"in-{id}"}])


async def test_a_held_response_is_settled_once_and_by_its_owner_alone():
    store = SqlResponseStore("sqlite://")
    for each in (held("r1"), held("r2"), held("r3", "bob"), held("r4", until=None)):
        await store.put(each)
    assert await store.settle(settled("r1", "bob")) is False
    assert await store.settle(settled("r4")) is False, "it was settled before"
    assert await store.settle(settled("gone")) is False
    assert await store.settle(settled("r1")) is True
    assert await store.settle(settled("r1")) is False
    statuses = {
        id: (await store.get(id, owner)).response["status"]
        for id, owner in (("r1", "ann"), ("r2", "ann"), ("r3", "bob"), ("r4", "ann"))
    }
    assert statuses == dict.fromkeys(("r2", "r3", "r4"), "in_progress") | {"r1": "completed"}
    assert (await store.get("r1", "ann")).held_until is None
    assert (await store.get("r2", "ann")).held_until == 2e9
    found = await store.items(["out-r1", "out-r4", "out-gone"], "ann", 1 << 20)
    assert found == {"out-r1": {"id": "out-r1"}}
    await store.put(StoredResponse("r5", "bob", time.time(), {"output": []}, [{"id": "out-r1"}]))
    assert set(await store.items(["out-r1"], "bob", 1 << 20)) == {"out-r1"}, "it is no other's"


async def test_only_those_that_run_are_held_on():
    store = SqlResponseStore("sqlite://")
    for each in (held("r1"), held("r2"), held("r3", until=None)):
        await store.put(each)
    assert await store.hold(["r1", "r3", "gone"], 3e9) == {"r1"}
    until = [(await store.get(id, "ann")).held_until for id in ("r1", "r2", "r3")]
    assert until == [3e9, 2e9, None]


async def test_no_more_responses_are_read_for_items_than_may_be():
    store = SqlResponseStore("sqlite://")
    for at in range(3):
        given = [item_of(100, f"i{at}")]
        await store.put(StoredResponse(f"r{at}", "ann", time.time(), {"output": []}, given))
    assert len(await store.items(["i0", "i1", "i2"], "ann", 100)) == 2
    assert len(await store.items(["i0", "i1", "i2"], "ann", 300)) == 3


async def test_items_stay_known_when_another_key_asks_to_delete_their_response():
    store = SqlResponseStore("sqlite://")
    await store.put(held("r1"))
    assert not await store.delete("r1", "bob")
    assert set(await store.items(["in-r1"], "ann", 1 << 20)) == {"in-r1"}
    assert await store.delete("r1", "ann")
    assert await store.items(["in-r1"], "ann", 1 << 20) == {}
    assert rows(store, "response_items") == 0


async def test_a_sweep_that_fails_is_logged_and_ends_nothing(caplog):
    store = SqlResponseStore("sqlite://")
    with store._engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE eaglegate_responses")
    await store.sweep()
    assert "cannot remove old responses: no such table" in caplog.text


async def test_an_output_is_stored_apart_and_counted():
    """A history reads it without the tools that the response holds."""
    store = SqlResponseStore("sqlite://")
    given, output = [{"asked": 1}], [{"said": 22}]
    response = {"id": "r", "output": output, "tools": ["x" * 1000]}
    await store.put(StoredResponse("r", "ann", time.time(), response, given))
    with store._engine.connect() as connection:
        row = connection.exec_driver_sql("SELECT response, output FROM eaglegate_responses").one()
    assert orjson.loads(row.response) == response | {"output": None}
    assert orjson.loads(row.output) == output
    assert await store.history_bytes("r", "ann") == len(orjson.dumps(given) + orjson.dumps(output))
    assert (await store.get("r", "ann")).response == response
    await store.put(StoredResponse("bare", "ann", time.time(), {"id": "bare"}, []))
    assert (await store.get("bare", "ann")).response == {"id": "bare"}


async def test_any_number_of_old_responses_is_removed():
    store = SqlResponseStore("sqlite://", Retention(seconds=2e9))
    for at in range(1003):
        await store.put(StoredResponse(f"r{at}", "ann", 1e9 + at, {"output": []}, []))
    store._retention = Retention(seconds=2e9, most=1)
    await store.sweep()
    with store._engine.connect() as connection:
        left = connection.exec_driver_sql("SELECT id FROM eaglegate_responses").scalars().all()
    assert left == ["r1002"]
