"""SDKs for JavaScript: Vercel's, four providers of two major versions, and OpenAI's for agents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.brain import call
from tests.clients.desk import Desk

SCRIPT = Path(__file__).parent / "scripts" / "ai_sdk.mjs"
TOOLS_SCRIPT = SCRIPT.with_name("anthropic_tools.mjs")
CLIENTS = [pytest.param(name, marks=pytest.mark.client(name)) for name in ("ai6", "ai7")]


def play(desk: Desk) -> None:
    thought = "<think>\nI look.\n</think>\n\n"
    desk.brain.plays["weather"] = [(thought, call("weather", city="Oslo")), "It rains in Oslo."]
    desk.brain.plays["thanks"] = ["You are welcome."]
    desk.brain.plays["object"] = ['{"city": "Oslo", "degrees": 12}']


@pytest.mark.parametrize("provider", ["openai", "openai-chat", "anthropic", "compatible"])
@pytest.mark.parametrize("client", CLIENTS)
def test_tool_loop(desk, client, provider):
    """runs a tool loop whole and streamed, a second turn, an object"""
    play(desk)
    ran = desk.run_script(client, SCRIPT, provider, desk.url)
    assert ran.code == 0, ran
    found = json.loads(ran.out)
    assert found["whole"] == found["streamed"] == "It rains in Oslo."
    assert found["cities"] == ["Oslo", "Oslo"]
    assert found["steps"] == 2
    assert found.get("reasoning") == (None if provider == "openai-chat" else "I look.")
    assert found["tokens"]
    assert found["finish"] == "stop"
    assert found["second"] == "You are welcome."
    assert found["object"] == {"city": "Oslo", "degrees": 12}
    after_calls = [
        seen.text for seen in desk.brain.during("weather") if seen.turns[-1][0] == "tool"
    ]
    assert len(after_calls) == 2
    assert all(("I look." in text) == (provider != "openai-chat") for text in after_calls)


@pytest.mark.parametrize("client", CLIENTS)
def test_anthropic_client_tools(desk, client):
    """runs Anthropic's tools for the shell, the editor and the computer"""
    edit = {"command": "str_replace", "path": "/a", "old_str": "b", "new_str": "c"}
    click = {"action": "left_click", "coordinate": [3, 4]}
    desk.brain.plays["tools"] = [
        call("bash", command="ls"),
        call("str_replace_based_edit_tool", **edit),
        call("computer", **click),
        "Done.",
    ]
    ran = desk.run_script(client, TOOLS_SCRIPT, desk.url)
    assert ran.code == 0, ran
    assert json.loads(ran.out) == {"calls": [{"command": "ls"}, edit, click], "text": "Done."}


AGENTS_SCRIPT = SCRIPT.with_name("openai_agents.mjs")
REPORT = {"city": "Oslo", "degrees": 12}


@pytest.mark.client("agents-js")
@pytest.mark.parametrize("api", ["chat_completions", "responses"])
def test_agents(desk, api):
    """runs a tool loop whole and streamed, a second turn, a typed result, a handoff"""
    look = [call("weather", city="Oslo"), "It rains in Oslo."]
    desk.brain.plays["weather"] = look
    desk.brain.plays["thanks"] = ["You are welcome."]
    desk.brain.plays["text"] = [json.dumps(REPORT)]
    desk.brain.plays["handoff"] = [call("transfer_to_forecaster"), *look]
    ran = desk.run_script("agents-js", AGENTS_SCRIPT, api, desk.url)
    assert ran.code == 0, ran
    assert json.loads(ran.out) == {
        "whole": "It rains in Oslo.",
        "streamed": "It rains in Oslo.",
        "second": "You are welcome.",
        "typed": REPORT,
        "handed": ["forecaster", "It rains in Oslo."],
        "cities": ["Oslo", "Oslo", "Oslo"],
    }
