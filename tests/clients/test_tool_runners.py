"""The tool runners of Anthropic's own SDKs, which ask for threads first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.brain import call

SCRIPTS = Path(__file__).parent / "scripts"


def run_loop(desk, client, script, stream):
    desk.traffic.expects_refusals = True
    desk.brain.plays["weather"] = [call("weather", city="Oslo"), "It rains in Oslo."]
    ran = desk.run_script(client, SCRIPTS / script, desk.url, *filter(None, [stream]))
    assert ran.code == 0, ran
    assert json.loads(ran.out) == {"cities": ["Oslo"], "text": "It rains in Oslo."}
    tried, *asked = desk.traffic.to("/v1/messages")
    assert (tried.status, tried.json["thread"]) == (400, {"type": "create"})
    assert [one.status for one in asked] == [200, 200]
    assert all("thread" not in one.json for one in asked)
    assert [message["role"] for message in asked[-1].json["messages"]] == [
        "user", "assistant", "user",
    ]  # fmt: skip


@pytest.mark.client("anthropic")
@pytest.mark.parametrize("stream", ["", "stream"])
def test_python(desk, stream):
    """runs its tool runner: a thread is refused, and the whole conversation is sent"""
    run_loop(desk, "anthropic", "anthropic_runner.py", stream)


@pytest.mark.client("anthropic-js")
@pytest.mark.parametrize("stream", ["", "stream"])
def test_node(desk, stream):
    """runs its tool runner: a thread is refused, and the whole conversation is sent"""
    run_loop(desk, "anthropic-js", "anthropic_runner.mjs", stream)
