"""Claude Code on the Messages API."""

from __future__ import annotations

import base64
import json

import pytest

from tests.clients.brain import call
from tests.clients.desk import Desk, Ran
from tests.clients.tasks import delegate, fix_typo, go_on, use_mcp, write_typo

pytestmark = pytest.mark.client("claude")

DOT = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJ"
    "RU5ErkJggg=="
)
SWITCHES = {
    "ANTHROPIC_AUTH_TOKEN": "none",
    "ANTHROPIC_MODEL": "demo",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": "demo",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "IS_SANDBOX": "1",
}


def claude(desk: Desk, *arguments: str, **switches: str) -> Ran:
    environment = SWITCHES | {"ANTHROPIC_BASE_URL": desk.url} | switches
    options = ("--output-format", "json", "--permission-mode", "bypassPermissions")
    return desk.run("claude", "claude", "-p", *arguments, *options, env=environment)


def result(ran: Ran) -> str:
    assert ran.code == 0, ran
    said = json.loads(ran.out)
    assert not said["is_error"], ran
    return said["result"]


def test_edits(desk):
    """reads a file, edits it, runs a command"""
    file = write_typo(desk)
    fix_typo(
        desk,
        lambda prompt: result(claude(desk, prompt)),
        call("Read", file_path=file),
        call("Edit", file_path=file, old_string="wrld", new_string="world"),
        call("Bash", command="cat hello.txt", description="check"),
    )
    assert desk.brain.during("fix")[-1].last == "Hello world"


def test_calls_in_parallel(desk):
    """makes two calls in one turn"""
    one, two = desk.write("one.txt", "first"), desk.write("two.txt", "second")
    both = (call("Read", file_path=str(one)), call("Read", file_path=str(two)))
    desk.brain.plays["both"] = [both, "Read."]
    assert result(claude(desk, "play:both Read both.")) == "Read."
    results = [text for role, text in desk.brain.during("both")[-1].turns if role == "tool"]
    assert sorted(text.split()[1] for text in results) == ["first", "second"]


def test_sub_agent(desk):
    """hands a task to a sub-agent and reads its report"""
    file = desk.write("deep.txt", "the bottom")
    task = {"prompt": "play:dig Look.", "description": "look", "run_in_background": False}
    agent = call("Task|Agent", subagent_type="general-purpose", **task)
    dig = call("Read", file_path=str(file))
    delegate(desk, lambda prompt: result(claude(desk, prompt)), [agent], dig)


def test_mcp(desk):
    """uses the tools of an MCP server"""
    command, *arguments = desk.mcp_command
    servers = {"mcpServers": {"desk": {"command": command, "args": arguments}}}
    config = desk.folder / "mcp.json"
    config.write_text(json.dumps(servers))
    options = ("--mcp-config", str(config), "--strict-mcp-config")
    use_mcp(
        desk,
        lambda prompt: result(claude(desk, prompt, *options)),
        call("ToolSearch", query="select:mcp__desk__lookup,mcp__desk__remember", max_results=5),
        call("mcp__desk__lookup", topic="door"),
        call("mcp__desk__remember", note="4711"),
    )


def test_resume(desk):
    """resumes a session in a new process"""
    desk.brain.plays["first"] = ["<think>\nhm\n</think>\n\nThe word is heron."]
    session = json.loads(claude(desk, "play:first Choose a word.").out)["session_id"]
    go_on(desk, lambda prompt: result(claude(desk, prompt, "--resume", session)))


def test_small_context(make_desk):
    """works in a context of 40,960 tokens, of which it asks 32,000 for the answer"""
    desk = make_desk(40_960)
    desk.brain.plays["fix"] = [call("Read", file_path=write_typo(desk)), "It says wrld."]
    assert result(claude(desk, "play:fix Read it.")) == "It says wrld."


def test_prompt_too_long(make_desk):
    """understands the error for a prompt that is too long"""
    desk = make_desk(12_000)
    desk.traffic.expects_refusals = True
    ran = claude(desk, "Anything.")
    assert json.loads(ran.out)["is_error"]
    assert "Prompt is too long" in ran.out, ran


def test_compaction(desk):
    """compacts a conversation and goes on from the summary"""
    desk.brain.plays["first"] = ["The word is heron."]
    session = json.loads(claude(desk, "play:first Choose a word.").out)["session_id"]
    desk.brain.rules["summary"] = "<summary>A word was chosen: heron.</summary>"
    compacted = claude(desk, "/compact", "--resume", session)
    assert compacted.code == 0, compacted
    desk.brain.rules.clear()
    again = ("--resume", session)
    go_on(desk, lambda prompt: result(claude(desk, prompt, *again)), "A word was chosen: heron.")


def test_image(desk):
    """reads an image and goes on with it in the history"""
    picture = desk.project / "dot.png"
    picture.write_bytes(base64.b64decode(DOT))
    desk.brain.plays["see"] = [
        call("Read", file_path=str(picture)),
        "I cannot see it.",
    ]
    first = claude(desk, "play:see Describe dot.png.")
    assert result(first) == "I cannot see it."
    desk.brain.plays["after"] = ["Something else."]
    session = json.loads(first.out)["session_id"]
    assert result(claude(desk, "play:after Go on.", "--resume", session)) == "Something else."
