"""``--stream-interval-ms``: text, events and folds are the same at every setting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import orjson
import pytest

pytest.importorskip("vllm")

from eaglegate.engine.scripted import ScriptedEngine, steps
from eaglegate.engine.types import EngineInfo, EngineRequest, Step, StepSink
from eaglegate.engine.vllm_backend.step_queue import SinkFlusher, StepQueue
from tests.server.conftest import EOS, Lab, on_a_port
from tests.streams import fold_chat, read_chat, read_frames

pytestmark = pytest.mark.thorough

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TEXT = f"<think>Which city? Oslo, I think.</think>Let me look that up for you.{CALL}"
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
CUTS = (1, 3, 2, 4, 1, 1, 4, 3, 2, 1, 4)
INTERVALS = (0.0, None, 1.0, 20.0)


class PacedEngine(ScriptedEngine):
    """Engine that pushes the steps of one request 5 ms apart, through a queue."""

    def __init__(self, script: Sequence[Step], info: EngineInfo, interval_ms: float | None) -> None:
        super().__init__(script, info)
        self._steps = script
        self._flusher = SinkFlusher(None if interval_ms is None else interval_ms / 1000)

    async def generate(self, request: EngineRequest, sink: StepSink) -> None:
        queue = StepQueue(request.id, 1, self._flusher)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._push_steps(queue))
            await queue.deliver(sink)

    async def _push_steps(self, queue: StepQueue) -> None:
        for step in self._steps:
            queue.push(step)
            await asyncio.sleep(0.005)


def ask(url: str, stream: bool) -> list[dict[str, Any]]:
    body: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
    body |= {"tools": [TOOL], "stream": stream}
    if not stream:
        return [httpx.post(f"{url}/v1/chat/completions", json=body).json()]
    body["stream_options"] = {"include_usage": True}
    return read_frames(httpx.post(f"{url}/v1/chat/completions", json=body).text)


def serve(interval_ms: float | None, stream: bool) -> list[dict[str, Any]]:
    lab = Lab()
    script = steps(lab.renderer.encode(TEXT + EOS, False), CUTS)
    lab.engine = PacedEngine(script, lab.path().info, interval_ms)
    lab.gateway.open(lab.path())
    with on_a_port(lab.app) as url:
        return ask(url, stream)


@pytest.mark.parametrize("interval_ms", INTERVALS)
def test_a_stream_and_its_fold_are_the_same_at_every_interval(interval_ms: float | None) -> None:
    folded = fold_chat(serve(interval_ms, stream=True))
    (answer,) = serve(interval_ms, stream=False)
    assert folded == read_chat(answer)
    assert folded["reasoning"] == "Which city? Oslo, I think."
    assert folded["content"] == "Let me look that up for you."
    ((name, arguments),) = folded["calls"]
    assert (name, orjson.loads(arguments)) == ("get_weather", {"city": "Oslo"})
    assert folded["finish_reason"] == "tool_calls"
    assert folded["usage"] == fold_chat(serve(0.0, stream=True))["usage"]


def test_an_interval_sends_fewer_chunks() -> None:
    assert len(serve(500.0, stream=True)) < len(serve(0.0, stream=True))
