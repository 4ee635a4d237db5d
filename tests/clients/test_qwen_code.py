"""Qwen Code on chat completions."""

from __future__ import annotations

import json

import pytest

from tests.clients.brain import call
from tests.clients.desk import Desk, Ran

pytestmark = pytest.mark.client("qwen")


def configure(desk: Desk) -> None:
    command, *arguments = desk.mcp_command
    settings = {
        "security": {"auth": {"selectedType": "openai"}},
        "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "mcpServers": {"desk": {"command": command, "args": arguments, "trust": True}},
    }
    folder = desk.home / ".qwen"
    folder.mkdir(exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(settings))


def qwen(desk: Desk, *arguments: str) -> Ran:
    environment = {
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": f"{desk.url}/v1",
        "OPENAI_MODEL": "demo",
    }
    return desk.run("qwen", "qwen", "--yolo", *arguments, env=environment)


def said(ran: Ran) -> str:
    assert ran.code == 0, ran
    return ran.out.strip().splitlines()[-1]


def test_edits(desk):
    """reads a file, edits it, runs a command"""
    configure(desk)
    file = desk.write("hello.txt", "Hello wrld\n")
    desk.brain.plays["fix"] = [
        call("read_file", file_path=str(file)),
        call("edit", file_path=str(file), old_string="wrld", new_string="world"),
        call("run_shell_command", command="cat hello.txt", is_background=False),
        "<think>\nIt is right now.\n</think>\n\nFixed.",
    ]
    assert said(qwen(desk, "-p", "play:fix Fix the typo.")) == "Fixed."
    assert desk.read("hello.txt") == "Hello world\n"
    assert "Exit Code: 0" in desk.brain.during("fix")[-1].last


def test_mcp(desk):
    """uses the tools of an MCP server"""
    configure(desk)
    desk.brain.plays["ask"] = [
        call("tool_search", query="select:mcp__desk__lookup,mcp__desk__remember"),
        call("tool_call", name="mcp__desk__lookup", arguments={"topic": "door"}),
        call("tool_call", name="mcp__desk__remember", arguments={"note": "4711"}),
        "Noted.",
    ]
    assert said(qwen(desk, "-p", "play:ask Note it.")) == "Noted."
    assert desk.notes.read_text() == "4711\n"


def test_sub_agent_and_resume(desk):
    """hands a task to a sub-agent; resumes the session in a new process"""
    configure(desk)
    desk.brain.plays["delegate"] = [
        call(
            "task|agent",
            description="look",
            prompt="play:dig Look.",
            subagent_type="general-purpose",
        ),
        "I wait.",  # for the notification, which is a message of the user
        "The word is heron.",
    ]
    desk.brain.plays["dig"] = [
        call("run_shell_command", command="echo deep", is_background=False),
        "It is deep.",
    ]
    assert said(qwen(desk, "-p", "play:delegate Delegate.")) == "The word is heron."
    assert "It is deep." in desk.brain.during("delegate")[-1].text
    desk.brain.plays["second"] = ["Still heron."]
    assert said(qwen(desk, "--continue", "-p", "play:second Which word?")) == "Still heron."
    assert "The word is heron." in desk.brain.during("second")[-1].text
