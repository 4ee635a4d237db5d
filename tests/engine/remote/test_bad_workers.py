"""A worker's bad answers are its own failure: bounded, and never an exception of another kind."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace

import pytest

from eaglegate.engine.base import SupportsCounters
from eaglegate.engine.errors import EngineDead, EngineError, EngineFailed, EngineOverloaded
from eaglegate.engine.fleet.discovery import DiscoveryError, FileSource, StaticSource
from eaglegate.engine.fleet.fleet import Fleet
from eaglegate.engine.remote.connection import WorkerConnection
from eaglegate.engine.remote.engine import RemoteEngine
from eaglegate.engine.remote.probe import PROBE
from eaglegate.engine.remote.protocols import parse_upstream, remote_engine
from eaglegate.engine.remote.text import TextEngine
from eaglegate.engine.remote.upstream import ConnectionSettings
from eaglegate.engine.steps import read_steps
from eaglegate.engine.types import Sampling
from tests.engine.fleet.town import PATIENCE, RULES
from tests.engine.remote import bad_workers
from tests.engine.remote.bad_workers import ANSWERS, HTML, TELLING, BadWorker, listening, says
from tests.engine.remote.stand_in_worker import MODEL, StandIn, chunk, end, serving
from tests.engine.remote.test_remote_engine import request
from tests.engine.supervision.mortal import ask, collect, following, tokens_of, until

pytestmark = pytest.mark.thorough

QUICK = ConnectionSettings(connect_s=1.0, first_token_s=0.6, idle_s=0.3, start_s=0.3)
PATIENT_S = 5.0
MUCH = 32 << 20
"""Bytes that no bad worker gets rid of: bounds are far below, socket buffers are not."""


@asynccontextmanager
async def engine_at(url: str, kind=RemoteEngine, access: ConnectionSettings = QUICK):
    """An engine that has not met its worker, so that only its answers count."""
    engine = kind(parse_upstream(url), MODEL, access)
    engine._connection = WorkerConnection(parse_upstream(url), access)
    engine._name, engine._dialect = "demo", _Dialect()
    try:
        yield engine
    finally:
        await engine.aclose()


class _Dialect:
    takes_tokens, extras = True, {}


async def take(engine, **fields) -> EngineError | None:
    """The engine error that ended one request, if any; other exceptions pass through."""
    sampling = Sampling(max_tokens=30, temperature=0.0, **fields)
    try:
        async with aclosing(read_steps(engine.generate, request(sampling=sampling))) as steps:
            async for _ in steps:
                pass
    except EngineError as error:
        return error
    return None


@pytest.mark.parametrize("kind", [RemoteEngine, TextEngine])
@pytest.mark.parametrize("name", ANSWERS)
async def test_a_bad_answer_is_the_workers_failure(name, kind):
    talks = {"/": ANSWERS[name], "/health": says(b"")}
    async with listening(BadWorker(talks)) as worker, engine_at(worker.url, kind) as engine:
        async with asyncio.timeout(PATIENT_S):
            error = await take(engine)
        if error is not None:
            expected = (EngineDead, EngineFailed, EngineOverloaded)
            assert isinstance(error, expected), "never a client's mistake"
            assert len(str(error)) < 1000
            assert "10.1.2.3" not in str(error)
        assert error is not None or kind is TextEngine
        await until(lambda: not worker.open or name in ("silent", "half closed"))
        assert worker.sent < MUCH


@pytest.mark.parametrize("name", ["html", "20 MB", "endless", "slow bytes", "a list", "compressed"])
async def test_a_bad_whole_answer_is_the_workers_failure(name):
    talks = {"/": TELLING[name], "/health": says(b"")}
    async with listening(BadWorker(talks)) as worker, engine_at(worker.url) as engine:
        async with asyncio.timeout(PATIENT_S):
            assert isinstance(await take(engine, prompt_logprobs=1), EngineDead)
        assert worker.sent < MUCH


@pytest.mark.parametrize("kind", [RemoteEngine, TextEngine])
@pytest.mark.parametrize("name", TELLING)
async def test_a_bad_probe_is_a_failed_one(name, kind):
    talks = {"/": TELLING[name], "/health": says(b"")}
    async with listening(BadWorker(talks)) as worker:
        engine = kind(parse_upstream(worker.url), MODEL, QUICK)
        with pytest.raises((EngineError, TimeoutError)):
            async with asyncio.timeout(1.5):
                await engine.start()
        await engine.aclose()


@pytest.mark.parametrize("name", TELLING)
async def test_bad_counters_and_a_bad_health_are_errors_of_the_engine(name):
    bad = listening(BadWorker({"/": TELLING[name]}))
    async with bad as worker, engine_at(worker.url) as engine:
        assert engine.capability(SupportsCounters) is engine
        for question in (engine.read_counters, engine.health):
            with suppress(EngineError, TimeoutError):
                async with asyncio.timeout(0.5):
                    await question()


@pytest.mark.parametrize("value", ["NaN", "Inf", "1e999", "x", "-1e400"])
async def test_counters_that_are_no_numbers(value):
    text = f"vllm:spec_decode_num_drafts_total {value}\n".encode()
    bad = listening(BadWorker({"/": says(text)}))
    async with bad as worker, engine_at(worker.url) as engine:
        with pytest.raises(EngineError):
            await engine.read_counters()


async def test_nothing_is_read_of_a_stream_that_was_left():
    event = b"data: " + b'{"choices": [{"token_ids": [1], "finish_reason": null}]}' + b"\n\n"
    flood = bad_workers.repeats(event, content_type="text/event-stream")
    bad = listening(BadWorker({"/": flood, "/health": says(b"")}))
    async with bad as worker, engine_at(worker.url) as engine:
        asked = request(sampling=Sampling(max_tokens=10**6, temperature=0.0))
        async with aclosing(read_steps(engine.generate, asked)) as steps:
            await anext(steps)
        async with asyncio.timeout(PATIENT_S):
            await until(lambda: not worker.open)


FLOODS = [name for name in ANSWERS if name.endswith("without an end")]


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_is_not_read_to_the_end_of_patience(name):
    bad = listening(BadWorker({"/": ANSWERS[name], "/health": says(b"")}))
    patient = replace(QUICK, first_token_s=300.0, idle_s=60.0)
    async with bad as worker, engine_at(worker.url, access=patient) as engine:
        async with asyncio.timeout(PATIENT_S):
            assert isinstance(await take(engine), EngineDead)
            await until(lambda: not worker.open)
        assert worker.sent < MUCH


async def test_a_client_that_leaves_ends_a_stream_without_events():
    trickle = bad_workers.repeats(b": x\n\n", 0.001, content_type="text/event-stream")
    bad = listening(BadWorker({"/": trickle, "/health": says(b"")}))
    patient = replace(QUICK, first_token_s=300.0, idle_s=60.0)
    async with bad as worker, engine_at(worker.url, access=patient) as engine:
        taking = asyncio.create_task(take(engine))
        await until(lambda: worker.sent > 100)
        taking.cancel()
        await until(lambda: not worker.open)


async def test_an_account_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("eaglegate.engine.remote.engine.ACCOUNT_S", 0.1)
    worker = StandIn(lambda _: [chunk(1), chunk(2, finish="length"), 30.0, end()])
    async with serving(worker.app()) as url, engine_at(url, access=replace(QUICK, idle_s=60)) as e:
        async with asyncio.timeout(PATIENT_S):
            assert await take(e) is None
            await worker.idle.wait()


class Worker(StandIn):
    """Continues any prompt greedily, four tokens a chunk."""

    def __init__(self) -> None:
        super().__init__(script=self.play, tokens=MODEL.codec.encode(PROBE, False))

    def play(self, body):
        most = body["sampling_params"]["max_tokens"]
        tokens = following(ask(tokens=most, prompt=tuple(body["token_ids"])))
        pieces = [tokens[:1], *(tokens[at : at + 4] for at in range(1, most, 4))]
        for at, piece in enumerate(pieces):
            yield 0.002
            yield chunk(*piece, finish="length" if at == len(pieces) - 1 else None)
        yield end(*((3, len(piece) - 1) for piece in pieces[1:]))


@pytest.mark.parametrize("seed", range(4))
async def test_streams_survive_a_worker_that_turns_bad(seed):
    """The worker passes its probe, then answers requests with rubbish: no client notices."""
    chance = random.Random(seed)
    good, turned = Worker(), Worker()
    async with serving(good.app()) as good_url, serving(turned.app()) as turned_url:
        bad = BadWorker({"/": says(HTML), "/health": says(b"")})
        async with listening(bad):
            at = {"good": good_url, "bad": turned_url}
            rules = replace(RULES, ask_s=0.5, poll_s=0.05)
            fleet = Fleet(
                lambda name: remote_engine(parse_upstream(at[name]), MODEL, QUICK),
                [StaticSource(at)],
                PATIENCE,
                rules,
            )
            await fleet.start()
            await _soon(lambda: all(worker.is_serving for worker in fleet.workers.values()))
            link = fleet.workers["bad"].session
            link.engine._connection = WorkerConnection(parse_upstream(bad.url), QUICK)
            for name in chance.sample(sorted(ANSWERS), 5):
                bad.talks["/"] = ANSWERS[name]
                asked = [ask(f"{name}-{n}", tokens=20, prompt=(n, 2, 3)) for n in range(6)]
                async with asyncio.timeout(20):
                    got = await asyncio.gather(*(collect(fleet, one) for one in asked))
                for one, steps in zip(asked, got, strict=True):
                    wrong_tokens = name in ("goes on behind its end", "two choices")
                    assert wrong_tokens or tokens_of(steps)[-1:] == following(one)[-1:], name
            await fleet.aclose()


async def _soon(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_credentials_of_an_address_are_used_and_shown_nowhere():
    async with listening(BadWorker({"/": says(b"", 401)})) as worker:
        url = worker.url.replace("//", "//user:p%40ss@")
        upstream = parse_upstream(f"text+{url}")
        assert str(upstream) == f"text+{worker.url}"
        assert "ss" not in repr(upstream).replace("address", "")
        async with engine_at(url) as engine:
            error = await take(engine)
        assert worker.authorizations[0] == "basic dxnlcjpwqhnz"
    assert "user" not in str(error)
    assert upstream.prefix == "text+"


@pytest.mark.parametrize(
    "given", ["http://u:secret@", "http://u:se/secret@h:1", "u:secret@h", "ftp://u:secret@h"]
)
def test_a_wrong_address_is_quoted_without_its_credentials(given):
    with pytest.raises(ValueError, match="HOST:PORT") as caught:
        parse_upstream(given)
    assert "secret" not in str(caught.value)


def test_errors_of_discovery_hold_no_credentials(tmp_path):
    file = tmp_path / "workers"
    for content in ("http://u:secret@h:1?x=1", "[http://u:secret@h"):
        file.write_text(content)
        with pytest.raises(DiscoveryError) as caught:
            FileSource(file, lambda given: str(parse_upstream(given))).read_now()
        assert "secret" not in str(caught.value)
