"""The store's database file: where it is, who may read it, and how it grows and shrinks."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import inspect
from sqlalchemy.exc import StatementError

from eaglegate.server.errors import StoreFailed
from eaglegate.server.store import database
from eaglegate.server.store.base import StoredResponse
from eaglegate.server.store.database import (
    StoreError,
    connect,
    default_url,
    enable_shrinking,
    hide_password,
    hide_secrets,
    sqlite_directory,
)
from eaglegate.server.store.sql import SqlResponseStore

pytestmark = pytest.mark.thorough


def pragma(path: Path, name: str) -> int:
    with sqlite3.connect(path) as connection:
        return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def test_by_default_the_file_is_in_the_state_folder_of_this_user(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".local" / "state" / "eaglegate"
    assert default_url() == f"sqlite:///{folder}/responses.sqlite"
    assert sqlite_directory(default_url()) == folder


@pytest.mark.parametrize(
    "url", ["nonsense", "sqlite://", "sqlite:///:memory:", "postgresql://host/base"]
)
def test_a_database_that_is_no_file_has_no_folder(url):
    assert sqlite_directory(url) is None


def test_a_url_is_shown_without_its_password():
    assert hide_password("postgresql://me:secret@host/base") == "postgresql://me:***@host/base"
    assert hide_password("no url: secret") == "the URL given"
    assert hide_password("postgresql://me:x@host:secret/base") == "the URL given"
    assert hide_password("postgresql://me@host/base?password=secret&sslmode=require") == (
        "postgresql://me@host/base?..."
    )
    assert hide_password("mssql://?odbc_connect=DRIVER%3Dx%3BPWD%3Dsecret") == "mssql://?..."


@pytest.mark.parametrize("name", ["{}/there/r.sqlite", "file:{}/there/r.sqlite"])
def test_the_file_of_a_store_is_made_where_its_url_says_for_its_owner(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{name.format(tmp_path)}?uri=true"
    connect(url).connect().close()
    assert sqlite_directory(url) == tmp_path / "there"
    assert (tmp_path / "there" / "r.sqlite").stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_store_that_may_only_be_read_is_not_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError):
        SqlResponseStore(f"sqlite:///file:{tmp_path}/none/r.sqlite?uri=true&mode=ro")
    assert list(tmp_path.iterdir()) == []


def test_a_driver_s_words_are_kept_and_its_secrets_are_not():
    url = "postgresql://me:se%2Fcret@host/base?sslpassword=hush1&timeout=10"
    said = 'bad value "hush1" in "user=me password=se/cret", se%2Fcret, after 10 s'
    assert hide_secrets(said, url) == 'bad value "***" in "user=me password=***", ***, after 10 s'


async def test_the_log_of_a_database_that_fails_shows_no_secret(tmp_path, caplog):
    store = SqlResponseStore(f"sqlite:///{tmp_path}/r.sqlite?isolation_level=DEFERRED")

    def fail():
        raise OSError("cannot reach host as DEFERRED")

    with pytest.raises(StoreFailed):
        await store._run("read", fail)
    assert "responses cannot be read: cannot reach host as ***" in caplog.text


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///{}/r.sqlite"])
def test_an_error_repeats_nothing_of_what_was_stored(url, tmp_path):
    """Prompts are parameters of statements, and messages of errors go to the log."""
    engine = connect(url.format(tmp_path))
    with engine.connect() as connection, pytest.raises(StatementError) as raised:
        connection.exec_driver_sql("INSERT INTO nowhere VALUES (?)", ("a secret",))
    assert "secret" not in str(raised.value)


def test_a_database_elsewhere_is_no_file(monkeypatch, tmp_path):
    """The other side may close idle connections, so each is tried before it is used."""
    asked = {}
    monkeypatch.setattr(database, "create_engine", lambda url, **given: asked.update(given))
    monkeypatch.chdir(tmp_path)
    connect("postgresql://me:secret@host/base")
    assert asked == {"pool_pre_ping": True, "hide_parameters": True}
    assert not list(tmp_path.iterdir())


def test_a_database_in_memory_is_one_for_all_threads():
    engine = connect("sqlite://")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (x)")
    with ThreadPoolExecutor(1) as other:
        assert other.submit(lambda: inspect(engine).get_table_names()).result() == ["t"]


def test_a_file_in_a_folder_that_is_there(tmp_path):
    url = f"sqlite:///{tmp_path}/new/deep/r.sqlite"
    for _ in range(2):
        connect(url).dispose()
    assert (tmp_path / "new" / "deep" / "r.sqlite").stat().st_mode & 0o777 == 0o600


# -- a file that shrinks


def test_a_new_file_can_shrink_from_its_first_page(tmp_path):
    engine = connect(f"sqlite:///{tmp_path}/r.sqlite")
    enable_shrinking(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (x)")
    assert pragma(tmp_path / "r.sqlite", "auto_vacuum") == 1


async def test_a_store_in_a_file_that_is_locked_opens_all_the_same(tmp_path):
    """Two gateways share a file: what one is writing delays the other and ends neither."""
    url = f"sqlite:///{tmp_path}/r.sqlite"
    first, second = SqlResponseStore(url), SqlResponseStore(url)
    stored = [StoredResponse(f"r{at}", "ann", time.time(), {"id": at}, []) for at in range(40)]
    await asyncio.gather(*(store.put(one) for store in (first, second) for one in stored))
    assert (await second.get("r39", "ann")).response == {"id": 39}
