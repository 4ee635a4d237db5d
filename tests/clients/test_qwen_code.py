"""Qwen Code on chat completions."""

from __future__ import annotations

import json

import pytest

from tests.clients.brain import call
from tests.clients.desk import Desk, Ran
from tests.clients.tasks import delegate, fix_typo, go_on, use_mcp, write_typo

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
    file = write_typo(desk)
    fix_typo(
        desk,
        lambda prompt: said(qwen(desk, "-p", prompt)),
        call("read_file", file_path=file),
        call("edit", file_path=file, old_string="wrld", new_string="world"),
        call("run_shell_command", command="cat hello.txt", is_background=False),
        last="Exit Code: 0",
    )


def test_mcp(desk):
    """uses the tools of an MCP server"""
    configure(desk)
    use_mcp(
        desk,
        lambda prompt: said(qwen(desk, "-p", prompt)),
        call("tool_search", query="select:mcp__desk__lookup,mcp__desk__remember"),
        call("tool_call", name="mcp__desk__lookup", arguments={"topic": "door"}),
        call("tool_call", name="mcp__desk__remember", arguments={"note": "4711"}),
    )


def test_sub_agent_and_resume(desk):
    """hands a task to a sub-agent; resumes the session in a new process"""
    configure(desk)
    task = {"prompt": "play:dig Look.", "description": "look"}
    turns = [
        call("task|agent", subagent_type="general-purpose", **task),
        "I wait.",  # for the notification, which is a message of the user
    ]
    dig = call("run_shell_command", command="echo deep", is_background=False)
    delegate(desk, lambda prompt: said(qwen(desk, "-p", prompt)), turns, dig)
    go_on(desk, lambda prompt: said(qwen(desk, "--continue", "-p", prompt)))
