"""Files and names that say who the workers are."""

from __future__ import annotations

import asyncio
import os
import socket
from urllib.parse import urlsplit

import pytest

from eaglegate.engine.fleet.discovery import DiscoveryError, DnsSource, FileSource, StaticSource


def check(address: str) -> str:
    if urlsplit(address).scheme not in ("http", "https"):
        raise ValueError(f"no address: {address}")
    return address


@pytest.fixture
def path(tmp_path):
    return tmp_path / "workers"


async def read(path, text: str) -> set[str]:
    path.write_text(text)
    return set(await FileSource(path, check).read())


BOTH = {"http://10.0.0.5:8000", "http://10.0.0.6:8000"}


@pytest.mark.parametrize(
    "text",
    [
        "http://10.0.0.5:8000\nhttp://10.0.0.6:8000\n",
        "# ours\n\nhttp://10.0.0.5:8000  # the new one\n  http://10.0.0.6:8000",
    ],
)
async def test_every_way_to_write_them(path, text):
    assert await read(path, text) == BOTH


@pytest.mark.parametrize("text", ["", "# none yet\n"])
async def test_there_may_be_none(path, text):
    assert await read(path, text) == set()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://a:1\nftp://b:2", "no address: ftp://b:2"),
        ("hello there", "no address: hello there"),
    ],
)
async def test_errors_name_the_invalid_line(path, text, said):
    with pytest.raises(DiscoveryError, match=said):
        await read(path, text)


async def test_a_missing_file_is_no_empty_file(path):
    with pytest.raises(DiscoveryError, match="cannot be read"):
        await FileSource(path, check).read()


async def test_a_file_is_read_again_when_it_has_changed(path):
    path.write_text("http://a:1\n")
    source = FileSource(path, check)
    assert await source.read() == {"http://a:1"}
    path.write_text("http://a:1\nhttp://b:2\n")
    assert await source.read() == {"http://a:1", "http://b:2"}
    path.write_text("http://c:1\nhttp://d:2\n")
    os.utime(path, ns=(1, 2))
    assert await source.read() == {"http://c:1", "http://d:2"}, "of the same size"


async def test_a_file_that_was_replaced_is_read_again(path, tmp_path):
    path.symlink_to(tmp_path / "one")
    (tmp_path / "one").write_text("http://a:1\n")
    source = FileSource(path, check)
    await source.read()
    (tmp_path / "two").write_text("http://b:22\n")
    path.unlink()
    path.symlink_to(tmp_path / "two")
    assert await source.read() == {"http://b:22"}


async def test_a_list_is_what_it_is():
    assert await StaticSource(["http://a:1", "http://a:1"]).read() == {"http://a:1"}


@pytest.mark.parametrize(
    ("name", "scheme"),
    [("workers.example:8000", "http"), ("https://workers.example:8000", "https")],
)
async def test_every_address_of_a_name_is_a_worker(monkeypatch, name, scheme):
    asked = []

    async def getaddrinfo(host, port, **options):
        asked.append((host, port))
        v4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.5", port))
        v6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::7", port, 0, 0))
        return [v4, v6, v4]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    found = await DnsSource(name).read()
    assert found == {f"{scheme}://10.0.0.5:8000", f"{scheme}://[fd00::7]:8000"}
    assert asked == [("workers.example", 8000)]


async def test_localhost_is_resolved_for_real():
    assert "http://127.0.0.1:9" in await DnsSource("localhost:9").read()


async def test_a_name_that_is_not_known_is_an_error(monkeypatch):
    async def getaddrinfo(host, port, **options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    with pytest.raises(DiscoveryError, match=r"workers\.example:8000 cannot be resolved"):
        await DnsSource("workers.example:8000").read()


@pytest.mark.parametrize("name", ["workers", "http://workers", ":8000", "workers:http"])
def test_a_name_needs_a_host_and_a_port(name):
    with pytest.raises(ValueError):
        DnsSource(name)
