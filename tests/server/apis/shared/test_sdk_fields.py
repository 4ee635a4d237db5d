"""Decisions about the SDKs' fields are what the request models do, and docs/api.md names them."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from eaglegate.server.apis.chat.request import ChatRequest
from eaglegate.server.apis.completions.to_job import CompletionRequest
from eaglegate.server.apis.messages.request import CountTokensRequest, MessagesRequest
from eaglegate.server.apis.responses.request import ResponsesRequest
from tests.clients.sdk_fields import FIELDS, IGNORED, REFUSED, WORKS, list_undecided
from tests.conftest import ROOT

MODELS = {
    "chat": ChatRequest,
    "completions": CompletionRequest,
    "messages": MessagesRequest,
    "count_tokens": CountTokensRequest,
    "responses": ResponsesRequest,
}
TEXT = (ROOT / "docs" / "api.md").read_text("utf-8")
WORDS = set(re.findall(r"[a-z_]+", TEXT))
UNSAID = {
    "model", "guided_decoding_backend", "guided_whitespace_pattern", "add_special_tokens",
    "return_tokens_as_token_ids", "prompt_embeds", "prefill", "stream_options",
}  # fmt: skip
"""Fields that explain themselves, or that vLLM no longer has and whose refusal says enough."""


@pytest.mark.parametrize("api", MODELS)
def test_the_models_do_what_was_decided(api):
    model, decisions = MODELS[api], FIELDS[api]
    known, refused = set(model.model_fields), set(model.refused)
    by_decision = {
        one: {field for field, decision in decisions.items() if decision == one}
        for one in (WORKS, REFUSED, IGNORED)
    }
    assert by_decision[REFUSED] <= refused
    assert by_decision[WORKS] <= known
    assert not (by_decision[IGNORED] | by_decision[WORKS]) & refused


@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
def test_the_sdk_that_is_here_has_no_field_without_a_decision(sdk):
    script = ROOT / "tests" / "clients" / "scripts" / "sdk_fields.py"
    ran = subprocess.run([sys.executable, script, sdk], capture_output=True, text=True, check=True)
    assert not list_undecided(json.loads(ran.stdout))


def test_a_new_field_is_noticed():
    assert list_undecided({"chat": ["model", "mood"]}) == ["chat: mood"]


@pytest.mark.parametrize("model", MODELS.values())
def test_every_field_is_documented(model):
    fields = set(model.model_fields) | set(model.refused)
    assert not fields - WORDS - UNSAID


def test_every_endpoint_is_documented(lab):
    for path in lab.app.openapi()["paths"]:
        if path.startswith(("/v1/chat", "/v1/comp", "/v1/resp", "/v1/mess", "/tok", "/detok")):
            assert re.sub(r"/\{.*", "", path) in TEXT
