"""``--stream-cadence``: blocks of one size at a fixed pace, with the same answer in them."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglegate.engine.errors import EngineDead, EngineOverloaded
from eaglegate.engine.events import Finish, LogprobsDelta, TokensDelta, Usage
from eaglegate.engine.scripted import Pause
from eaglegate.features.pacing import cadence
from eaglegate.features.pacing.cadence import (
    BLOCK,
    MOST_STEPS,
    Cadence,
    PacedSink,
    fill,
    join,
    round_ticks,
)
from eaglegate.features.pacing.settings import PacingSettings
from eaglegate.server.errors import ConfigError
from eaglegate.server.http.response import ReplayedResponse, StreamTiming
from eaglegate.text.events import ContentDelta, ReasoningDelta, ToolCallDelta, ToolCallEnd
from tests.server.conftest import Lab, call, make_scope, read_head_only, send_once
from tests.streams import read_frames

TEXT = "Seven times six is forty-two, and the rest of the sentence fills a few more steps."
HI = [{"role": "user", "content": "Hi"}]
ASKS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "stream_options": {"include_usage": True}},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 64},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 64},
}
MS = 10


@pytest.fixture
def paced() -> Lab:
    return Lab(timing=StreamTiming(pacing=Cadence(MS)))


def says_slowly(lab: Lab, cuts: tuple[int, ...] = (), every_s: float = 0.004) -> None:
    lab.says(TEXT, cuts)
    lab.engine.script = [item for step in lab.engine.script for item in (Pause(every_s), step)]


def read_text(rows: list[dict[str, Any]]) -> str:
    """The text of a stream of any of the APIs."""
    parts = []
    for row in rows:
        choices = row.get("choices", ())
        parts += [c.get("text") or c.get("delta", {}).get("content") or "" for c in choices]
        if row.get("type") == "response.output_text.delta":
            parts.append(row["delta"])
        if row.get("type") == "content_block_delta":
            parts.append(row["delta"].get("text", ""))
    return "".join(parts)


@pytest.mark.parametrize("api", ASKS)
@pytest.mark.parametrize("cuts", [(), (4, 1, 4, 4, 1), (1, 1, 9, 1, 1)])
async def test_every_tick_sends_a_block_of_the_same_size(paced, api, cuts):
    says_slowly(paced, cuts)
    body = {"model": "demo", "stream": True, **ASKS[api]}
    answer = await paced.post(api, body)
    first, *blocks, end = answer.sends
    assert (len(first) % BLOCK, end) == (0, b"")
    assert round_ticks(len(blocks) + 1) == len(blocks) + 1
    sizes = [len(block) for block in blocks]
    assert sum(size != BLOCK for size in sizes) <= 2, "only the last frames may take more"
    assert read_text(read_frames(answer.body)) == TEXT


@pytest.mark.parametrize("api", ASKS)
async def test_an_answer_has_what_it_has_without_a_pace(lab, paced, api):
    body = {"model": "demo", "stream": True, **ASKS[api]}
    ends = []
    for gateway in (lab, paced):
        gateway.says(TEXT)
        answer = await gateway.post(api, body)
        rows = read_frames(answer.body)
        ends.append((read_text(rows), rows[-1].keys(), len(answer.body.split(b"[DONE]"))))
    assert ends[0] == ends[1]


async def test_whole_answers_are_not_paced(paced):
    says_slowly(paced)
    answer = await paced.chat()
    assert answer.json["choices"][0]["message"]["content"] == TEXT
    assert len(answer.body) % BLOCK


async def test_done_is_the_end_of_the_last_block(paced):
    says_slowly(paced)
    answer = await paced.chat(stream=True)
    *_, last, end = answer.sends
    assert b"data: [DONE]\n\n" in last
    assert answer.body.count(b"[DONE]") == 1
    assert end == b""


async def test_logprobs_and_tokens_of_joined_steps_are_complete(lab, paced):
    found = []
    for gateway in (lab, paced):
        ids = gateway.says_with_logprobs(TEXT)
        answer = await gateway.chat(stream=True, logprobs=True, return_token_ids=True)
        choices = [row["choices"][0] for row in answer.chunks if row["choices"]]
        tokens = [t for choice in choices for t in choice.get("token_ids") or ()]
        assert tokens == ids
        rows = [c["logprobs"]["content"] for c in choices if c.get("logprobs")]
        found.append([entry["token"] for row in rows for entry in row])
    assert found[0] == found[1]


async def test_two_choices_are_joined_apart(paced):
    says_slowly(paced, (3, 3, 3))
    answer = await paced.chat(stream=True, n=2)
    texts = ["", ""]
    for row in answer.chunks:
        for choice in row["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == [TEXT, TEXT]


async def test_an_error_before_the_first_token_keeps_its_status(paced):
    paced.engine.script = [EngineOverloaded("full")]
    answer = await paced.chat(stream=True)
    assert (answer.status, answer.json["error"]["code"]) == (429, "engine_overloaded")


async def test_an_error_in_the_stream_is_its_last_frame(paced):
    says_slowly(paced)
    paced.engine.script = [*paced.engine.script[:9], EngineDead("gone")]
    answer = await paced.chat(stream=True)
    assert read_frames(answer.body)[-1]["error"]["code"] == "engine_dead"
    assert {len(block) % BLOCK for block in answer.sends} == {0}


async def test_a_client_that_leaves_ends_its_request(paced):
    says_slowly(paced)
    paced.engine.script = [*paced.engine.script[:9], Pause(60)]
    leave = asyncio.Event()

    def leave_at_the_third(answer):
        if len(answer.sends) == 3:
            leave.set()

    body = {"model": "demo", "stream": True, "messages": HI}
    async with asyncio.timeout(5):
        await call(
            paced.app,
            "POST",
            "/v1/chat/completions",
            json.dumps(body).encode(),
            leave=leave,
            on_send=leave_at_the_third,
        )
    assert len(paced.engine.aborted) == 1
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1, "no clock goes on"


async def test_a_reader_that_does_not_read_is_cut_off():
    lab = Lab(timing=StreamTiming(pacing=Cadence(1), reader_s=0.05))
    says_slowly(lab)
    lab.engine.script = [*lab.engine.script[:-1]] * 50
    body = json.dumps({"model": "demo", "stream": True, "messages": HI, "max_tokens": 4000})
    scope = make_scope("POST", "/v1/chat/completions")
    async with asyncio.timeout(10):
        await lab.app(scope, send_once(body.encode()), read_head_only)
    assert not lab.engine.running


class Wire:
    """A connection that records what it is sent, and waits where it is told to."""

    def __init__(self) -> None:
        self.blocks: list[bytes] = []
        self.times: list[float] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def open(self) -> None: ...

    async def write(self, data: bytes) -> None:
        await self.reads.wait()
        self.blocks.append(data)
        self.times.append(asyncio.get_running_loop().time())

    async def close(self, data: bytes) -> None: ...


def encode_text(_: int, events: list[Any]) -> bytes:
    return b"data: " + json.dumps([event.text for event in events]).encode() + b"\n\n"


async def close(sink: PacedSink, end: bytes = b"") -> None:
    sink.flush()
    await sink.close(end)


async def test_ticks_go_on_while_no_token_comes():
    wire = Wire()
    sink = PacedSink(wire, encode_text, 0.02)
    sink.push(0, [ContentDelta("one")])
    await asyncio.sleep(0.25)
    sink.push(0, [ContentDelta("two")])
    sink.push(0, [ContentDelta("-")])
    await close(sink, b"data: [DONE]\n\n")
    assert {len(block) for block in wire.blocks} == {BLOCK}
    assert len(wire.blocks) == 16
    frames = [line for block in wire.blocks for line in block.split(b"\n") if line[:5] == b"data:"]
    assert frames == [b'data: ["one"]', b'data: ["two-"]', b"data: [DONE]"]
    assert wire.times[-1] - wire.times[0] > 15 * 0.018


def encode_finish(choice: int, events: list[Any]) -> bytes:
    return encode_text(choice, [event for event in events if not isinstance(event, Finish)])


@pytest.mark.parametrize(("ticks", "accepted"), [(48, 0), (24, 20), (12, 30)])
async def test_a_stream_ends_when_it_would_have_ended_without_drafts(ticks: int, accepted: int):
    wire = Wire()
    sink = PacedSink(wire, encode_finish, 0.004)
    sink.push(0, [ContentDelta("one")])
    while len(wire.blocks) < ticks:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    sink.push(0, [ContentDelta("end"), Finish("stop", Usage(9, 40, accepted=accepted))])
    await close(sink)
    assert len(wire.blocks) == 64


async def begin_stream() -> tuple[Wire, cadence.PacedStream]:
    """A stream whose first block is out."""
    wire = Wire()
    paced = cadence.PacedStream(wire, 0.002)
    paced.push(b"data: 1\n\n")
    while not wire.blocks:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    return wire, paced


async def test_last_frames_are_spread_over_the_ticks_that_are_left():
    wire, paced = await begin_stream()
    await paced.close(b"data: " + b"x" * 4 * BLOCK + b"\n\ndata: [DONE]\n\n")
    assert [len(block) for block in wire.blocks] == [BLOCK] * 8
    assert b"data: [DONE]" in wire.blocks[-1]


async def test_last_frames_take_larger_blocks_where_few_ticks_are_left():
    wire, paced = await begin_stream()
    await paced.close(b"data: " + b"x" * 20 * BLOCK + b"\n\n")
    assert len(wire.blocks) == 8
    assert {len(block) for block in wire.blocks} <= {BLOCK, 2 * BLOCK, 4 * BLOCK}


async def test_little_is_kept_for_a_client_that_lags():
    wire = Wire()
    wire.reads.clear()
    sink = PacedSink(wire, encode_text, 0.001)
    sink.push(0, [ContentDelta("x")])
    await asyncio.sleep(0.01)
    pushed = 1
    while sink.is_open():
        sink.push(0, [ContentDelta("x")])
        pushed += 1
    assert pushed == 1 + MOST_STEPS
    waiting = asyncio.create_task(sink.drain())
    await asyncio.sleep(0.02)
    assert not waiting.done()
    wire.reads.set()
    async with asyncio.timeout(5):
        await waiting
        await close(sink, b"")
    texts = [
        json.loads(line[6:]) for line in b"".join(wire.blocks).splitlines() if line[:1] == b"d"
    ]
    assert "".join(text for row in texts for text in row) == "x" * pushed


async def test_large_frames_wait_for_further_blocks():
    wire = Wire()
    sink = PacedSink(wire, encode_text, 0.001)
    sink.push(0, [ContentDelta("a")])
    while not wire.blocks:  # noqa: ASYNC110
        await asyncio.sleep(0)
    sink.push(0, [ContentDelta("b" * 5 * BLOCK)])
    while len(wire.blocks) < 8:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await close(sink, b"")
    assert {len(block) for block in wire.blocks} == {BLOCK}
    assert b"".join(wire.blocks).count(b"b") >= 5 * BLOCK


async def test_the_opening_is_sent_at_once_in_doubled_blocks():
    wire = Wire()
    sink = PacedSink(wire, encode_text, 0.001)
    sink.push(0, [ContentDelta("a" * 5 * BLOCK)])
    await close(sink, b"")
    assert len(wire.blocks[0]) == 8 * BLOCK
    assert {len(block) for block in wire.blocks[1:]} == {BLOCK}


async def test_a_fault_while_writing_ends_the_answer():
    class Broken(Wire):
        async def write(self, data: bytes) -> None:
            raise ConnectionError("reset")

    sink = PacedSink(Broken(), encode_text, 0.001)
    sink.push(0, [ContentDelta("a")])
    await asyncio.sleep(0.02)
    assert not sink.is_open()
    with pytest.raises(ConnectionError):
        await sink.drain()


def test_join_puts_first_what_a_step_begins_with():
    steps = [
        [TokensDelta((1,)), LogprobsDelta(()), ReasoningDelta("a")],
        [TokensDelta((2, 3)), LogprobsDelta(()), ReasoningDelta("b"), ContentDelta("c")],
        [TokensDelta((4,)), ContentDelta("d"), ToolCallDelta(0, "{"), ToolCallDelta(0, "}")],
    ]
    assert join([event for step in steps for event in step]) == [
        TokensDelta((1, 2, 3, 4)),
        LogprobsDelta(()),
        ReasoningDelta("ab"),
        ContentDelta("cd"),
        ToolCallDelta(0, "{}"),
    ]
    apart = [ToolCallDelta(0, "{}"), ToolCallEnd(0, "valid"), ToolCallDelta(1, "{}")]
    assert join(apart) == apart


@given(st.binary(max_size=3000).filter(lambda data: b"\n" not in data), st.integers(0, 5))
def test_filling_is_exact_and_holds_no_event(data: bytes, short: int) -> None:
    frames = b"data: " + data.hex().encode() + b"\n\n"
    for size in (len(frames) + short, len(frames) + BLOCK):
        filled = fill(frames, size)
        assert len(filled) == size
        assert filled.startswith(frames)
        assert all(not line or line[:1] == b":" for line in filled[len(frames) :].split(b"\n"))


def test_ticks_end_at_powers_of_two() -> None:
    assert [round_ticks(n) for n in (1, 8, 9, 16, 17, 100)] == [8, 8, 16, 16, 32, 128]


# Background responses.


async def test_a_background_stream_is_paced_when_it_is_followed(paced):
    says_slowly(paced)
    body = {"model": "demo", "input": "Hi", "background": True, "stream": True}
    answer = await paced.post("/v1/responses", body)
    assert {len(block) % BLOCK for block in answer.sends} == {0}
    assert read_text(read_frames(answer.body)) == TEXT
    assert read_frames(answer.body)[-1]["type"] == "response.completed"
    (made,) = {row["response"]["id"] for row in read_frames(answer.body) if "response" in row}
    again = await paced.get(f"/v1/responses/{made}?stream=true&starting_after=3")
    assert {len(block) % BLOCK for block in again.sends} == {0}
    assert read_frames(again.body) == read_frames(answer.body)[4:]


async def test_a_replay_that_is_not_read_is_cut_off():
    async def frames():
        while True:
            yield b"data: 1\n\n"

    answer = ReplayedResponse(frames(), StreamTiming(pacing=Cadence(1), reader_s=0.05))
    async with asyncio.timeout(10):
        await answer({"type": "http"}, asyncio.Event().wait, read_head_only)


# The official clients.


def test_the_setting_is_checked() -> None:
    assert PacingSettings(50).is_on
    assert not PacingSettings().is_on
    for wrong in (-1, 0.5, 1001, float("nan")):
        with pytest.raises(ConfigError, match="--stream-cadence must be 1 to 1000"):
            PacingSettings(wrong)


async def test_a_timer_that_fires_early_sends_no_more_blocks(monkeypatch):
    """uvloop's timers have whole milliseconds and may fire before their time."""
    sleep = asyncio.sleep
    monkeypatch.setattr(cadence.asyncio, "sleep", lambda seconds: sleep(seconds - 0.002))
    sent: list[bytes] = []

    class Stream:
        async def open(self) -> None: ...

        async def write(self, data: bytes) -> None:
            sent.append(data)

        async def close(self, data: bytes) -> None: ...

    began = time.monotonic()
    paced = cadence.PacedStream(Stream(), 0.01)
    paced.push(b"data: 1\n\n")
    await sleep(0.15)
    paced.stop()
    assert 2 <= len(sent) <= (time.monotonic() - began) / 0.01 + 2
