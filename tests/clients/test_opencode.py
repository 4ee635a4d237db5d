"""opencode on chat completions, through the AI SDK's compatible provider."""

from __future__ import annotations

import json

import pytest

from tests.clients.brain import call
from tests.clients.desk import Desk, Ran

pytestmark = pytest.mark.client("opencode")

SWITCHES = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
}


def configure(
    desk: Desk, package: str = "@ai-sdk/openai-compatible", context: int = 200_000
) -> None:
    limit = {"context": context, "output": 4000}
    provider = {
        "npm": package,
        "options": {"baseURL": f"{desk.url}/v1", "apiKey": "none"},
        "models": {"demo": {"name": "demo", "limit": limit, "tool_call": True, "reasoning": True}},
    }
    config = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {"local": provider},
        "model": "local/demo",
        "small_model": "local/demo",
        "autoupdate": False,
        "share": "disabled",
        "permission": {"edit": "allow", "bash": "allow", "webfetch": "deny"},
        "mcp": {"desk": {"type": "local", "command": desk.mcp_command, "enabled": True}},
    }
    desk.write("opencode.json", json.dumps(config))


def opencode(desk: Desk, *arguments: str) -> Ran:
    return desk.run("opencode", "opencode", "run", "--format", "json", *arguments, env=SWITCHES)


def said(ran: Ran) -> str:
    assert ran.code == 0, ran
    texts = [event["part"]["text"] for event in ran.events if event["type"] == "text"]
    assert texts, ran
    return texts[-1]


def test_edits(desk):
    """reads a file, edits it, runs a command"""
    configure(desk)
    file = desk.write("hello.txt", "Hello wrld\n")
    desk.brain.plays["fix"] = [
        call("read", filePath=str(file)),
        call("edit", filePath=str(file), oldString="wrld", newString="world"),
        call("bash", command="cat hello.txt", description="check"),
        "<think>\nIt is right now.\n</think>\n\nFixed.",
    ]
    assert said(opencode(desk, "play:fix Fix the typo.")) == "Fixed."
    assert desk.read("hello.txt") == "Hello world\n"
    assert "Hello world" in desk.brain.during("fix")[-1].last


def test_mcp(desk):
    """uses the tools of an MCP server"""
    configure(desk)
    desk.brain.plays["ask"] = [
        call("desk_lookup", topic="door"),
        call("desk_remember", note="4711"),
        "Noted.",
    ]
    assert said(opencode(desk, "play:ask Note it.")) == "Noted."
    assert desk.notes.read_text() == "4711\n"


def test_sub_agent_and_resume(desk):
    """hands a task to a sub-agent; resumes the session in a new process"""
    configure(desk)
    desk.brain.plays["delegate"] = [
        call("task", description="look", prompt="play:dig Look.", subagent_type="general"),
        "The word is heron.",
    ]
    desk.brain.plays["dig"] = [call("bash", command="echo deep", description="look"), "It is deep."]
    assert said(opencode(desk, "play:delegate Delegate.")) == "The word is heron."
    assert "It is deep." in desk.brain.during("delegate")[-1].text
    desk.brain.plays["second"] = ["Still heron."]
    assert said(opencode(desk, "--continue", "play:second Which word?")) == "Still heron."
    assert "The word is heron." in desk.brain.during("second")[-1].text


def test_compaction(desk):
    """compacts a conversation that fills its context and goes on"""
    configure(desk, context=24_000)
    desk.brain.rules["summar"] = "A word was chosen: heron."
    desk.brain.plays["grow"] = [
        call("bash", command="seq 3000", description="grow"),
        "The word is heron.",
    ]
    first = opencode(desk, "play:grow Grow.")
    assert first.code == 0, first
    desk.brain.plays["second"] = ["Still heron."]
    assert said(opencode(desk, "--continue", "play:second Which word?")) == "Still heron."
    assert "A word was chosen: heron." in desk.brain.during("second")[-1].text
