"""docs/api.md names every field of every request, and every endpoint."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eaglegate.server.apis.chat.request import ChatRequest
from eaglegate.server.apis.completions.to_job import CompletionRequest
from eaglegate.server.apis.messages.request import MessagesRequest
from eaglegate.server.apis.responses.request import ResponsesRequest

TEXT = (Path(__file__).parents[4] / "docs" / "api.md").read_text("utf-8")
WORDS = set(re.findall(r"[a-z_]+", TEXT))
UNSAID = {
    "model", "guided_decoding_backend", "guided_whitespace_pattern", "add_special_tokens",
    "return_tokens_as_token_ids", "prompt_embeds", "prefill", "stream_options",
}  # fmt: skip
"""Fields that explain themselves, or that vLLM no longer has and whose refusal says enough."""


@pytest.mark.parametrize(
    "model", [ChatRequest, CompletionRequest, ResponsesRequest, MessagesRequest]
)
def test_every_field_is_documented(model):
    fields = set(model.model_fields) | set(model.refused)
    assert not fields - WORDS - UNSAID


def test_every_endpoint_is_documented(lab):
    for path in lab.app.openapi()["paths"]:
        if path.startswith(("/v1/chat", "/v1/comp", "/v1/resp", "/v1/mess", "/tok", "/detok")):
            assert re.sub(r"/\{.*", "", path) in TEXT
