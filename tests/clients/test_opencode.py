"""opencode on chat completions, through the AI SDK's compatible provider."""

from __future__ import annotations

import json

import pytest

from tests.clients.brain import call
from tests.clients.desk import Desk, Ran
from tests.clients.tasks import delegate, fix_typo, go_on, use_mcp, write_typo

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
    file = write_typo(desk)
    fix_typo(
        desk,
        lambda prompt: said(opencode(desk, prompt)),
        call("read", filePath=file),
        call("edit", filePath=file, oldString="wrld", newString="world"),
        call("bash", command="cat hello.txt", description="check"),
    )


def test_mcp(desk):
    """uses the tools of an MCP server"""
    configure(desk)
    turns = call("desk_lookup", topic="door"), call("desk_remember", note="4711")
    use_mcp(desk, lambda prompt: said(opencode(desk, prompt)), *turns)


def test_sub_agent_and_resume(desk):
    """hands a task to a sub-agent; resumes the session in a new process"""
    configure(desk)
    agent = call("task", description="look", prompt="play:dig Look.", subagent_type="general")
    dig = call("bash", command="echo deep", description="look")
    delegate(desk, lambda prompt: said(opencode(desk, prompt)), [agent], dig)
    go_on(desk, lambda prompt: said(opencode(desk, "--continue", prompt)))


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
    again = "A word was chosen: heron."
    go_on(desk, lambda prompt: said(opencode(desk, "--continue", prompt)), again)
