"""Codex CLI on the Responses API."""

from __future__ import annotations

import json

import pytest

from tests.clients.brain import Seen, call
from tests.clients.desk import Desk, Ran
from tests.clients.tasks import delegate, fix_typo, go_on, use_mcp, write_typo

pytestmark = pytest.mark.client("codex")

CONFIG = """
model = "{model}"
model_provider = "local"
model_context_window = 200_000
{more}
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
[analytics]
enabled = false
[feedback]
enabled = false
[model_providers.local]
name = "local"
base_url = "{url}/v1"
wire_api = "responses"
[mcp_servers.desk]
command = {command}
args = {arguments}
"""


def configure(desk: Desk, *more: str, model: str = "demo") -> None:
    command, *arguments = desk.mcp_command
    text = CONFIG.format(
        url=desk.url,
        model=model,
        more="\n".join(more),
        command=json.dumps(command),
        arguments=json.dumps(arguments),
    )
    folder = desk.home / ".codex"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(text)


def codex(desk: Desk, *arguments: str) -> Ran:
    return desk.run("codex", "codex", "exec", "--json", "--skip-git-repo-check", *arguments)


def said(ran: Ran) -> str:
    """The last message of the agent."""
    assert ran.code == 0, ran
    items = [event["item"] for event in ran.events if event["type"] == "item.completed"]
    return [item["text"] for item in items if item["type"] == "agent_message"][-1]


def session(ran: Ran) -> str:
    return next(event["thread_id"] for event in ran.events if "thread_id" in event)


PATCH = """apply_patch <<'EOF'
*** Begin Patch
*** Update File: hello.txt
@@
-Hello wrld
+Hello world
*** End Patch
EOF"""


def test_edits(desk):
    """reads a file, patches it, runs a command"""
    configure(desk)
    write_typo(desk)
    fix_typo(
        desk,
        lambda prompt: said(codex(desk, prompt)),
        ("<think>\nI look.\n</think>\n\nI look.\n", call("exec_command", cmd="cat hello.txt")),
        call("exec_command", cmd=PATCH),
        call("exec_command", cmd="cat hello.txt"),
    )


def test_mcp(desk):
    """uses the tools of an MCP server, a namespace on the wire"""
    configure(desk)
    turns = call("mcp__desk__lookup", topic="door"), call("mcp__desk__remember", note="4711")
    use_mcp(desk, lambda prompt: said(codex(desk, prompt)), *turns)


def test_sub_agent(desk):
    """hands a task to a sub-agent, waits for it and reads its report"""
    configure(desk)
    turns = [
        call(".*spawn_agent", message="play:dig Look."),
        lambda seen: call(".*wait_agent", targets=[agent_id(seen)], timeout_ms=30_000),
    ]
    dig = call("exec_command", cmd="echo deep")
    delegate(desk, lambda prompt: said(codex(desk, prompt)), turns, dig)


def agent_id(seen: Seen) -> str:
    return json.loads(seen.last)["agent_id"]


def test_resume(desk):
    """resumes a session in a new process"""
    configure(desk)
    desk.brain.plays["first"] = ["<think>\nhm\n</think>\n\nThe word is heron."]
    first = codex(desk, "play:first Choose a word.")
    go_on(desk, lambda prompt: said(codex(desk, "resume", session(first), prompt)))


def test_compaction(desk):
    """compacts a conversation that grows over its limit and goes on from the summary"""
    configure(desk, "model_auto_compact_token_limit = 16_000")
    desk.brain.rules["CONTEXT CHECKPOINT"] = "A word was chosen: heron."
    desk.brain.plays["grow"] = [call("exec_command", cmd="seq 4000"), "The word is heron."]
    first = codex(desk, "play:grow Grow.")
    assert first.code == 0, first
    again = ("resume", session(first))
    go_on(desk, lambda prompt: said(codex(desk, *again, prompt)), "A word was chosen: heron.")


def test_built_in_provider(desk):
    """goes on over HTTP after one try of a websocket, with its own provider at our address"""
    folder = desk.home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(f'model = "demo"\nopenai_base_url = "{desk.gateway}/v1"\n')
    desk.brain.plays["say"] = ["Said."]
    command = ("exec", "--json", "--skip-git-repo-check", "play:say Say it.")
    ran = desk.run(
        "codex", "codex", *command, env={"OPENAI_API_KEY": "none", "CODEX_API_KEY": "none"}
    )
    assert said(ran) == "Said."
    assert "econnecting" not in ran.out, ran


def test_overflow(make_desk):
    """says that the context is full, in its own words, when a prompt does not fit"""
    desk = make_desk(12_000)
    desk.traffic.expects_refusals = True
    configure(desk)
    ran = codex(desk, "Anything.")
    assert ran.code != 0, ran
    (failed,) = [event for event in ran.events if event["type"] == "turn.failed"]
    assert "ran out of room in the model's context window" in failed["error"]["message"]
