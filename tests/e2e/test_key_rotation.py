"""Keys rotated by SIGHUP under a serving gateway: its process, its port and its store are real."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from eaglegate.server.access.keys import hash_key
from tests.conftest import RunningGateway, serving
from tests.faults import streams
from tests.workers import MODEL, scripted_worker

pytestmark = pytest.mark.slow

OLD, NEW, OTHER = (f"eg-{name}-secret-of-32-bytes-or-more" for name in ("old", "new", "other"))


def write_keys(file: Path, **keys: str) -> None:
    entries = [f"- name: {name}\n  sha256: {hash_key(key).hex()}\n" for name, key in keys.items()]
    file.write_text("keys:\n" + "".join(entries))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    write_keys(file, team=OLD, other=OTHER)
    return file


@pytest.fixture(scope="module")
def gateway(keys: Path) -> Iterator[RunningGateway]:
    with scripted_worker(keys.parent / "worker.log") as worker:
        arguments = (MODEL, "--served-model-name=demo", f"--upstream={worker.url}")
        arguments += (
            f"--api-key-file={keys}",
            f"--responses-store=sqlite:///{keys.parent}/store.db",
        )
        with serving(keys.parent / "serve.log", arguments) as running:
            yield running


def connect(gateway: RunningGateway, key: str) -> httpx.Client:
    return httpx.Client(base_url=gateway.url, headers={"authorization": f"Bearer {key}"})


def until(status: int, gateway: RunningGateway, key: str) -> None:
    deadline = time.monotonic() + 20
    while (found := connect(gateway, key).get("/v1/models").status_code) != status:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_a_rotated_key_keeps_what_it_owns_and_its_stream(gateway, keys):
    with connect(gateway, OLD) as old, connect(gateway, OTHER) as other:
        asked = {"model": "demo", "input": "one two", "max_output_tokens": 16}
        stored = old.post("/v1/responses", json=asked).json()["id"]
        assert other.get(f"/v1/responses/{stored}").status_code == 404

        async def rotate() -> streams.Heard:
            headers = {"authorization": f"Bearer {OLD}"}
            async with httpx.AsyncClient(base_url=gateway.url, headers=headers) as client:
                began = asyncio.Event()
                body = streams.request("chat", 1, 2000)
                hearing = asyncio.create_task(streams.hear(client, body, began))
                await began.wait()
                write_keys(keys, team=NEW, other=OTHER)
                gateway.process.send_signal(signal.SIGHUP)
                await asyncio.to_thread(until, 401, gateway, OLD)
                assert not hearing.done(), "the old key's stream goes on"
                return await hearing

        assert asyncio.run(rotate()).whole
        assert old.get(f"/v1/responses/{stored}").status_code == 401
        assert other.get(f"/v1/responses/{stored}").status_code == 404
    with connect(gateway, NEW) as new:
        assert new.get(f"/v1/responses/{stored}").json()["id"] == stored


def test_a_broken_file_leaves_the_keys_as_they_are(gateway, keys):
    before = keys.read_text()
    log = keys.parent / "serve.log"
    keys.write_text("keys:\n- name: team\n  sha256: not a hash\n")
    gateway.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 20
    while "settings were not reloaded" not in (said := log.read_text()):
        assert time.monotonic() < deadline, said[-2000:]
        time.sleep(0.05)
    keys.write_text(before)
    until(200, gateway, NEW)
    until(401, gateway, OLD)
