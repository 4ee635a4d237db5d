"""Several choices of one request at once: how they end, whatever ends them."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from eaglegate.engine.errors import EngineDead
from eaglegate.engine.scripted import Pause, ScriptedEngine
from eaglegate.engine.types import Step
from tests.server.conftest import call

LIMIT_S = 5


class Broken(ScriptedEngine):
    """Fails in a way that no interface foresees."""

    async def _play(self, request):
        raise RuntimeError("secret detail")
        yield


@pytest.mark.thorough
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_unforeseen_fault_ends_every_choice(lab, n, stream):
    lab.engine = Broken()
    lab.gateway.pipeline = lab.path()
    seen = []
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
    raw = orjson.dumps(body | {"n": n, "stream": stream})
    with pytest.raises(RuntimeError):  # Starlette answers, then raises for the server's log
        await asyncio.wait_for(
            call(lab.app, "POST", "/v1/chat/completions", raw, on_send=seen.append), LIMIT_S
        )
    answer = seen[-1]
    assert answer.status == 500
    assert answer.json["error"]["type"] == "server_error"
    assert b"secret" not in answer.body
    assert not lab.engine.running
    assert not lab.gateway.pipeline.admission.num_in_flight


async def test_an_unforeseen_fault_in_mid_stream_ends_the_stream(lab):
    class Late(ScriptedEngine):
        async def _play(self, request):
            yield Step(tuple(lab.renderer.encode("word", False)))
            raise RuntimeError("secret detail")

    lab.engine = Late()
    lab.gateway.pipeline = lab.path()
    answer = await asyncio.wait_for(lab.chat(n=2, stream=True), LIMIT_S)
    assert answer.status == 200
    assert answer.chunks[-1]["error"]["type"] == "server_error"
    assert b"secret" not in answer.body
    assert answer.done


async def test_an_engines_fault_in_one_choice_is_told_and_aborts_the_others(lab):
    def script(request):
        if request.id.endswith("-1"):
            return [Step((1,)), EngineDead("the engine died")]
        return [Step((1,)), Pause(60)]

    lab.engine.script = script
    answer = await asyncio.wait_for(lab.chat(n=2), LIMIT_S)
    assert answer.status == 503
    assert not lab.engine.running
