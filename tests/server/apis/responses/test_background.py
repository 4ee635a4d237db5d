"""Background responses: their end, their memory, their owners, and other gateways."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc

import orjson
import pytest
from sqlalchemy import text

from eaglegate.engine.errors import EngineFailed
from eaglegate.engine.scripted import Pause
from eaglegate.engine.types import Step
from eaglegate.server.access.admission import AdmissionLimits
from eaglegate.server.access.quota import KeyQuota
from eaglegate.server.apis.responses.background import (
    BackgroundRun,
    BackgroundRuns,
    FrameLog,
    ResponseSnapshot,
)
from eaglegate.server.errors import StoreFailed
from eaglegate.server.http.response import SSE_KEEP_ALIVE, ReplayedResponse, StreamTiming
from eaglegate.text.events import FinishReason
from tests.server.apis.responses.test_responses import URL, said
from tests.server.conftest import Lab, call, make_key, read_head_only, wait_until

pytestmark = pytest.mark.thorough


async def begin(lab, **fields):
    return (await lab.respond(background=True, **fields)).json


def endless(lab):
    """The engine says one word and then nothing for a minute."""
    word = Step(tuple(lab.renderer.encode("one", False)))
    lab.engine.script = [word, Pause(60)]


async def stored_status(lab, id, owner=""):
    return (await lab.gateway.store.get(id, owner)).response["status"]


async def test_the_bytes_of_a_request_are_held_until_its_run_is_over(lab):
    endless(lab)
    made = await begin(lab, unused="x" * 10_000)
    assert lab.gateway.budget.held > 10_000
    await lab.post(f"{URL}/{made['id']}/cancel", {})
    await asyncio.sleep(0)
    assert lab.gateway.budget.held == 0


async def replay(frames, send, timing):
    await ReplayedResponse(frames, timing)({"type": "http"}, asyncio.Event().wait, send)


async def test_a_silent_background_stream_is_kept_alive():
    sent = []

    async def send(message):
        sent.append(message.get("body", b""))

    async def frames():
        yield b"first"
        await wait_until(lambda: SSE_KEEP_ALIVE in sent)

    async with asyncio.timeout(10):
        await replay(frames(), send, StreamTiming(keep_alive_s=0.02))
    assert sent[1] == b"first"
    assert SSE_KEEP_ALIVE in sent


async def test_a_background_stream_is_not_written_to_a_reader_that_does_not_read():
    is_closed = False

    async def frames():
        nonlocal is_closed
        try:
            while True:
                yield b"frame"
        finally:
            is_closed = True

    async with asyncio.timeout(10):
        await replay(frames(), read_head_only, StreamTiming(reader_s=0.05))
    assert is_closed


@pytest.mark.parametrize("wait", [0, 1, 2, 5, 20, 200])
async def test_two_cancels_at_once_end_it_for_followers_and_store(lab, wait):
    """The waits reach from before the run's task has begun to long after its first token."""
    endless(lab)
    made = await begin(lab)
    at = f"{URL}/{made['id']}"
    follower = asyncio.ensure_future(lab.get(f"{at}?stream=true"))
    for _ in range(wait):
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*(lab.post(f"{at}/cancel", {}) for _ in range(3)))
        events = said(await follower)
    assert {answer.json["status"] for answer in answers} == {"cancelled"}
    assert events[-1]["type"] == "response.cancelled"
    assert await stored_status(lab, made["id"]) == "cancelled"
    assert not lab.engine.running
    admission = lab.gateway.pipeline.admission
    assert (admission.running, admission.queued, admission.num_in_flight) == (0, 0, 0)
    assert said(await lab.get(f"{at}?stream=true")) == events


async def test_a_client_that_leaves_while_it_cancels_leaves_no_half_cancelled_run(lab):
    endless(lab)
    made = await begin(lab)
    at = f"{URL}/{made['id']}"
    cancelling = asyncio.ensure_future(lab.post(f"{at}/cancel", {}))
    await asyncio.sleep(0)
    cancelling.cancel()
    async with asyncio.timeout(10):
        events = said(await lab.get(f"{at}?stream=true"))
        if events[-1]["type"] != "response.cancelled":
            raise AssertionError(events[-1]["type"])
    assert await stored_status(lab, made["id"]) == "cancelled"


@pytest.mark.parametrize("ending", ["cancel", "fault"])
async def test_the_end_is_told_even_when_it_cannot_be_stored(lab, caplog, ending):
    async def settle(_stored):
        raise RuntimeError("not even a StoreFailed") if ending == "cancel" else StoreFailed("away")

    endless(lab)
    if ending == "fault":
        lab.engine.script = [EngineFailed("no")]
    lab.gateway.store.settle = settle
    made = await begin(lab)
    at = f"{URL}/{made['id']}"
    async with asyncio.timeout(10):
        if ending == "cancel":
            assert (await lab.post(f"{at}/cancel", {})).json["status"] == "cancelled"
            assert "cannot store the background response" in caplog.text
        events = said(await lab.get(f"{at}?stream=true"))
    if ending == "fault":
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1]["response"]["store"] is False
    assert (await lab.get(at)).json == events[-1]["response"]


async def test_a_running_response_can_be_deleted(lab):
    endless(lab)
    made = await begin(lab)
    at = f"{URL}/{made['id']}"
    follower = asyncio.ensure_future(lab.get(f"{at}?stream=true"))
    assert (await lab.delete(at)).json["deleted"]
    assert not lab.engine.running
    assert (await lab.get(at)).status == 404
    async with asyncio.timeout(10):
        await follower


async def test_a_cancel_after_the_end_changes_nothing(lab):
    lab.says("done")
    made = await begin(lab)
    run = lab.runs.get(made["id"], "")
    await run.task
    await run.cancel()
    assert (await lab.post(f"{URL}/{made['id']}/cancel", {})).json["status"] == "completed"
    assert await stored_status(lab, made["id"]) == "completed"


@pytest.mark.parametrize("after", [-50, -2])
async def test_no_number_before_the_first_can_be_started_after(lab, after):
    lab.says("one two")
    made = await begin(lab)
    answer = await lab.get(f"{URL}/{made['id']}?stream=true&starting_after={after}")
    assert (answer.status, answer.json["error"]["param"]) == (400, "starting_after")


async def test_every_number_can_be_started_after(lab):
    lab.says("one two three", [1])
    made = await begin(lab, stream=False)
    at = f"{URL}/{made['id']}?stream=true"
    events = said(await lab.get(at))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for after in range(-1, len(events) + 2):
        body = (await lab.get(f"{at}&starting_after={after}")).body
        assert [orjson.loads(f.split(b"data: ")[1]) for f in body.split(b"\n\n") if f] == (
            events[after + 1 :]
        )


async def test_frames_read_later_are_those_that_were_streamed(lab):
    """The frames hold the tools and the state that each had when it was streamed."""
    lab.says("one two three", [1])
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
    live = await lab.respond(background=True, stream=True, tools=[tool])
    events = said(live)
    assert [e["response"]["status"] for e in events[:3]] == ["queued", "queued", "in_progress"]
    assert all(e["response"]["output"] == [] for e in events[:3])
    id = events[0]["response"]["id"]
    assert lab.runs.get(id, "").response is None, "only the store has it now"
    assert (await lab.get(f"{URL}/{id}?stream=true")).body == live.body
    assert (await lab.get(f"{URL}/{id}")).json == events[-1]["response"]


async def test_large_tools_are_not_kept_once_a_response_has_ended(tmp_path):
    """30 responses with 7 MB of tools took 1 GB; here 8 with 1 MB, and none of it stays."""
    lab = Lab()
    lab.says("yes")
    big = {"type": "function", "name": "f", "description": "x" * (1 << 20)}
    await begin(lab)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(8):
            made = await begin(lab, tools=[big], tool_choice="none")
            await lab.runs.get(made["id"], "").task
        for _ in range(50):  # the store's thread may still hold what it wrote last
            gc.collect()
            if (kept := tracemalloc.get_traced_memory()[0] - before) < 2 << 20:
                break
            await asyncio.sleep(0.02)
        assert kept < 2 << 20
        assert len(said(await lab.get(f"{URL}/{made['id']}?stream=true"))) > 4
    finally:
        tracemalloc.stop()


# -- two gateways, one store


@pytest.fixture
def twin(lab):
    """Another gateway on the same store."""
    other = Lab()
    other.gateway.store = lab.gateway.store
    return other


async def test_another_gateway_sees_that_it_runs_and_fails_it_when_nobody_says_so(lab, twin):
    endless(lab)
    made = await begin(lab)
    at = f"{URL}/{made['id']}"
    assert (await twin.get(at)).json["status"] == "in_progress"
    await lab.gateway.store.hold([made["id"]], time.time() - 1)
    assert (await twin.get(at)).json["status"] == "failed"
    before = time.time()
    await lab.runs.hold(lab.gateway.store)
    after = time.time()
    assert (await twin.get(at)).json["status"] == "in_progress"
    held = (await lab.gateway.store.get(made["id"], "")).held_until
    assert before + 60 <= held <= after + 60
    await lab.post(f"{at}/cancel", {})
    assert (await twin.get(at)).json == (await lab.get(at)).json


async def test_another_gateway_can_cancel_and_delete_it(lab, twin):
    for method, path, status in (("POST", "/cancel", 200), ("DELETE", "", 404)):
        endless(lab)
        made = await begin(lab)
        run = lab.runs.get(made["id"], "")
        at = f"{URL}/{made['id']}"
        assert (await call(twin.app, method, at + path, b"{}")).status == 200
        await lab.runs.hold(lab.gateway.store)
        assert run.ended
        assert not lab.engine.running
        for gateway in (lab, twin):
            answer = await gateway.get(at)
            assert answer.status == status
            assert status == 404 or answer.json["status"] == "cancelled"


async def test_a_response_cancelled_by_another_gateway_stays_cancelled(lab, twin):
    word = tuple(lab.renderer.encode("late", False))

    def script(_request):
        yield Step(word)
        yield Pause(0.2)
        yield Step(word, finish=FinishReason.STOP)

    lab.engine.script = script
    made = await begin(lab)
    run = lab.runs.get(made["id"], "")
    assert (await twin.post(f"{URL}/{made['id']}/cancel", {})).json["status"] == "cancelled"
    await run.task
    assert (await twin.get(f"{URL}/{made['id']}")).json["status"] == "cancelled"
    assert (await lab.get(f"{URL}/{made['id']}")).json["status"] == "cancelled"


async def test_a_store_that_is_away_for_a_moment_ends_nothing(lab):
    endless(lab)
    made = await begin(lab)
    hold = lab.gateway.store.hold

    async def failing(*_):
        raise StoreFailed("away")

    lab.gateway.store.hold = failing
    await lab.runs.hold(lab.gateway.store)
    lab.gateway.store.hold = hold
    assert not lab.runs.get(made["id"], "").ended
    await lab.post(f"{URL}/{made['id']}/cancel", {})


# -- the log


def test_a_log_gives_back_what_it_was_given_and_stays_small(monkeypatch):
    monkeypatch.setattr("eaglegate.server.apis.responses.background.MOST_BYTES", 3000)
    log, frames = FrameLog(), []
    for at in range(600):
        frames.append(
            ResponseSnapshot(at, "x") if at % 100 == 0 else b"event %d: " % at + b"y" * (at % 70)
        )
        log.append(frames[-1])
        kept = [frame for frame in frames[log.begin :] if isinstance(frame, bytes)]
        assert log.num_bytes == sum(map(len, kept)) <= 3000
        assert log.read(at) == frames[-1]
    assert log.end == 600
    assert 0 < log.begin < 600, "the oldest are gone"
    assert [log.read(at) for at in range(log.begin, 600)] == frames[log.begin :]
    for gone in (-1, log.begin - 1, 600):
        with pytest.raises(IndexError):
            log.read(gone)


async def test_a_start_before_what_is_kept_is_refused(lab, monkeypatch):
    monkeypatch.setattr("eaglegate.server.apis.responses.background.MOST_BYTES", 4000)
    lab.says("word " * 40, [1])
    made = await begin(lab)
    run = lab.runs.get(made["id"], "")
    await run.task
    answer = await lab.get(f"{URL}/{made['id']}?stream=true&starting_after=0")
    assert answer.status == 400
    assert str(run.log.begin) in answer.json["error"]["message"]
    assert run.log.begin > 2
    refused = await lab.get(f"{URL}/{made['id']}?stream=true&starting_after={run.log.begin - 2}")
    assert refused.status == 400, "one event would be missing"
    rest = await lab.get(f"{URL}/{made['id']}?stream=true&starting_after={run.log.begin - 1}")
    assert said(rest)[0]["sequence_number"] == run.log.begin


async def test_finished_runs_are_bounded_in_bytes(lab, monkeypatch):
    monkeypatch.setattr("eaglegate.server.apis.responses.background.KEPT_BYTES", 1000)
    lab.says("some words that are said", [1])
    ids = []
    for _ in range(12):
        ids.append((await begin(lab))["id"])
        await lab.runs.get(ids[-1], "").task
    left = [id for id in ids if lab.runs.get(id, "") is not None]
    assert 0 < len(left) < 12
    assert left == ids[-len(left) :]
    assert (await lab.get(f"{URL}/{ids[0]}")).json["status"] == "completed"


# -- how a run ends, and what stays of it


async def test_events_are_there_while_it_runs_and_after_a_follower_has_left(lab):
    endless(lab)
    made = await begin(lab)
    run = lab.runs.get(made["id"], "")

    async def stored():
        raise AssertionError("it still runs")

    async with asyncio.timeout(10):
        for _ in range(2):
            frames = run.follow(-1, stored)
            async for frame in frames:
                if b'"delta":"one"' in frame:
                    break
            await frames.aclose()
            answer = (await lab.get(f"{URL}/{made['id']}")).json
            assert answer["status"] == "in_progress"
            assert answer["output"][0]["content"][0]["text"] == "one"
    await lab.post(f"{URL}/{made['id']}/cancel", {})


async def test_a_follower_still_reads_when_it_has_ended(lab):
    lab.says("one two three", [1])
    made = await begin(lab)
    run = lab.runs.get(made["id"], "")

    async def stored():
        return (await lab.gateway.store.get(made["id"], "")).response

    frames = run.follow(-1, stored)
    first = await anext(frames)
    await run.task
    rest = [first, *[frame async for frame in frames]]
    events = [orjson.loads(frame.split(b"data: ")[1]) for frame in rest]
    assert events[-1]["type"] == "response.completed"
    assert events == said(await lab.get(f"{URL}/{made['id']}?stream=true"))


async def test_an_unexpected_fault_says_nothing_of_its_inside(lab, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("a secret")

    endless(lab)
    monkeypatch.setattr("eaglegate.server.apis.responses.background.LoggedStream.frames", broken)
    made = await begin(lab)
    at = f"{URL}/{made['id']}"
    async with asyncio.timeout(10):
        answer = await lab.get(f"{at}?stream=true")
        await wait_until(lambda: not lab.engine.running)
    last = said(answer)[-1]
    assert last["type"] == "response.failed"
    assert "The gateway failed" in last["response"]["error"]["message"]
    assert b"secret" not in answer.body
    assert "background response failed" in caplog.text
    assert await stored_status(lab, made["id"]) == "failed"


async def test_an_engine_s_fault_is_told_in_its_own_words(lab, caplog):
    lab.engine.script = [EngineFailed("no room left")]
    made = await begin(lab)
    events = said(await lab.get(f"{URL}/{made['id']}?stream=true"))
    assert "no room left" in orjson.dumps(events[-1]).decode()
    assert "background response failed" not in caplog.text


async def test_a_second_cancel_leaves_the_engine_time_to_end_the_first(lab):
    endless(lab)
    made = await begin(lab)
    run = lab.runs.get(made["id"], "")
    entered, ended = asyncio.Event(), False
    real = run._work

    async def slow():
        nonlocal ended
        try:
            entered.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            ended = True

    run._work = asyncio.create_task(slow())
    await entered.wait()
    first = asyncio.ensure_future(run.cancel())
    await asyncio.sleep(0)
    second = asyncio.ensure_future(run.cancel())
    await asyncio.sleep(0.2)
    assert ended
    real.cancel()
    await asyncio.gather(first, second)


async def test_a_waiting_response_can_be_cancelled():
    class Stream:
        log = FrameLog()

    run = BackgroundRun("r", "", Stream(), None)
    await run.cancel()
    runs = BackgroundRuns()
    runs.add(run)
    await runs.finish(1)


async def test_a_gateway_that_ends_waits_for_those_that_run_but_not_for_ever(lab):
    await lab.runs.finish(1)  # there are none
    word = tuple(lab.renderer.encode("one", False))
    lab.engine.script = [Pause(0.1), Step(word, finish=FinishReason.STOP)]
    quick = await begin(lab)
    await lab.runs.finish(10)
    assert await stored_status(lab, quick["id"]) == "completed"
    endless(lab)
    made = await begin(lab)
    async with asyncio.timeout(10):
        await lab.runs.finish(0.05)
    assert not lab.runs.get(made["id"], "").ended
    await lab.post(f"{URL}/{made['id']}/cancel", {})


class EndedRun:
    """The parts of a run that count here."""

    def __init__(self, id: int, num_bytes: int, ended: bool = True) -> None:
        self.id, self.owner, self.ended = str(id), "", ended
        self.log = FrameLog()
        self.log.num_bytes = num_bytes


@pytest.mark.parametrize(
    ("num_bytes", "left"), [(0, 256), (1 << 20, 65), ((1 << 20) + 1, 64), (64 << 20, 2)]
)
def test_the_last_256_of_64_mib_stay(num_bytes, left):
    """docs/api.md says so; the one that is added has not ended yet."""
    runs = BackgroundRuns()
    for at in range(300):
        run = EndedRun(at, num_bytes, ended=False)
        runs.add(run)
        run.ended = True
    ids = [at for at in range(300) if runs.get(str(at), "") is not None]
    assert ids == list(range(300 - left, 300))


def test_running_responses_are_never_dropped():
    runs = BackgroundRuns()
    for at in range(300):
        runs.add(EndedRun(at, 1 << 20, ended=False))
    assert all(runs.get(str(at), "") for at in range(300))


# -- acceptance: nothing is stored before the request has its place and has paid


def count_stored(lab):
    with lab.gateway.store._engine.connect() as connection:
        return connection.execute(text("select count(*) from eaglegate_responses")).scalar()


async def test_background_responses_pay_like_others(lab):
    """A key of two requests a minute, and one whose tokens are used up."""
    few, spent = KeyQuota("few", requests=2), KeyQuota("spent", tokens=10)
    spent.pay(10)
    lab.admit(make_key("few", quota=few), make_key("spent", quota=spent))
    lab.says("one")
    answers = [await lab.respond(background=True, key="few") for _ in range(6)]
    assert [answer.status for answer in answers] == [200, 200, 429, 429, 429, 429]
    assert answers[-1].json["error"]["code"] == "key_requests_exceeded"
    assert int(answers[-1].headers["retry-after"]) > 0
    refused = await lab.respond(background=True, key="spent")
    assert (refused.status, refused.json["error"]["code"]) == (429, "key_tokens_exceeded")
    await lab.runs.finish(10)
    assert count_stored(lab) == 2
    assert lab.gateway.budget.held == 0


async def test_a_prompt_that_does_not_fit_is_refused_and_not_stored(lab):
    made = await lab.respond(input="long " * 500, background=True)
    assert (made.status, made.json["error"]["code"]) == (400, "context_length_exceeded")
    assert count_stored(lab) == 0
    assert lab.gateway.require().admission.num_in_flight == 0


async def test_a_queued_background_response_is_answered_while_it_waits(lab):
    endless(lab)
    admission = lab.gateway.require().admission
    admission.bounds = AdmissionLimits(running=1, queued=2)
    first, second = await begin(lab), await begin(lab)
    assert (first["status"], second["status"]) == ("queued", "queued")
    await begin(lab)
    full = await lab.respond(background=True)
    assert (full.status, full.json["error"]["code"]) == (429, "queue_full")
    assert count_stored(lab) == 3
    admission.bounds = AdmissionLimits()
    for id in (first["id"], second["id"]):
        assert (await lab.post(f"{URL}/{id}/cancel", {})).json["status"] == "cancelled"


async def test_work_that_cannot_be_stored_is_stopped(lab):
    endless(lab)

    async def refuse(_):
        raise StoreFailed("no")

    lab.gateway.store.put = refuse
    made = await lab.respond(background=True)
    assert made.status == 503
    assert lab.gateway.require().admission.num_in_flight == 0
    assert not lab.engine.running
