"""Prompts that do not fit the context: the same answer on every API, whatever makes the prompt."""

from __future__ import annotations

import importlib.util
import re
from functools import lru_cache
from typing import Any

import pytest

from eaglegate.server.errors import InvalidRequest, context_overflow
from eaglegate.server.generation.job import fit
from eaglegate.server.generation.prompt import AS_FITS, prompt_limits, room_for_messages, shorten
from eaglegate.text.rendering.encoding import PromptTooLong
from eaglegate.text.rendering.renderer import ModelFiles, TemplateRenderer
from tests.server.conftest import DEMO, Lab, PlainRenderer

LONGEST = 256
"""The context of the lab's engine, and of the vLLM renderer below."""
RENDERERS = ("scripted", "files", "vllm")
SENTENCE = "This model's maximum context length is 256 tokens. However, your {} resulted in"


@lru_cache
def renderer_of(kind: str) -> Any:
    if kind == "files":
        return TemplateRenderer(ModelFiles.find(str(DEMO), None, None))
    from eaglegate.engine.vllm_backend.arguments import make_demo_arguments
    from eaglegate.engine.vllm_backend.renderer import VllmRenderer

    return VllmRenderer(make_demo_arguments(max_model_len=LONGEST))


@pytest.fixture(params=RENDERERS)
def lab(request) -> Lab:
    if request.param == "scripted":
        return Lab(PlainRenderer())
    if request.param == "vllm" and importlib.util.find_spec("vllm") is None:
        pytest.skip("needs vLLM")
    return Lab(renderer_of(request.param))


def user(words: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "word " * words}]


def turns(count: int) -> list[dict[str, Any]]:
    return [
        {"role": ("user", "assistant")[at % 2], "content": f"{at} " + "word " * 30}
        for at in range(count)
    ]


def body_of(api: str, words: int) -> tuple[str, dict[str, Any]]:
    if api == "chat":
        return "/v1/chat/completions", {"messages": user(words)}
    if api == "completions":
        return "/v1/completions", {"prompt": "word " * words}
    if api == "responses":
        return "/v1/responses", {"input": user(words)}
    return "/v1/messages", {"messages": user(words), "max_tokens": 9}


LIMIT = {"responses": "max_output_tokens"}
OPENAI = ("chat", "completions", "responses")


async def ask(lab: Lab, api: str, words: int, **fields: Any) -> Any:
    url, body = body_of(api, words)
    return await lab.post(url, {"model": "demo"} | body | fields)


def num_prompt(lab: Lab) -> int:
    return len(lab.engine.requests[-1].prompt)


@pytest.mark.thorough
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("api", "param"), [("chat", "messages"), ("completions", "prompt"), ("responses", "input")]
)
async def test_openai_s_words(lab, api, param, stream):
    answer = await ask(lab, api, 700, stream=stream)
    assert answer.status == 400
    error = answer.json["error"]
    assert error["message"].startswith(SENTENCE.format(param))
    assert error["message"].endswith(f"Please reduce the length of the {param}.")
    assert (error["type"], error["code"], error["param"]) == (
        "invalid_request_error",
        "context_length_exceeded",
        param,
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_s_words(lab, stream):
    answer = await ask(lab, "messages", 700, stream=stream)
    counted = await lab.post("/v1/messages/count_tokens", {"model": "demo", "messages": user(700)})
    tokens = counted.json["input_tokens"]
    assert tokens > LONGEST
    assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
    assert answer.json["error"]["message"] == f"prompt is too long: {tokens} tokens > 256 maximum"


def test_the_sentence_that_clients_compute_with():
    """Claude Code reads the three numbers and asks for less."""
    with pytest.raises(InvalidRequest, match=r"exceed context limit: 256 \+ 99 > 256, decrease"):
        fit("messages", 256, 99, 0, 256)


def test_a_prompt_that_does_not_fit_alone_is_told_without_the_answer():
    """The error leaves the answer's length out: asking for fewer tokens would not help."""
    with pytest.raises(InvalidRequest, match="messages resulted in 300 tokens"):
        fit("chat", 300, 99, 0, 256)
    with pytest.raises(InvalidRequest, match="300 tokens > 256 maximum"):
        fit("messages", 300, 99, 0, 256)


def test_a_prompt_that_was_not_read_to_its_end_has_at_least_so_many_tokens():
    chat = context_overflow("chat", 300, 0, 256, exact=False)
    assert "your messages resulted in at least 300 tokens." in str(chat)
    anthropic = str(context_overflow("messages", 300, 0, 256, exact=False))
    assert anthropic == "prompt is too long: at least 300 tokens > 256 maximum"
    claude_code = re.search(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)", anthropic)
    assert claude_code is not None
    assert claude_code.groups() == ("300", "256")


@pytest.mark.parametrize(("asked", "tokens"), [(0, 56), (1, 1), (55, 55), (56, 56), (57, 56)])
def test_an_answer_has_what_was_asked_for_or_what_is_left(asked, tokens):
    assert fit("chat", 200, asked, 0, 256) == tokens


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("keep", "side", "kept"),
    [
        (None, "left", range(300)),
        (20, "left", range(280, 300)),
        (20, "right", range(20)),
        (AS_FITS, "left", range(45, 300)),
        (AS_FITS, "right", range(255)),
        (400, "left", range(300)),
    ],
)
async def test_token_ids_are_cut_as_text_is(lab, keep, side, kept):
    assert shorten(list(range(300)), keep, side, 256) == list(kept)
    limits = prompt_limits(keep, side, 256)
    text = "word " * 400
    if keep is None:
        with pytest.raises(PromptTooLong):
            lab.renderer.encode(text, False, limits)
        return
    whole = lab.renderer.encode(text, False)
    expected = whole[-limits.keep :] if side == "left" else whole[: limits.keep]
    assert lab.renderer.encode(text, False, limits) == expected
    assert limits.keep == (255 if keep == AS_FITS else keep)


@pytest.mark.parametrize(("asked", "room"), [(0, 399), (1, 399), (10, 390), (100, 300), (999, 300)])
def test_room_for_an_answer_is_kept_up_to_a_quarter(asked, room):
    assert room_for_messages(asked, 400) == room


@pytest.mark.parametrize("api", [*OPENAI, "messages"])
async def test_a_limit_above_what_is_left_is_fitted(lab, api):
    lab.says("one two three " * 90)
    name = LIMIT.get(api, "max_tokens")
    answer = await ask(lab, api, 50, **{name: 32_000})
    assert answer.status == 200
    asked = lab.engine.requests[-1]
    assert asked.sampling.max_tokens == LONGEST - num_prompt(lab)
    body = answer.json
    if api == "responses":
        assert body["status"] == "incomplete"
        assert body["incomplete_details"] == {"reason": "max_output_tokens"}
        assert body["max_output_tokens"] == 32_000
    elif api == "messages":
        assert body["stop_reason"] == "max_tokens"
    else:
        assert body["choices"][0]["finish_reason"] == "length"


async def exactly(lab: Lab, tokens: int) -> list[int]:
    return (await lab.post("/tokenize", {"prompt": "word " * 400})).json["tokens"][:tokens]


async def test_a_prompt_that_fills_the_context(lab):
    """The last place is for the answer."""
    lab.says("x")
    prompt = await exactly(lab, LONGEST - 1)
    assert (await ask(lab, "completions", 0, prompt=prompt)).status == 200
    assert lab.engine.requests[-1].sampling.max_tokens == 1
    error = (await ask(lab, "completions", 0, prompt=await exactly(lab, LONGEST))).json["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert "you requested 272 tokens (256 in the prompt, 16 in the completion)" in error["message"]


async def test_more_tokens_at_least_than_there_is_room_for(lab):
    answer = await ask(lab, "chat", 50, min_tokens=250, max_tokens=251)
    error = answer.json["error"]
    assert (answer.status, error["code"]) == (400, "context_length_exceeded")
    assert "250 in the completion" in error["message"]


@pytest.mark.thorough
@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_a_prompt_can_be_cut(lab, api, side):
    lab.says("x")
    asked = {} if side is None else {"truncation_side": side}
    _, body = body_of(api, 700)
    answer = await ask(lab, api, 700, truncate_prompt_tokens=20, **asked)
    assert answer.status == 200
    whole = (await lab.post("/tokenize", body)).json["tokens"]
    expected = whole[:20] if side == "right" else whole[-20:]
    assert lab.engine.requests[-1].prompt == tuple(expected)


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_a_prompt_can_be_cut_to_what_fits(lab, api):
    lab.says("x")
    assert (await ask(lab, api, 700, truncate_prompt_tokens=-1)).status == 200
    assert num_prompt(lab) == LONGEST - 1


async def test_the_oldest_messages_can_be_left_out(lab):
    lab.says("x")
    answer = await ask(lab, "responses", 0, input=turns(12), truncation="auto")
    assert answer.status == 200
    assert 20 < num_prompt(lab) < LONGEST
    said = lab.renderer.decode(lab.engine.requests[-1].prompt)
    assert "11 word" in said
    assert "0 word" not in said.replace("10 word", "")


async def test_a_large_limit_leaves_nothing_out(lab):
    """The limit is fitted; only what does not fit goes."""
    lab.says("x")
    for limit in (None, 32_000):
        answer = await ask(
            lab, "responses", 0, input=turns(3), truncation="auto", max_output_tokens=limit
        )
        assert answer.status == 200
    assert lab.engine.requests[0].prompt == lab.engine.requests[1].prompt
