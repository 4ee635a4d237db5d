"""The table of decisions about the SDKs' fields says what the request models do."""

from __future__ import annotations

import json
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


def test_a_new_field_or_type_is_noticed():
    found = {
        "chat": {"fields": ["model", "mood"], "types": {"text": ["text", "colour"], "new": []}}
    }
    assert list_undecided(found) == ["chat: mood", "chat: text.colour", "chat: type new"]
