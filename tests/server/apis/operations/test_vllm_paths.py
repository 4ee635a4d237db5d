"""Paths of ``vllm serve`` beside the APIs: /ping, /load, /invocations, /tokenizer_info."""

from __future__ import annotations

import asyncio

import pytest

from eaglegate.engine.scripted import Pause
from eaglegate.engine.types import Step
from eaglegate.text.events import FinishReason
from eaglegate.text.rendering.renderer import ModelFiles, TemplateRenderer
from tests.server.conftest import DEMO, EOS, make_app

pytestmark = pytest.mark.thorough

CHAT = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
async def test_ping_says_without_a_key_whether_requests_are_served(lab, method):
    lab.admit("user")
    answer = await lab.call(method, "/ping")
    assert (answer.status, answer.body) == (200, b"")
    lab.engine.dead = "gone"
    answer = await lab.call(method, "/ping")
    assert (answer.status, answer.body) == (503, b"")
    assert answer.headers["retry-after"] == "5"
    lab.gateway.stop()
    assert (await lab.call(method, "/ping")).status == 503


async def test_load_counts_what_is_under_way(lab):
    assert (await lab.get("/load")).json == {"server_load": 0}
    word = Step(tuple(lab.renderer.encode("word", False)))
    lab.engine.script = [word, Pause(0.2), Step(word.token_ids, finish=FinishReason.STOP)]
    running = [asyncio.create_task(lab.chat(stream=True)) for _ in range(3)]
    while (await lab.get("/load")).json != {"server_load": 3}:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await asyncio.gather(*running)
    assert (await lab.get("/load")).json == {"server_load": 0}


async def test_an_invocation_is_answered_by_the_api_of_its_body(lab):
    lab.says("one two")
    chat = (await lab.post("/invocations", CHAT)).json
    assert chat["object"] == "chat.completion"
    assert chat["choices"][0]["message"]["content"] == "one two"
    completion = (await lab.post("/invocations", {"model": "demo", "prompt": "hi"})).json
    assert completion["object"] == "text_completion"
    both = (await lab.post("/invocations", CHAT | {"prompt": "hi"})).json
    assert both["object"] == "chat.completion", "as vLLM decides"
    streamed = await lab.post("/invocations", CHAT | {"stream": True})
    assert streamed.done
    assert streamed.chunks[0]["object"] == "chat.completion.chunk"


@pytest.mark.parametrize("body", [{}, {"input": "hi"}, [1], "text"])
async def test_an_invocation_of_no_api_is_refused(lab, body):
    answer = await lab.post("/invocations", body)
    assert answer.status == 400
    assert "'messages'" in answer.json["error"]["message"]


async def test_an_invocation_is_read_as_strictly_as_its_api_reads_it(lab):
    for body in (b'{"messages": [], "messages": []}', b"{", b'{"prompt": NaN}'):
        assert (await lab.post("/invocations", body)).status == 400
    wrong = await lab.post("/invocations", CHAT | {"temperature": "hot"})
    assert wrong.json["error"]["param"] == "temperature"


async def test_the_tokenizer_s_configuration_is_shown_where_that_is_asked_for(lab):
    absent = await lab.get("/tokenizer_info")
    assert absent.status == 404
    assert "without --enable-tokenizer-info-endpoint" in absent.json["error"]["message"]
    lab.configure(enable_tokenizer_info_endpoint=True)
    lab.app = make_app(lab)
    info = (await lab.get("/tokenizer_info")).json
    assert info == {
        "tokenizer_class": "PlainTokenizer",
        "eos_token": EOS,
        "chat_template": "{{ 1 }}",
    }


def test_tokenizer_files_are_shown_without_paths(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((DEMO / "tokenizer.json").read_bytes())
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(
        '{"eos_token": {"content": "<e>", "lstrip": false}, "pad_token": "<p>", "bos_token": null,'
        ' "vocab_file": "/secret/vocab", "model_max_length": 9, "chat_template": "T",'
        ' "added_tokens_decoder": {"0": {"content": "<a>", "special": true}}}'
    )
    files = ModelFiles.find(str(folder), None, None)
    expected = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<e>",
        "pad_token": "<p>",
        "bos_token": None,
        "model_max_length": 9,
        "chat_template": "T",
        "added_tokens_decoder": {"0": "<a>"},
    }
    assert TemplateRenderer(files).tokenizer_info() == expected
    assert TemplateRenderer(files, "{{ 2 }}").tokenizer_info()["chat_template"] == "{{ 2 }}"


@pytest.mark.slow
def test_vllm_and_files_say_the_same_of_the_demo():
    from eaglegate.engine.vllm_backend.arguments import make_demo_arguments
    from eaglegate.engine.vllm_backend.renderer import VllmRenderer

    ours = TemplateRenderer(ModelFiles.find(str(DEMO), None, None)).tokenizer_info()
    theirs = VllmRenderer(make_demo_arguments()).tokenizer_info()
    for name in ("eos_token", "pad_token", "bos_token", "chat_template"):
        assert ours.get(name) == theirs.get(name), name
