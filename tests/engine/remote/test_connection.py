"""Rules of the connection to a worker that hold whatever the worker sends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from eaglegate.engine.errors import EngineOverloaded
from eaglegate.engine.remote import connection
from tests.engine.remote.bad_workers import BadWorker, listening, repeats, says
from tests.engine.remote.test_stream_limits import EVENT, LIMITS, PATIENT, connected, read_all

DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("kind", ["text/event-stream", "Text/Event-Stream; charset=utf-8", None])
async def test_an_event_stream_is_read(kind):
    headers = {} if kind is None else {"content_type": kind}
    bad = listening(BadWorker({"/": says(EVENT + DONE, **headers)}))
    async with bad as worker, connected(worker.url) as link:
        assert await read_all(link) is None


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "text/event-streams", ""])
async def test_other_types_of_content_are_no_stream(kind):
    bad = listening(BadWorker({"/": says(EVENT + DONE, content_type=kind)}))
    async with bad as worker, connected(worker.url) as link:
        assert "a stream must be text/event-stream" in str(await read_all(link))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7),
        ("0", 0),
        ("3600", 3600),
        ("3601", 3600),
        ("999999999", 3600),
        ("1000000000", None),
        ("-1", None),
        ("1.5", None),
        ("\u0663", None),
        ("Thu, 01 Jan 2099 00:00:00 GMT", None),
    ],
)
async def test_a_worker_asks_for_an_hour_at_most(header, seconds):
    busy = says(b"{}", 429, retry_after=header)
    bad = listening(BadWorker({"/": busy, "/health": says(b"{}")}))
    async with bad as worker, connected(worker.url) as link:
        with pytest.raises(EngineOverloaded) as refusal:
            async for _ in link.stream("/generate", {}, {}, LIMITS):
                pass
    assert refusal.value.retry_after_s == seconds


async def test_a_stream_ends_soon_after_its_last_event(monkeypatch):
    """The worker may be silent for long before it, but not after it."""
    monkeypatch.setattr(connection, "END_S", 0.05)
    access = replace(PATIENT, idle_s=600.0)
    silent = repeats(b"", 600.0, first=EVENT + DONE, content_type="text/event-stream")
    bad = listening(BadWorker({"/": silent}))
    async with bad as worker, connected(worker.url, access) as link, asyncio.timeout(60):
        assert "stopped answering" in str(await read_all(link))


async def test_nothing_follows_the_last_event():
    late = says(EVENT + DONE + EVENT, content_type="text/event-stream")
    bad = listening(BadWorker({"/": late}))
    async with bad as worker, connected(worker.url) as link:
        assert "the stream continues after 2 events" in str(await read_all(link))
