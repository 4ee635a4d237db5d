"""SIGTERM: no new work, time for what runs, an error frame for the rest, and a count."""

from __future__ import annotations

import asyncio

import pytest

from eaglegate.engine.errors import EngineDead
from eaglegate.engine.scripted import Pause
from eaglegate.engine.types import Step
from eaglegate.features.pacing.cadence import Cadence
from eaglegate.server.cli.listener import Drain
from eaglegate.server.http.response import StreamTiming
from tests.server.conftest import Lab, wait_until


@pytest.fixture
def slow(lab):
    """The engine says one word and then nothing, until ``lab.cut`` is set."""
    lab.cut, lab.began = asyncio.Event(), asyncio.Event()
    word = Step(tuple(lab.renderer.encode("word", False)))
    real = lab.engine._play

    async def play(request):
        async for step in real(request):
            yield step
            lab.began.set()
            await lab.cut.wait()
            raise EngineDead("closed")

    lab.engine.script = [word, Pause(60)]
    lab.engine._play = play
    return lab


def drain(lab, grace_s):
    async def cut():
        lab.cut.set()

    return Drain(lab.gateway, lab.gateway.pipeline.admission, grace_s, cut)


async def test_with_nothing_inside_it_is_over_at_once(lab):
    cut = []

    async def never():
        cut.append(1)

    assert await Drain(lab.gateway, lab.gateway.pipeline.admission, 60, never).run() == 0
    assert not cut


async def test_running_requests_finish_during_a_drain(lab):
    lab.says("one two three", [1, 1])
    lab.engine.script = [lab.engine.script[0], Pause(0.05), *lab.engine.script[1:]]
    running = asyncio.create_task(lab.chat(stream=True))
    await wait_until(lambda: lab.engine.running)
    leaving = asyncio.create_task(
        Drain(lab.gateway, lab.gateway.pipeline.admission, 60, None).run()
    )
    await asyncio.sleep(0)
    refused = await lab.chat()
    assert (refused.status, refused.json["error"]["code"]) == (503, "engine_stopping")
    assert (await lab.get("/ready")).status == 503
    assert (await lab.get("/health")).status == 200
    assert await leaving == 0
    assert (await running).done


@pytest.mark.parametrize("pacing", [None, Cadence(400)])
async def test_after_the_grace_streams_end_with_an_error_frame(slow, caplog, pacing):
    slow.gateway.timing = StreamTiming(pacing=pacing)
    running = asyncio.create_task(slow.chat(stream=True))
    await slow.began.wait()
    assert await drain(slow, 0.01).run() == 1
    assert caplog.records[-1].levelname == "ERROR"
    assert caplog.records[-1].getMessage() == "requests lost at shutdown: 1"
    answer = await running
    assert answer.status == 200
    assert answer.chunks[-1]["error"]["type"] == "service_unavailable"
    assert answer.done if pacing is None else b"data: [DONE]" in answer.body


async def test_a_second_signal_ends_the_grace(slow):
    running = asyncio.create_task(slow.chat(stream=True))
    await slow.began.wait()
    leaving = drain(slow, 600)
    task = asyncio.create_task(leaving.run())
    leaving.end_grace()
    assert await asyncio.wait_for(task, 5) == 1
    await running


async def test_those_in_the_queue_are_told_too(slow):
    from eaglegate.server.access.admission import AdmissionLimits

    slow.gateway.pipeline.admission.bounds = AdmissionLimits(running=1)
    running = asyncio.create_task(slow.chat(stream=True))
    await slow.began.wait()
    waiting = asyncio.create_task(slow.chat(stream=True))
    await wait_until(lambda: slow.gateway.pipeline.admission.queued >= 1)
    assert await drain(slow, 0.2).run() == 2
    assert (await waiting).status == 503
    await running


@pytest.mark.parametrize(("grace_s", "is_whole"), [(60, True), (0.05, False)])
async def test_a_paced_stream_is_sent_to_its_end(grace_s, is_whole):
    """Its engine ends long before its last block. At the end of the grace that comes at once."""
    lab = Lab(timing=StreamTiming(pacing=Cadence(40)))
    lab.says("one two three four", [1, 4])
    running = asyncio.create_task(lab.chat(stream=True))
    await wait_until(lambda: lab.gateway.in_flight)
    assert await drain(lab, grace_s).run() == 0
    assert not lab.gateway.in_flight
    answer = await running
    assert b"data: [DONE]" in answer.body
    assert answer.chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert (len(answer.sends) > 8) == is_whole
