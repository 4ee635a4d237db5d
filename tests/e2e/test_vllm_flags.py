"""Flags that people bring from ``vllm serve``, tried by the OpenAI SDK on the demo model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.conftest import RunningGateway, serving
from tests.engine.vllm_backend.lora import make_adapter

pytestmark = pytest.mark.slow

PAGE = "https://page.example"
LONG = [{"role": "user", "content": "Tell me a story about a cat. " * 40}]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("flags")
    flags = (
        "--root-path=/llm", f'--allowed-origins=["{PAGE}"]', "--enable-prompt-tokens-details",
        "--chat-template-content-format=string", '--hf-overrides={"max_position_embeddings": 1024}',
        "--enable-lora", "--lora-modules", f"polite={make_adapter(folder / 'polite', 3)}",
    )  # fmt: skip
    with serving(folder / "serve.log", flags) as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: RunningGateway) -> OpenAI:
    return OpenAI(base_url=f"{gateway.url}/llm/v1", api_key="none", max_retries=0)


def ask(client: OpenAI, model: str = "demo", **fields):
    return client.chat.completions.create(
        model=model, messages=LONG, temperature=0, max_tokens=40, **fields
    )


def test_prefix_adapters_and_lengths(client):
    served = {model.id: model for model in client.models.list()}
    assert set(served) == {"demo", "polite"}
    assert served["demo"].max_model_len == 1024
    base, adapted = ask(client), ask(client, "polite")
    assert base.choices[0].message != adapted.choices[0].message
    again = ask(client)
    assert again.usage.prompt_tokens_details.cached_tokens > 0


def test_pages_of_an_allowed_origin_may_read_the_answer(client):
    raw = client.chat.completions.with_raw_response.create(
        model="demo", messages=LONG, max_tokens=4, extra_headers={"Origin": PAGE}
    )
    assert raw.headers["access-control-allow-origin"] == PAGE
