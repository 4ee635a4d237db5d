"""OpenAI's Agents SDK for JavaScript."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.brain import call

pytestmark = pytest.mark.client("agents-js")

SCRIPT = Path(__file__).parent / "scripts" / "openai_agents.mjs"
REPORT = {"city": "Oslo", "degrees": 12}


@pytest.mark.parametrize("api", ["chat_completions", "responses"])
def test_agents(desk, api):
    """runs a tool loop whole and streamed, a second turn, a typed result, a handoff"""
    look = [call("weather", city="Oslo"), "It rains in Oslo."]
    desk.brain.plays["weather"] = look
    desk.brain.plays["thanks"] = ["You are welcome."]
    desk.brain.plays["text"] = [json.dumps(REPORT)]
    desk.brain.plays["handoff"] = [call("transfer_to_forecaster"), *look]
    ran = desk.run_script("agents-js", SCRIPT, api, desk.url)
    assert ran.code == 0, ran
    assert json.loads(ran.out) == {
        "whole": "It rains in Oslo.",
        "streamed": "It rains in Oslo.",
        "second": "You are welcome.",
        "typed": REPORT,
        "handed": ["forecaster", "It rains in Oslo."],
        "cities": ["Oslo", "Oslo", "Oslo"],
    }
