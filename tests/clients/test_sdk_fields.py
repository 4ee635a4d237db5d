"""Every field of the official SDKs' requests has a decision (``sdk_fields.py``)."""

from __future__ import annotations

import re

import pytest

from tests.clients.install import install
from tests.clients.pins import BY_NAME
from tests.clients.sdk_fields import list_undecided

INTERFACES = {
    "anthropic-js": {
        "messages": ("resources/messages/messages.d.ts", "resources/beta/messages/messages.d.ts"),
    },
    "openai-js": {
        "chat": ("resources/chat/completions/completions.d.ts",),
        "completions": ("resources/completions.d.ts",),
        "responses": ("resources/responses/responses.d.ts",),
    },
}
BASE = re.compile(r"export interface \w+CreateParamsBase \{\n(.*?)\n\}", re.DOTALL)
FIELD = re.compile(r"^    '?(\w+)'?\??:", re.MULTILINE)


@pytest.mark.client("openai-js")
def test_openai_for_node():
    """has no field of a request that this gateway has not decided on"""
    assert not list_undecided(read_interfaces("openai-js"))


@pytest.mark.client("anthropic-js")
def test_anthropic_for_node():
    """has no field of a request that this gateway has not decided on"""
    assert not list_undecided(read_interfaces("anthropic-js"))


def read_interfaces(client: str) -> dict:
    """The fields of requests, from the types that come with an SDK for Node."""
    package = install(BY_NAME[client]) / "node_modules" / BY_NAME[client].package
    found = {}
    for api, files in INTERFACES[client].items():
        bodies = [body for file in files for body in BASE.findall((package / file).read_text())]
        assert bodies, f"{client} has no requests of {api}"
        found[api] = sorted({name for body in bodies for name in FIELD.findall(body)})
        assert "model" in found[api]
    return found
