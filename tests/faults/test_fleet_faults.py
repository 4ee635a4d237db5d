"""Workers behind one gateway come and go, unnoticed by streams: two of vLLM, or three scripted."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.conftest import ADMIN, RunningGateway, serving
from tests.faults import streams
from tests.workers import GATEWAY, WorkerProcess, read_metric, scripted_worker, vllm_worker

pytestmark = pytest.mark.slow

BODIES = streams.requests(12, 160)
SOON_S = 45.0


@dataclass
class Fleet:
    """``workers`` by address; the gateway serves from those in its file."""

    gateway: RunningGateway
    workers: dict[str, WorkerProcess]
    file: Path
    real: bool

    @property
    def living(self) -> list[str]:
        return [url for url, worker in self.workers.items() if worker.process.poll() is None]

    def name(self, *addresses: str) -> None:
        self.file.write_text("\n".join(addresses) + "\n")

    def given(self, address: str, **labels: str) -> float:
        """Requests a worker was given."""
        name = "eaglegate_worker_requests_total"
        return self.gateway.metric(name, worker=address, **labels) or 0.0

    def until_serving(self, *addresses: str) -> float:
        """Seconds until these serve and no others."""
        began, wanted = time.monotonic(), set(addresses)
        while time.monotonic() < began + SOON_S:
            status = httpx.get(f"{self.gateway.operator}/admin/status").json()
            if {w["name"] for w in status["workers"] if w["state"] == "serving"} == wanted:
                return time.monotonic() - began
            time.sleep(0.05)
        raise AssertionError(status["workers"])

    def hear(self, bodies: list[dict]) -> list[streams.Heard]:
        return asyncio.run(streams.hear_all(self.gateway.url, bodies))


@pytest.fixture(scope="module", params=["scripted", "vllm"])
def fleet(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    worker, number = (scripted_worker, 3) if request.param == "scripted" else (vllm_worker, 2)
    with ExitStack() as running:
        logs = [folder / f"worker-{at}.log" for at in range(number)]
        started = [running.enter_context(worker(log)) for log in logs]
        for one in started:
            one.until_healthy()
        workers = {worker.url: worker for worker in started}
        (folder / "workers").write_text("\n".join(list(workers)[:2]) + "\n")
        arguments = (*GATEWAY, *ADMIN, "--upstream-file", str(folder / "workers"))
        gateway = running.enter_context(serving(folder / "serve.log", arguments))
        made = Fleet(gateway, workers, folder / "workers", request.param == "vllm")
        made.until_serving(*list(workers)[:2])
        yield made


@pytest.fixture(scope="module")
def undisturbed(request, fleet) -> list[streams.Heard]:
    """Undisturbed answers: of an engine in the gateway's own process, or of scripted workers before
    any dies."""
    gateway = request.getfixturevalue("demo_gateway") if fleet.real else fleet.gateway
    heard = asyncio.run(streams.hear_all(gateway.url, BODIES))
    assert all(one.whole for one in heard)
    return heard


def test_two_workers_say_what_one_engine_says_and_share_the_work(fleet, undisturbed):
    heard = fleet.hear(BODIES)
    assert all(one.whole for one in heard), [one.error for one in heard]
    assert [one.said for one in heard] == [one.said for one in undisturbed]
    first, second, *_ = fleet.workers
    assert min(fleet.given(first), fleet.given(second)) >= 2


@pytest.fixture
def scripted(fleet) -> Fleet:
    """A fleet whose third worker is not named yet."""
    if fleet.real:
        pytest.skip("the same gateway, whatever works")
    return fleet


def test_a_session_stays_with_its_worker(scripted):
    fleet = scripted
    first, second, _ = fleet.workers
    before = {url: fleet.given(url) for url in (first, second)}
    body = {"model": "demo", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
    for turn in range(6):
        body["messages"] = [*body["messages"], {"role": "user", "content": f"and {turn}?"}]
        url = f"{fleet.gateway.url}/v1/chat/completions"
        assert httpx.post(url, json=body, headers={"x-session-id": "s"}).status_code == 200
    given = sorted(fleet.given(url) - before[url] for url in before)
    assert given == [0, 6]


def test_a_worker_added_to_the_file_takes_requests_in_seconds(scripted):
    fleet = scripted
    fleet.name(*fleet.workers)
    seconds = fleet.until_serving(*fleet.workers)
    third = list(fleet.workers)[2]
    assert all(one.whole for one in fleet.hear(BODIES))
    assert fleet.given(third) > 0
    print(f"\na worker serves {seconds:.1f} s after it was added")


def test_streams_survive_the_death_of_a_worker(fleet, undisturbed):
    for _ in range(10):
        victim, disturbed = asyncio.run(_hear_a_death(fleet))
        if victim:
            break
    assert victim, "no worker was found running a request in 10 rounds"
    assert [one.error for one in disturbed] == [None] * len(BODIES)
    assert all(one.whole for one in disturbed)
    assert [one.said for one in disturbed] == [one.said for one in undisturbed]
    assert fleet.gateway.metric("eaglegate_worker_moved_requests_total", worker=victim) > 0
    rest = fleet.living
    fleet.until_serving(*rest)
    fleet.name(*rest)


async def _hear_a_death(fleet: Fleet) -> tuple[str | None, list[streams.Heard]]:
    """Every stream, and the worker that was killed while it ran some; none if they were faster.

    The page of a worker that has just done its work may still say that it runs.
    """
    hearing = asyncio.create_task(streams.hear_all(fleet.gateway.url, BODIES))
    async with httpx.AsyncClient(verify=False) as client:
        while not hearing.done():
            for url in fleet.living:
                page = (await client.get(f"{url}/metrics")).text
                if not read_metric(page, "vllm:num_requests_running"):
                    continue
                status = (await client.get(f"{fleet.gateway.operator}/admin/status")).json()
                if any(w["running"] for w in status["workers"] if w["name"] == url):
                    fleet.workers[url].kill()
                    return url, await hearing
    return None, await hearing


def test_a_worker_taken_out_of_the_file_ends_what_it_runs(scripted):
    fleet = scripted
    leaving, staying = fleet.living

    async def heard():
        began = asyncio.Event()
        hearing = asyncio.create_task(streams.hear_all(fleet.gateway.url, BODIES, began))
        await began.wait()
        fleet.name(staying)
        return await hearing

    fleet.until_serving(leaving, staying)
    assert all(one.whole for one in asyncio.run(heard()))
    fleet.until_serving(staying)
    assert httpx.get(f"{leaving}/health").status_code == 200
