"""Claude Code on the Messages API."""

from __future__ import annotations

import base64
import json

import pytest

from tests.clients.brain import call
from tests.clients.desk import Desk, Ran

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
    file = desk.write("hello.txt", "Hello wrld\n")
    desk.brain.plays["fix"] = [
        call("Read", file_path=str(file)),
        call("Edit", file_path=str(file), old_string="wrld", new_string="world"),
        call("Bash", command="cat hello.txt", description="check"),
        "<think>\nIt is right now.\n</think>\n\nFixed.",
    ]
    assert result(claude(desk, "play:fix Fix the typo.")) == "Fixed."
    assert desk.read("hello.txt") == "Hello world\n"
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
    desk.brain.plays["delegate"] = [
        call(
            "Task|Agent",
            description="look",
            prompt="play:dig Look.",
            subagent_type="general-purpose",
            run_in_background=False,
        ),
        "Done.",
    ]
    desk.brain.plays["dig"] = [call("Read", file_path=str(file)), "It says: the bottom."]
    assert result(claude(desk, "play:delegate Delegate.")) == "Done."
    assert "It says: the bottom." in desk.brain.during("delegate")[-1].last


def test_mcp(desk):
    """uses the tools of an MCP server"""
    command, *arguments = desk.mcp_command
    servers = {"mcpServers": {"desk": {"command": command, "args": arguments}}}
    config = desk.folder / "mcp.json"
    config.write_text(json.dumps(servers))
    desk.brain.plays["ask"] = [
        call("ToolSearch", query="select:mcp__desk__lookup,mcp__desk__remember", max_results=5),
        call("mcp__desk__lookup", topic="door"),
        call("mcp__desk__remember", note="4711"),
        "Noted.",
    ]
    options = ("--mcp-config", str(config), "--strict-mcp-config")
    assert result(claude(desk, "play:ask Note it.", *options)) == "Noted."
    assert desk.notes.read_text() == "4711\n"


def test_resume(desk):
    """resumes a session in a new process"""
    desk.brain.plays["first"] = ["<think>\nhm\n</think>\n\nThe word is heron."]
    first = claude(desk, "play:first Choose a word.")
    desk.brain.plays["second"] = ["It is still heron."]
    session = json.loads(first.out)["session_id"]
    again = claude(desk, "play:second Which word?", "--resume", session)
    assert result(again) == "It is still heron."
    assert "The word is heron." in desk.brain.during("second")[-1].text


def test_small_context(make_desk):
    """works in a context of 40,960 tokens, of which it asks 32,000 for the answer"""
    desk = make_desk(40_960)
    file = desk.write("hello.txt", "Hello wrld\n")
    desk.brain.plays["fix"] = [call("Read", file_path=str(file)), "It says wrld."]
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
    desk.brain.plays["second"] = ["Still heron."]
    again = claude(desk, "play:second Which word?", "--resume", session)
    assert result(again) == "Still heron."
    assert "A word was chosen: heron." in desk.brain.during("second")[-1].text


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
