"""The store of responses."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import time

import orjson
import pytest
from sqlalchemy import event

from eaglegate.server.errors import InvalidRequest, StoreFailed
from eaglegate.server.store import items
from eaglegate.server.store.base import Retention, StoredConversation, StoredResponse, StoreLimits
from eaglegate.server.store.database import StoreError
from eaglegate.server.store.sql import SqlResponseStore

pytestmark = pytest.mark.thorough


def stored(id: str, owner: str = "", age_s: float = 0.0) -> StoredResponse:
    return StoredResponse(
        id, owner, time.time() - age_s, {"id": id, "output": []}, [{"type": "message"}]
    )


async def test_stored_responses_are_returned_to_their_owner_only():
    store = SqlResponseStore("sqlite://")
    await store.put(stored("a", "ann"))
    assert (await store.get("a", "ann")).input == [{"type": "message"}]
    assert await store.get("a", "bob") is None
    assert not await store.delete("a", "bob")
    assert await store.delete("a", "ann")
    assert await store.get("a", "ann") is None


async def test_a_second_put_replaces_the_first():
    store = SqlResponseStore("sqlite://")
    await store.put(stored("a"))
    changed = StoredResponse("a", "", time.time(), {"id": "a", "status": "completed"}, [])
    await store.put(changed)
    assert (await store.get("a", "")).response["status"] == "completed"


async def test_old_and_surplus_responses_are_deleted(tmp_path):
    url = f"sqlite:///{tmp_path}/deep/responses.sqlite"
    store = SqlResponseStore(url)
    for at in range(6):
        await store.put(stored(f"r{at}", age_s=60 - at))
    await store.put(stored("old", age_s=4000))
    await store.aclose()
    store = SqlResponseStore(url, Retention(seconds=3600, most=4))
    left = [id for id in ["old", *(f"r{at}" for at in range(6))] if await store.get(id, "")]
    assert left == ["r2", "r3", "r4", "r5"]


async def test_every_hundredth_response_sweeps():
    store = SqlResponseStore("sqlite://", Retention(most=4))
    for at in range(99):
        await store.put(stored(f"r{at}", age_s=200 - at))
    assert rows(store, "responses") == 99
    await store.put(stored("r99"))
    assert [at for at in range(100) if await store.get(f"r{at}", "")] == [96, 97, 98, 99]


async def test_responses_are_kept_for_thirty_days():
    store, day_s = SqlResponseStore("sqlite://"), 86400
    await store.put(stored("young", age_s=30 * day_s - 10))
    await store.put(stored("old", age_s=30 * day_s + 10))
    assert await store.get("young", "") is not None
    assert await store.get("old", "") is None


async def test_the_file_is_for_its_owner_alone(tmp_path):
    SqlResponseStore(f"sqlite:///{tmp_path}/responses.sqlite")
    assert stat.S_IMODE((tmp_path / "responses.sqlite").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "url", ["nonsense", "sqlite:////proc/no/way.sqlite", "mysql+nope://u:pw@h/d"]
)
def test_an_unreachable_store_is_named_without_its_password(url):
    with pytest.raises(StoreError) as raised:
        SqlResponseStore(url)
    assert "pw" not in str(raised.value)


async def test_many_at_once_lose_nothing():
    """A store in memory has one connection: one call's rollback must not touch another's work."""
    store = SqlResponseStore("sqlite://")
    names = [f"r{at}" for at in range(200)]

    async def both(name):
        await store.put(stored(name))
        assert (await store.get(name, "")).id == name

    await asyncio.gather(*(both(name) for name in names))
    assert all([await store.get(name, "") for name in names])
    await store.aclose()


@pytest.fixture
def full(tmp_path):
    """A store on a full disk: SQLite may use the pages it has, no more."""
    store = SqlResponseStore(f"sqlite:///{tmp_path}/responses.sqlite")
    fill(store)
    return store


def fill(store):
    def limited(connection, _record):
        connection.execute("PRAGMA max_page_count = 1")

    event.listen(store._engine, "connect", limited)
    store._engine.dispose()


async def test_a_full_disk_is_told_without_what_was_to_be_stored(full, caplog):
    secret = StoredResponse(
        "big", "", time.time(), {"id": "big", "output": ["secret" * 10_000]}, []
    )
    with pytest.raises(StoreFailed) as raised:
        await full.put(secret)
    assert "database or disk is full" in caplog.text
    assert "INSERT" not in caplog.text
    assert raised.value.retry_after_s == 5
    assert "secret" not in caplog.text + str(raised.value) + str(raised.value.__cause__)
    assert await full.get("big", "") is None


def test_a_database_of_an_earlier_version_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "responses.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE eaglegate_responses (id VARCHAR(64) PRIMARY KEY)")
        connection.execute("INSERT INTO eaglegate_responses VALUES ('kept')")
    with pytest.raises(StoreError, match=r"eaglegate_responses .* has no owner .*choose another"):
        SqlResponseStore(f"sqlite:///{path}")
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT * FROM eaglegate_responses").fetchall() == [("kept",)]


# -- how much is stored


async def test_the_file_shrinks_when_responses_go(tmp_path):
    path = tmp_path / "responses.sqlite"
    store = SqlResponseStore(f"sqlite:///{path}", Retention(seconds=3600))
    for at in range(20):
        output = [{"text": "x" * 100_000}]
        await store.put(StoredResponse(f"r{at}", "", time.time() - 3000, {"output": output}, []))
    full = path.stat().st_size
    assert full > 2_000_000
    for at in range(10):
        assert await store.delete(f"r{at}", "")
    assert path.stat().st_size < 0.7 * full
    store._retention = Retention(seconds=60)
    await store.sweep()
    assert path.stat().st_size < 0.3 * full
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM eaglegate_responses").scalar() == 0
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"


async def test_expired_items_are_neither_readable_nor_on_the_disk(tmp_path):
    path = tmp_path / "responses.sqlite"
    store = SqlResponseStore(f"sqlite:///{path}", Retention(seconds=3600))
    output = [{"id": "o", "text": "a secret"}]
    await store.put(StoredResponse("r", "", time.time(), {"output": output}, []))
    await store.conversations.put(StoredConversation("c", "", time.time(), {}))
    await store.conversations.append("c", [{"id": "i", "text": "a secret"}])
    store._retention = Retention(seconds=-1)
    store.conversations._retention_s = -1
    assert await store.get("r", "") is None
    assert await store.history_bytes("r", "") is None
    assert await store.conversations.get("c", "") is None
    await store.sweep()
    for table in ("responses", "response_items", "conversations", "conversation_items"):
        assert rows(store, table) == 0


def rows(store, table):
    with store._engine.connect() as connection:
        return connection.exec_driver_sql(f"SELECT count(*) FROM eaglegate_{table}").scalar()


async def test_a_deleted_conversation_leaves_no_items():
    store = SqlResponseStore("sqlite://")
    for id in ("c1", "c2"):
        await store.conversations.put(StoredConversation(id, "ann", time.time(), {}))
        await store.conversations.append(id, [{"id": f"{id}-{at}"} for at in range(3)])
    assert not await store.conversations.delete("c1", "bob")
    assert rows(store, "conversation_items") == 6
    assert await store.conversations.delete("c1", "ann")
    assert await store.conversations.items("c1") == []
    assert len(await store.conversations.items("c2")) == 3
    assert rows(store, "conversation_items") == 3
    await store.conversations.append("c1", [{"id": "late"}])
    assert rows(store, "conversation_items") == 3, "nothing is kept for one that is gone"


async def test_a_key_with_many_responses_pushes_out_its_own():
    store = SqlResponseStore("sqlite://", Retention(most=10))
    for at in range(3):
        await store.put(stored(f"few{at}", "few", age_s=1000 - at))
    for at in range(60):
        await store.put(stored(f"many{at}", "many", age_s=500 - at))
        await store.put(stored(f"more{at}", "more", age_s=500 - at))
    await store.sweep()
    kept = {owner: [at for at in range(60) if await store.get(f"{owner}{at}", owner)]
            for owner in ("few", "many", "more")}  # fmt: skip
    assert kept["few"] == [0, 1, 2]
    assert len(kept["many"]) + len(kept["more"]) == 7
    assert {len(kept["many"]), len(kept["more"])} == {3, 4}
    assert kept["many"][-1] == kept["more"][-1] == 59


def large(id: str, owner: str, num_bytes: int, at: int) -> StoredResponse:
    """A response with its bytes in the tools, which count as much as input and output."""
    response = {"output": [], "tools": ["x" * num_bytes]}
    return StoredResponse(id, owner, time.time() - 1000 + at, response, [])


async def keep(store: SqlResponseStore, owner: str, size: int, num: int = 20) -> list[int]:
    for at in range(num):
        await store.put(large(f"{owner}{at}", owner, size, at))
    return [at for at in range(num) if await store.get(f"{owner}{at}", owner)]


async def test_a_key_s_responses_have_so_many_bytes_and_the_oldest_go():
    store = SqlResponseStore("sqlite://", Retention(owner_bytes=100_000))
    kept = await keep(store, "ann", 10_000)
    assert kept[-1] == 19
    assert kept == list(range(20 - len(kept), 20))
    assert 8 <= len(kept) <= 10
    await keep(store, "bob", 1000, 3)
    assert [at for at in kept if await store.get(f"ann{at}", "ann")] == kept


async def test_all_responses_have_so_many_bytes_and_those_with_few_keep_theirs():
    store = SqlResponseStore("sqlite://", Retention(bytes=100_000))
    few = await keep(store, "few", 5000, 2)
    for owner in ("many", "more"):
        await keep(store, owner, 10_000)
    await store.sweep()
    assert [at for at in few if await store.get(f"few{at}", "few")] == [0, 1]
    left = [at for owner in ("many", "more") for at in range(20)
            if await store.get(f"{owner}{at}", owner)]  # fmt: skip
    assert 6 <= len(left) <= 8
    assert left.count(19) == 2


async def test_bytes_are_swept_as_they_come_however_few_responses_they_are():
    store = SqlResponseStore("sqlite://", Retention(owner_bytes=1 << 20))
    for at in range(8):
        await store.put(large(f"r{at}", "ann", 900_000, at))
        assert rows(store, "responses") == 1


async def test_a_history_is_two_statements_however_long():
    store = SqlResponseStore("sqlite://")
    for at in range(300):
        output = {"output": [{"said": at}], "tools": ["x" * 1000]}
        previous = f"r{at - 1}" if at else None
        await store.put(
            StoredResponse(f"r{at}", "ann", time.time(), output, [{"asked": at}], previous)
        )
    statements = []

    def told(_connection, _cursor, statement, *_):
        statements.append(statement)

    event.listen(store._engine, "before_cursor_execute", told)
    assert await store.history_bytes("r299", "ann") < 300 * 40
    history = await store.history("r299", "ann")
    assert history == [item for at in range(300) for item in ({"asked": at}, {"said": at})]
    assert len(statements) == 2
    assert await store.history_bytes("r299", "bob") is None
    assert await store.history("r299", "bob") == []
    assert await store.delete("r100", "ann")
    assert await store.history_bytes("r299", "ann") is None, "one in the middle is missing"
    await store.put(StoredResponse("r100", "bob", time.time(), {"output": []}, [], "r99"))
    assert await store.history_bytes("r299", "ann") is None, "and must not be another key's"


async def test_a_history_is_at_most_so_long(monkeypatch):
    monkeypatch.setattr("eaglegate.server.store.sql.LONGEST_HISTORY", 5)
    store = SqlResponseStore("sqlite://")
    for at in range(8):
        previous = f"r{at - 1}" if at else None
        await store.put(StoredResponse(f"r{at}", "", time.time(), {"output": []}, [], previous))
    assert await store.history_bytes("r5", "") is not None
    assert await store.history_bytes("r6", "") is None


SMALL = StoreLimits(items=5, bytes=1000, conversations=3, owner_bytes=1500)


async def test_a_conversation_has_so_many_items_and_bytes():
    talks = SqlResponseStore("sqlite://", limits=SMALL).conversations
    await talks.put(StoredConversation("c", "ann", time.time(), {}))
    await talks.append("c", [{"id": str(at)} for at in range(4)])
    two = [{"id": "5"}, {"id": "6"}]
    for refused in (talks.append("c", two), talks.check("c", two, "items")):
        with pytest.raises(InvalidRequest, match=r"6 in .* it may have 5 in 1000"):
            await refused
    assert len(await talks.items("c")) == 4, "nothing of what was refused is kept"
    assert await talks.remove("c", "0")
    with pytest.raises(InvalidRequest, match="bytes"):
        await talks.append("c", [{"id": "x" * 1000}], "input")
    await talks.append("c", two)
    await talks.append_answer("c", [{"id": "answer"}])
    assert len(await talks.items("c")) == 6, "an answer that was begun is still added"
    with pytest.raises(InvalidRequest):
        await talks.append("c", [{"id": "7"}])
    with pytest.raises(InvalidRequest):
        await talks.append_answer("c", [{"id": f"a{at}"} for at in range(5)])
    sizes = sum(len(orjson.dumps(item)) for item in await talks.items("c"))
    assert await talks.num_bytes("c") == sizes


async def test_a_key_has_so_many_conversations_and_bytes_whatever_others_have():
    talks = SqlResponseStore("sqlite://", limits=SMALL).conversations
    for owner in ("ann", "bob"):
        for at in range(3):
            await talks.put(StoredConversation(f"{owner}{at}", owner, time.time(), {}))
        with pytest.raises(InvalidRequest, match="3 conversations") as refused:
            await talks.put(StoredConversation(f"{owner}3", owner, time.time(), {}))
        assert refused.value.code == "too_many_conversations"
        await talks.put(StoredConversation(f"{owner}0", owner, time.time(), {"a": "b"}))
    big = [{"id": "x" * 800}]
    await talks.append("ann0", big)
    with pytest.raises(InvalidRequest, match="exceed their limit of 1500"):
        await talks.append("ann1", big)
    with pytest.raises(InvalidRequest, match="exceed their limit of 1500"):
        await talks.check("ann1", big, "conversation")
    await talks.append("bob0", big)
    assert await talks.delete("ann0", "ann")
    await talks.append("ann1", big)


def item_of(num_bytes: int, id: str = "i") -> dict[str, str]:
    """An item that is stored in so many bytes."""
    empty = len(orjson.dumps({"id": id, "text": ""}))
    return {"id": id, "text": "x" * (num_bytes - empty)}


async def test_a_conversation_may_be_filled_to_the_last_byte():
    talks = SqlResponseStore("sqlite://", limits=SMALL).conversations
    await talks.put(StoredConversation("c", "ann", time.time(), {}))
    for given in ([item_of(1001)], [item_of(500), item_of(501)]):
        with pytest.raises(InvalidRequest) as refused:
            await talks.check("c", given, "items")
        assert refused.value.code == "conversation_too_large"
    await talks.check("c", [item_of(1000)], "items")
    await talks.append("c", [item_of(1000)])
    assert await talks.num_bytes("c") == 1000


async def test_a_key_may_fill_its_conversations_to_the_last_byte():
    talks = SqlResponseStore("sqlite://", limits=SMALL).conversations
    for at in range(2):
        await talks.put(StoredConversation(f"c{at}", "ann", time.time(), {}))
    await talks.append("c0", [item_of(1000)])
    await talks.check("c1", [item_of(500)], "items")
    await talks.append("c1", [item_of(500)])
    with pytest.raises(InvalidRequest, match="exceed their limit of 1500"):
        await talks.append("c1", [item_of(60)])
    await talks.append_answer("c1", [item_of(60)])
    assert await talks.num_bytes("c1") == 560, "an answer that was begun is still added"


async def test_a_conversation_that_is_gone_holds_nothing_and_refuses_nothing():
    talks = SqlResponseStore("sqlite://", limits=SMALL).conversations
    await talks.check("gone", [item_of(2000)], "items")
    assert await talks.num_bytes("gone") == 0
    assert await talks.items("gone") == []


async def test_items_are_found_by_their_ids_however_many_and_by_their_owner_alone():
    store = SqlResponseStore("sqlite://")
    for id, owner in (("c1", "ann"), ("c2", "ann"), ("c3", "bob")):
        await store.conversations.put(StoredConversation(id, owner, time.time(), {}))
    ids = [f"i{at}" for at in range(1002)]
    await store.conversations.append("c1", [{"id": id} for id in ids[:600]])
    await store.conversations.append("c2", [{"id": id} for id in ids[600:]])
    await store.conversations.append("c3", [{"id": "secret"}])
    found = await store.items([*ids, "secret"], "ann", 1 << 20)
    assert found == {id: {"id": id} for id in ids}
    assert await store.items(["i0", "secret"], "bob", 1 << 20) == {"secret": {"id": "secret"}}


async def test_one_item_that_another_gateway_has_just_put_there_loses_no_other():
    store = SqlResponseStore("sqlite://")
    await store.put(StoredResponse("r1", "ann", time.time(), {"output": []}, [{"id": "a"}]))
    rows = [{"owner": "ann", "response": "r2", "created": time.time(), "id": id} for id in "ab"]
    with store._engine.begin() as connection:
        items._insert(connection, rows)
        assert items.find_responses(connection, ["a", "b"], "ann") == {"r1": ["a"], "r2": ["b"]}
