"""Cline's CLI on chat completions."""

from __future__ import annotations

import pytest

from tests.clients.brain import call
from tests.clients.desk import Desk, Ran

pytestmark = pytest.mark.client("cline")

SWITCHES = {"CLINE_TELEMETRY_DISABLED": "1", "CLINE_DISABLE_AUTO_UPDATE": "1"}


def cline(desk: Desk, *arguments: str) -> Ran:
    return desk.run("cline", "cline", *arguments, env=SWITCHES)


def configure(desk: Desk) -> None:
    ran = cline(desk, "auth", "-p", "openai", "-k", "none", "-m", "demo", "-b", f"{desk.url}/v1")
    assert ran.code == 0, ran


def ask(desk: Desk, prompt: str, *options: str) -> Ran:
    return cline(desk, "--json", "-P", "openai", "-m", "demo", *options, prompt)


def said(ran: Ran) -> str:
    assert ran.code == 0, ran
    (result,) = [event for event in ran.events if event["type"] == "run_result"]
    return result["text"]


def test_edits(desk):
    """reads a file, edits it, runs a command"""
    configure(desk)
    file = desk.write("hello.txt", "Hello wrld\n")
    desk.brain.plays["fix"] = [
        call("read_files", files=[{"path": str(file)}]),
        call("editor", path=str(file), old_text="wrld", new_text="world"),
        call("run_commands", commands=["cat hello.txt"]),
        "<think>\nIt is right now.\n</think>\n\nFixed.",
    ]
    assert said(ask(desk, "play:fix Fix the typo.")) == "Fixed."
    assert desk.read("hello.txt") == "Hello world\n"
    assert "Hello world" in desk.brain.during("fix")[-1].last


def test_mcp(desk):
    """uses the tools of an MCP server"""
    configure(desk)
    added = cline(desk, "mcp", "add", "desk", "--yes", "--", *desk.mcp_command)
    assert added.code == 0, added
    desk.brain.plays["ask"] = [
        call(".*lookup", topic="door"),
        call(".*remember", note="4711"),
        "Noted.",
    ]
    assert said(ask(desk, "play:ask Note it.")) == "Noted."
    assert desk.notes.read_text() == "4711\n"


def test_sub_agent(desk):
    """hands a task to a sub-agent and reads its report"""
    configure(desk)
    desk.brain.plays["delegate"] = [
        call("spawn_agent", systemPrompt="Look.", task="play:dig Look."),
        "The word is heron.",
    ]
    desk.brain.plays["dig"] = [call("run_commands", commands=["echo deep"]), "It is deep."]
    first = ask(desk, "play:delegate Delegate.")
    assert said(first) == "The word is heron."
    assert "It is deep." in desk.brain.during("delegate")[-1].text
