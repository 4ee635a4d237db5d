"""Answers of the four APIs, read as their bytes arrive."""

from __future__ import annotations

import json

import pytest

from eaglegate.lab.measure.stream import RequestResult, StreamReader


def frames(*payloads):
    return b"".join(b"data: " + json.dumps(payload).encode() + b"\n\n" for payload in payloads)


def chunk(delta, finish=None, **more):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]}


def read(*arrivals):
    """The result of reading (time, bytes) pairs."""
    result = RequestResult("r", "s")
    reader = StreamReader(result)
    for now, data in arrivals:
        reader.feed(data, now)
    reader.finish()
    return result


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 5, "completion_tokens": 7},
    "metrics": {"speculative_decoding": {"per_step_drafted": [3, 3], "per_step_accepted": [3, 1]}},
}


def test_times_of_a_chat_answer():
    found = read(
        (0.1, frames(chunk({"role": "assistant", "content": ""}))),
        (0.2, frames(chunk({"reasoning": "hm"}))),
        (0.5, frames(chunk({"content": "four tokens"}))),
        (0.8, frames(chunk({"content": "two"}), chunk({}, "stop"))),
        (5.0, frames(USAGE) + b"data: [DONE]\n\n"),
    )
    assert found.ttft == 0.2, "a role alone is no output, reasoning is"
    assert found.latency == 0.8, "the usage comes later and does not count"
    assert found.gaps == pytest.approx([0.3, 0.3])
    assert found.tpot == pytest.approx(0.6 / 6)
    assert found.decode_s == pytest.approx(0.6)
    assert not found.is_bunched
    assert (found.text, found.reasoning, found.finish) == ("four tokenstwo", "hm", "stop")
    assert (found.prompt_tokens, found.output_tokens) == (5, 7)
    assert found.tokens_per_step == 6 / 2
    assert found.ok


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_frames_may_be_cut_anywhere(size):
    data = frames(chunk({"content": "hé"}), chunk({"content": "llo"}), USAGE).replace(
        b"\n\n", b"\r\n\r\n"
    )
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    found = read(*((at, piece) for at, piece in enumerate(pieces)))
    assert (found.text, found.output_tokens, found.ok) == ("héllo", 7, True)


def test_tool_calls_are_put_together():
    def part(index, name=None, arguments=""):
        return chunk(
            {"tool_calls": [{"index": index, "function": {"name": name, "arguments": arguments}}]}
        )

    found = read((0.1, frames(part(0, "a", '{"x"'), part(0, None, ": 1}"), part(1, "b", "{}"))))
    assert [(call.name, call.arguments) for call in found.tool_calls] == [
        ("a", '{"x": 1}'),
        ("b", "{}"),
    ]


def test_responses():
    usage = {"input_tokens": 3, "output_tokens": 9}
    found = read(
        (0.1, frames({"type": "response.created", "response": {}})),
        (0.2, frames({"type": "response.reasoning_text.delta", "delta": "hm"})),
        (0.3, frames({"type": "response.output_text.delta", "delta": "yes"})),
        (0.4, frames(
            {"type": "response.output_item.added", "item": {"type": "function_call", "name": "f"}},
            {"type": "response.function_call_arguments.delta", "delta": "{}"},
        )),
        (0.5, frames({"type": "response.completed",
                      "response": {"status": "completed", "usage": usage}})),
    )  # fmt: skip
    assert (found.ttft, found.latency, found.output_tokens) == (0.2, 0.4, 9)
    assert (found.text, found.reasoning, found.tool_calls[0].name) == ("yes", "hm", "f")
    assert found.tool_calls[0].arguments == "{}"


def test_messages():
    found = read(
        (0.1, frames({"type": "message_start", "message": {"usage": {"input_tokens": 4}}})),
        (0.2, frames({"type": "content_block_delta",
                      "delta": {"type": "thinking_delta", "thinking": "hm"}})),
        (0.3, frames({"type": "content_block_delta",
                      "delta": {"type": "text_delta", "text": "yes"}})),
        (0.4, frames({"type": "content_block_start",
                      "content_block": {"type": "tool_use", "name": "f"}},
                     {"type": "content_block_delta",
                      "delta": {"type": "input_json_delta", "partial_json": "{}"}})),
        (0.5, frames({"type": "message_delta", "delta": {"stop_reason": "tool_use"},
                      "usage": {"output_tokens": 8}})),
    )  # fmt: skip
    assert (found.text, found.reasoning, found.finish) == ("yes", "hm", "tool_use")
    assert (found.ttft, found.latency, found.output_tokens, found.prompt_tokens) == (0.2, 0.4, 8, 4)
    assert found.tool_calls[0].arguments == "{}"


def test_errors_are_results():
    assert read((0.1, frames({"error": {"message": "engine died"}}))).error == "engine died"
    assert read((0.1, b": ping\n\n")).error == "the stream ended without any output"
    result = RequestResult("r", "s")
    StreamReader(result).read_error(b'{"error": {"message": "too long"}}', 400)
    assert (result.error, result.status) == ("HTTP 400: too long", 400)
    StreamReader(result).read_error(b"<html>", 502)
    assert result.error == "HTTP 502: <html>"


def test_chunks_that_a_stall_delivered_together_are_no_speed():
    parts = [frames(chunk({"content": "a"})) for _ in range(4)]
    assert read(*((1.0, part) for part in parts)).is_bunched
    assert not read(*((at * 0.01, part) for at, part in enumerate(parts))).is_bunched
