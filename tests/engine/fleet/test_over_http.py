"""A fleet of remote engines: real sockets, workers made of scripts."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from eaglegate.engine.fleet.discovery import FileSource
from eaglegate.engine.fleet.fleet import Fleet
from eaglegate.engine.remote.probe import PROBE
from eaglegate.engine.remote.protocols import parse_upstream, remote_engine
from eaglegate.engine.remote.upstream import ConnectionSettings
from tests.engine.fleet.town import PATIENCE, RULES
from tests.engine.remote.stand_in_worker import MODEL, StandIn, chunk, end, serving
from tests.engine.supervision.mortal import ask, collect, following, tokens_of, until

pytestmark = pytest.mark.thorough


ACCESS = ConnectionSettings(connect_s=2.0, first_token_s=5.0, idle_s=2.0, start_s=4.0)
HTTP_RULES = replace(RULES, poll_s=0.05, ask_s=1.0, admit_s=5.0)


class Worker(StandIn):
    """Continues any prompt greedily, four tokens a chunk; breaks after ``lives_for`` chunks."""

    def __init__(self) -> None:
        super().__init__(script=self.play, tokens=MODEL.codec.encode(PROBE, False))
        self.lives_for: int | None = None

    def play(self, body):
        most = body["sampling_params"]["max_tokens"]
        request = ask(tokens=most, prompt=tuple(body["token_ids"]))
        tokens = following(request)
        pieces = [tokens[:1], *(tokens[at : at + 4] for at in range(1, most, 4))]
        for at, piece in enumerate(pieces):
            if self.lives_for is not None and at >= self.lives_for:
                self.healthy = False
                self.status = 500
                raise ConnectionResetError
            yield 0.002
            yield chunk(*piece, finish="length" if at == len(pieces) - 1 else None)
        yield end(*((3, len(piece) - 1) for piece in pieces[1:]))


@asynccontextmanager
async def fleet_of(tmp_path, *workers: Worker):
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving(worker.app())) for worker in workers]
        file = tmp_path / "workers"
        file.write_text("\n".join(urls))
        fleet = Fleet(
            lambda url: remote_engine(parse_upstream(url), MODEL, ACCESS),
            [FileSource(file, lambda url: str(parse_upstream(url)), interval_s=0.02)],
            PATIENCE,
            HTTP_RULES,
        )
        await fleet.start()
        stack.push_async_callback(fleet.aclose)
        await until(lambda: all(w.is_serving for w in fleet.workers.values()))
        yield fleet, file, urls


def requests(number: int, tokens: int = 80) -> list:
    return [ask(f"r{at}", tokens=tokens, prompt=(at, 2, 3)) for at in range(number)]


@pytest.mark.parametrize("lives_for", [0, 1, 3])
async def test_streams_survive_a_worker_that_breaks(tmp_path, lives_for):
    workers = Worker(), Worker(), Worker()
    async with fleet_of(tmp_path, *workers) as (fleet, _, urls):
        workers[0].lives_for = lives_for
        asked = requests(9)
        got = await asyncio.gather(*(collect(fleet, request) for request in asked))
        for request, steps in zip(asked, got, strict=True):
            assert tokens_of(steps) == following(request)
            assert steps[-1].finish is not None
        await until(lambda: not fleet.workers[urls[0]].is_serving)
        tally = fleet.workers[urls[0]].counts
        assert (tally.continued if lives_for else tally.retried) > 0


async def test_a_worker_that_refuses_what_others_run_is_wrong(tmp_path):
    workers = Worker(), Worker()
    async with fleet_of(tmp_path, *workers) as (fleet, _, urls):
        workers[0].status = 400
        for request in requests(12, tokens=9):
            assert tokens_of(await collect(fleet, request)) == following(request)
        await until(lambda: not fleet.workers[urls[0]].is_serving)
        assert any("another worker ran" in loss.reason for loss in fleet.losses)
        assert fleet.workers[urls[1]].is_serving


async def test_the_file_brings_and_takes_workers(tmp_path):
    workers = Worker(), Worker()
    async with fleet_of(tmp_path, *workers) as (fleet, file, urls):
        file.write_text(urls[0])
        await until(lambda: list(fleet.workers) == [urls[0]])
        file.write_text("\n".join(urls) + "\n")
        await until(lambda: urls[1] in fleet.workers and fleet.workers[urls[1]].is_serving)
        before = len(workers[1].bodies)
        for request in requests(12, tokens=5):
            await collect(fleet, request)
        assert len(workers[1].bodies) > before
