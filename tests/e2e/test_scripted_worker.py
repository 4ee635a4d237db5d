"""`eaglegate serve --upstream`, the whole program, in front of a scripted worker."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import httpx
import pytest

from eaglegate.engine.remote.probe import PROBE
from eaglegate.text.rendering.renderer import ModelFiles, TemplateRenderer
from tests import workers
from tests.conftest import ROOT
from tests.conftest import serving as serving_gateway
from tests.engine.remote.stand_in_worker import StandIn, chunk, end
from tests.engine.remote.stand_in_worker import serving as serving_worker

pytestmark = pytest.mark.slow

RENDERER = TemplateRenderer(ModelFiles.find(workers.MODEL, None, None))
TEXT = "<think>\nEasy.\n</think>\n\nIt is a fine day."
END = RENDERER.encode("<|im_end|>", False)[0]


def script(body: dict) -> list[dict]:
    token_ids = RENDERER.encode(TEXT, False)
    most = body["sampling_params"]["max_tokens"]
    if most <= len(token_ids):  # the gateway's probe asks for a few
        short = [chunk(*token_ids[:most], finish="length")]
        return [*short, end(*[(0, 0)] * (most - 1))]
    pieces = [token_ids[:1], *(token_ids[at : at + 4] for at in range(1, len(token_ids), 4))]
    last = chunk(END, finish="stop")
    verified = [(3, len(piece) - 1) for piece in pieces[1:]]
    return [*(chunk(*piece) for piece in pieces), last, end(*verified, (3, 0), cached=4)]


async def test_from_the_command_line_to_an_answer(tmp_path):
    worker = StandIn(script, tokens=RENDERER.encode(PROBE, False))
    async with serving_worker(worker.app()) as url:
        arguments = (*workers.GATEWAY, "--upstream", url, "--upstream-key", "sesame")
        running = serving_gateway(tmp_path / "serve.log", arguments)
        gateway = await asyncio.to_thread(running.__enter__)
        try:
            assert f"workers      {url}" in gateway.banner
            assert "method and draft unknown" in gateway.banner
            async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as client:
                asked = {"model": "demo", "messages": [{"role": "user", "content": "Well?"}]}
                asked |= {"per_request_spec_decode_metrics": "detailed"}
                answer = (await client.post("/v1/chat/completions", json=asked)).json()
        finally:
            await asyncio.to_thread(running.__exit__, None, None, None)
    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == ("It is a fine day.", "Easy.")
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert answer["metrics"]["speculative_decoding"]["num_spec_tokens"] == 3
    assert worker.bodies[-1]["token_ids"] == RENDERER.render_chat(asked["messages"], None)
    assert worker.asked[-1].headers["authorization"] == "Bearer sesame"


async def test_check_says_what_the_worker_is(tmp_path):
    worker = StandIn(script, tokens=RENDERER.encode(PROBE, False), honours=False)
    async with serving_worker(worker.app()) as url:
        lost = "http://127.0.0.1:9"
        command = [
            sys.executable,
            "-m",
            "eaglegate.server",
            "check",
            "--port",
            "0",
            *workers.GATEWAY,
        ]
        found = await asyncio.to_thread(
            subprocess.run,
            [*command, "--upstream", f"{url},{lost}"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "a request's own depth is not honoured" in found.stdout
    assert f"The worker {lost} was not ready" in found.stdout
    assert "Nothing found would stop it" in found.stdout
