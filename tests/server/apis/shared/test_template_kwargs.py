"""Template arguments of a request: the same on every endpoint and in every renderer."""

from __future__ import annotations

import inspect

import pytest

from eaglegate.text.rendering.renderer import ModelFiles, TemplateRenderer
from eaglegate.text.rendering.template import RESERVED
from tests.server.conftest import DEMO, Lab

pytestmark = pytest.mark.thorough

SAY = [{"role": "user", "content": "hi"}]
ENDPOINTS = {
    "/v1/chat/completions": {"messages": SAY},
    "/v1/messages": {"messages": SAY, "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": SAY},
    "/v1/responses": {"input": "hi"},
    "/tokenize": {"messages": SAY},
}
NEVER = (
    "chat_template", "tokenize", "return_tensors", "conversation", "padding", "max_length",
    "truncation", "messages", "tools", "return_dict", "bos_token", "raise_exception", "range",
)  # fmt: skip


@pytest.fixture
def templated() -> Lab:
    lab = Lab(renderer=TemplateRenderer(ModelFiles.find(str(DEMO), None, None)))
    lab.says("yes")
    return lab


@pytest.mark.parametrize("url", ENDPOINTS)
@pytest.mark.parametrize("name", NEVER)
async def test_names_of_the_engine_are_refused(templated, url, name):
    body = {"model": "demo", **ENDPOINTS[url], "chat_template_kwargs": {name: "{{ 7 * 7 }}"}}
    answer = await templated.post(url, body)
    assert answer.status == 400
    assert f"chat_template_kwargs.{name}" in answer.json["error"]["message"]


async def counted(lab: Lab, **kwargs: object) -> int:
    body = {"model": "demo", "messages": SAY, "chat_template_kwargs": kwargs}
    answer = await lab.post("/tokenize", body)
    assert answer.status == 200, answer.body
    return answer.json["count"]


async def test_variables_the_template_reads_reach_it(templated):
    assert await counted(templated, enable_thinking=False) > await counted(templated)


@pytest.mark.parametrize("url", ENDPOINTS)
async def test_a_trusted_template_is_rendered(templated, url):
    own = {"chat_template": "{{ 7 * 7 }}{{ mood }}", "mood": "gay"}
    body = {"model": "demo", **ENDPOINTS[url], "chat_template_kwargs": own}
    templated.change_model(trusts_templates=True)
    assert (await templated.post(url, body)).status == 200
    assert await counted(templated, **own) == len(templated.renderer.encode("49gay", False))


def test_every_argument_of_the_tokenizer_is_reserved():
    transformers = pytest.importorskip("transformers")
    known = inspect.signature(transformers.PreTrainedTokenizerBase.apply_chat_template).parameters
    assert known.keys() - {"self", "documents", "kwargs"} <= RESERVED


@pytest.mark.parametrize("role", ["assistant", "tool", "function"])
async def test_a_message_without_content_is_empty(templated, role):
    answer = await templated.chat(messages=[{"role": role, "content": None}, *SAY])
    assert answer.status == 200, answer.body
