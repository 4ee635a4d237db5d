"""Audits of real workers: damage of every kind is found, and a held worker's streams complete."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from eaglegate.engine.fleet.routing import find_owner
from eaglegate.engine.fleet.types import WorkerState
from eaglegate.engine.types import Sampling
from eaglegate.features.audit.files import EvidenceFolder
from tests.audited_workers import GREEDY, KINDS, SAMPLED, AuditedFleet, audited_fleet
from tests.faulty_worker import KINDS as FAULTS
from tests.faulty_worker import FaultyWorker
from tests.workers import MODEL, vllm_worker

pytestmark = pytest.mark.slow

MOST = 20
"""Audited answers within which damage must be found."""
QWEN = KINDS[2]
LONG = structs.replace(SAMPLED, max_tokens=128, ignore_eos=True)
"""The demo is so sure of its words that 48 tokens hardly tell its temperature."""


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Two workers, for all kinds of damage. EAGLEGATE_WORKERS names two that run already."""
    if running := os.environ.get("EAGLEGATE_WORKERS"):
        yield running.split()
        return
    folder = tmp_path_factory.mktemp("workers")
    with ExitStack() as stack:
        workers = [stack.enter_context(vllm_worker(folder / f"{name}.log")) for name in "ab"]
        for worker in workers:
            worker.until_healthy()
        yield [worker.url for worker in workers]


@asynccontextmanager
async def faulty_fleet(
    urls: list[str], folder: Path, *, holds: bool = False
) -> AsyncIterator[tuple[AuditedFleet, FaultyWorker, str, str]]:
    """A fleet whose first worker is behind a faulty proxy, with a session that goes there."""
    proxy = FaultyWorker(urls[0])
    write = EvidenceFolder(folder, "demo")
    async with (
        proxy.serving() as url,
        audited_fleet(MODEL, [url, urls[1]], holds=holds, write=write) as fleet,
    ):
        names = [*fleet.fleet.workers]
        session = next(str(n) for n in range(100) if find_owner(str(n), names) == url)
        yield fleet, proxy, url, session


def read_first_file(folder: Path) -> Any:
    return json.loads(min(folder.iterdir()).read_text())


async def count_until_found(fleet: AuditedFleet, sampling: Sampling, session: str) -> int:
    """Answers until an audit finds a violation; more than ``MOST`` if it finds none."""
    fleet.records.clear()
    for number in range(1, MOST + 1):
        await fleet.answer(sampling, affinity=session)
        await fleet.settle(number)
        if fleet.records and fleet.records[-1].outcome == "violated":
            return number
    return MOST + 1


async def test_damage_of_every_kind_is_found(urls: list[str], tmp_path: Path) -> None:
    found: dict[tuple[str, str], int] = {}
    async with faulty_fleet(urls, tmp_path) as (fleet, proxy, url, session):
        for name, sampling in {"greedy": GREEDY, "sampled": SAMPLED, "qwen": QWEN}.items():
            proxy.fault = ""
            await fleet.answer(sampling, affinity=session)  # tokens of a neighbour
            await fleet.settle(fleet.settled)
            for fault in FAULTS:
                proxy.fault = fault
                is_sure = sampling is SAMPLED and fault == "temperature ignored"
                wanted = LONG if is_sure else sampling
                found[fault, name] = await count_until_found(fleet, wanted, session)
                record = fleet.records[-1]
                assert (record.worker, record.scorer) == (url, urls[1])
                fleet.auditor.release(url)
        assert max(found.values()) <= MOST, found
        assert not fleet.drops
        replay = await fleet.auditor.replay(read_first_file(tmp_path))
        assert replay["stored"]["outcome"] == "violated"
        assert replay[f"again by {urls[1]}"]["outcome"] == "lossless"


async def test_sound_answers_give_no_alarm(urls: list[str]) -> None:
    async with audited_fleet(MODEL, urls) as fleet:
        for sampling in KINDS * 3:
            await asyncio.gather(*(fleet.answer(sampling) for _ in range(2)))
            await fleet.settle(fleet.number)
        assert Counter(record.outcome.value for record in fleet.records) == {
            "lossless": 6 * len(KINDS)
        }
        assert all(record.worker != record.scorer for record in fleet.records)


async def test_streams_of_a_held_worker_complete(urls: list[str], tmp_path: Path) -> None:
    async with faulty_fleet(urls, tmp_path, holds=True) as (fleet, proxy, url, session):
        long = Sampling(max_tokens=200, temperature=0.0, ignore_eos=True)
        fleet.number = 0
        stream = asyncio.create_task(fleet.answer(long, affinity=session))
        await asyncio.sleep(0.2)
        proxy.fault = "replaced"
        assert await count_until_found(fleet, GREEDY, session) <= 2
        held = [worker.state for worker in fleet.fleet.list_status() if worker.name == url]
        assert held == [WorkerState.HELD]
        proxy.fault = ""
        tokens = await stream
        fleet.number = 0
        assert tokens == await fleet.answer(long, affinity=session)
        await fleet.settle(fleet.settled + 1)
        assert fleet.fleet.find_makers(fleet.records[-1].request) == (urls[1],)
