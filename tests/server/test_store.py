"""The store of responses."""

from __future__ import annotations

import asyncio
import stat
import time

import pytest
from sqlalchemy import event

from server.errors import StoreFailed
from server.keys import load
from server.store import Stored, StoredConversation
from server.store.sql import Retention, SqlStore, StoreError


def stored(id: str, owner: str = "", age_s: float = 0.0) -> Stored:
    return Stored(id, owner, time.time() - age_s, {"id": id, "output": []}, [{"type": "message"}])


async def test_what_is_put_comes_back_to_its_owner_only():
    store = SqlStore("sqlite://")
    await store.put(stored("a", "ann"))
    assert (await store.get("a", "ann")).input == [{"type": "message"}]
    assert await store.get("a", "bob") is None
    assert not await store.delete("a", "bob")
    assert await store.delete("a", "ann")
    assert await store.get("a", "ann") is None


async def test_a_second_put_replaces_the_first():
    store = SqlStore("sqlite://")
    await store.put(stored("a"))
    changed = Stored("a", "", time.time(), {"id": "a", "status": "completed"}, [])
    await store.put(changed)
    assert (await store.get("a", "")).response["status"] == "completed"


async def test_what_is_too_old_or_too_much_goes(tmp_path):
    url = f"sqlite:///{tmp_path}/deep/responses.sqlite"
    store = SqlStore(url)
    for at in range(6):
        await store.put(stored(f"r{at}", age_s=60 - at))
    await store.put(stored("old", age_s=4000))
    await store.aclose()
    store = SqlStore(url, Retention(seconds=3600, most=4))
    left = [id for id in ["old", *(f"r{at}" for at in range(6))] if await store.get(id, "")]
    assert left == ["r2", "r3", "r4", "r5"]


async def test_the_file_is_for_its_owner_alone(tmp_path):
    SqlStore(f"sqlite:///{tmp_path}/responses.sqlite")
    assert stat.S_IMODE((tmp_path / "responses.sqlite").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "url", ["nonsense", "sqlite:////proc/no/way.sqlite", "mysql+nope://u:pw@h/d"]
)
def test_one_that_cannot_be_opened_says_so_without_its_password(url):
    with pytest.raises(StoreError) as raised:
        SqlStore(url)
    assert "pw" not in str(raised.value)


async def test_many_at_once_lose_nothing():
    """In memory there is one connection: what one call rolls back must not be another's."""
    store = SqlStore("sqlite://")
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
    store = SqlStore(f"sqlite:///{tmp_path}/responses.sqlite")
    fill(store)
    return store


def fill(store):
    def limited(connection, _record):
        connection.execute("PRAGMA max_page_count = 1")

    event.listen(store._engine, "connect", limited)
    store._engine.dispose()


async def test_a_full_disk_is_told_without_what_was_to_be_stored(full, caplog):
    secret = Stored("big", "", time.time(), {"id": "big", "output": ["secret" * 10_000]}, [])
    with pytest.raises(StoreFailed) as raised:
        await full.put(secret)
    assert "database or disk is full" in caplog.text
    assert "secret" not in caplog.text + str(raised.value) + str(raised.value.__cause__)
    assert await full.get("big", "") is None


async def test_what_was_stored_survives_a_full_disk(tmp_path):
    store = SqlStore(f"sqlite:///{tmp_path}/responses.sqlite")
    await store.put(stored("before"))
    fill(store)
    with pytest.raises(StoreFailed):
        await store.put(Stored("big", "", time.time(), {"output": ["x" * 100_000]}, []))
    assert (await store.get("before", "")).id == "before"
    assert await store.delete("before", "")
    await store.aclose()
    again = SqlStore(f"sqlite:///{tmp_path}/responses.sqlite")
    await again.put(stored("after"))
    assert (await again.get("after", "")).id == "after"
    with again._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"


async def test_rows_of_keys_known_by_their_position_belong_to_nobody(tmp_path):
    """An earlier version called the n-th key of the command line ``key-n``."""
    url = f"sqlite:///{tmp_path}/responses.sqlite"
    store = SqlStore(url)
    for owner in ("agents", "key-1", "admin", ""):
        await store.put(stored(f"r-{owner}", owner))
        await store.conversations.put(StoredConversation(f"c-{owner}", owner, 1.0, {}))
    await store.aclose()
    for _ in range(2):
        store = SqlStore(url)
        assert await store.get("r-agents", "key:agents") is not None
        assert await store.conversations.get("c-agents", "key:agents") is not None
        assert await store.get("r-", "") is not None
        for name in ("key-1", "admin"):
            for owner in (f"key:{name}", *(key.owner for key in load(None, ["x" * 20]).keys)):
                assert await store.get(f"r-{name}", owner) is None
                assert await store.conversations.get(f"c-{name}", owner) is None
        await store.aclose()
