"""Cline's CLI on chat completions, alone and under an editor's Agent Client Protocol."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.clients.brain import call
from tests.clients.desk import Desk, Ran, end_group
from tests.clients.tasks import delegate, fix_typo, use_mcp, write_typo

pytestmark = pytest.mark.client("cline")

SWITCHES = {"CLINE_TELEMETRY_DISABLED": "1", "CLINE_DISABLE_AUTO_UPDATE": "1"}
PROVIDER = {
    "CLINE_API_KEY": "none",
    "CLINE_PROVIDER": "openai-compatible",
    "CLINE_SESSION_BACKEND_MODE": "local",
}
"""Sessions run in the agent itself: those of Cline's daemon forget the model after a load."""


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
    file = write_typo(desk)
    fix_typo(
        desk,
        lambda prompt: said(ask(desk, prompt)),
        call("read_files", files=[{"path": file}]),
        call("editor", path=file, old_text="wrld", new_text="world"),
        call("run_commands", commands=["cat hello.txt"]),
    )


def test_mcp(desk):
    """uses the tools of an MCP server"""
    configure(desk)
    added = cline(desk, "mcp", "add", "desk", "--yes", "--", *desk.mcp_command)
    assert added.code == 0, added
    turns = call(".*lookup", topic="door"), call(".*remember", note="4711")
    use_mcp(desk, lambda prompt: said(ask(desk, prompt)), *turns)


def test_sub_agent(desk):
    """hands a task to a sub-agent and reads its report"""
    configure(desk)
    agent = call("spawn_agent", systemPrompt="Look.", task="play:dig Look.")
    dig = call("run_commands", commands=["echo deep"])
    delegate(desk, lambda prompt: said(ask(desk, prompt)), [agent], dig)


class Editor:
    """The editor's end of the protocol: JSON-RPC by lines."""

    def __init__(self, desk: Desk, agent: subprocess.Popen[str]) -> None:
        self._desk, self._agent = desk, agent
        self._count = 0
        self._call("initialize", protocolVersion=1, clientCapabilities={})

    def open(self, session: str | None = None) -> str:
        """A new session, or the one with that id; returns the id."""
        place = {"cwd": str(self._desk.project), "mcpServers": []}
        if session is None:
            session = str(self._call("session/new", **place)["sessionId"])
        else:
            self._call("session/load", sessionId=session, **place)
        self._call("session/set_model", sessionId=session, modelId="demo")
        return session

    def prompt(self, session: str, text: str) -> None:
        content = [{"type": "text", "text": text}]
        ended = self._call("session/prompt", sessionId=session, prompt=content)
        assert ended["stopReason"] == "end_turn", ended

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        self._write(id=self._count, method=method, params=params)
        assert self._agent.stdout
        for line in self._agent.stdout:
            said = json.loads(line)
            if said.get("method") == "session/request_permission":
                self._write(id=said["id"], result=allow(said["params"]["options"]))
            elif said.get("id") == self._count and "method" not in said:
                assert "result" in said, said
                return dict(said["result"] or {})
        raise AssertionError(f"the agent ended during {method}")

    def _write(self, **message: Any) -> None:
        assert self._agent.stdin
        self._agent.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._agent.stdin.flush()


def allow(options: list[dict[str, str]]) -> dict[str, Any]:
    """The answer of a person who clicks on "allow"."""
    chosen = next(option["optionId"] for option in options if option["kind"] == "allow_once")
    return {"outcome": {"outcome": "selected", "optionId": chosen}}


@contextmanager
def editor(desk: Desk) -> Iterator[Editor]:
    """An agent in a process of its own, until the block ends."""
    with (desk.folder / "acp.log").open("a") as log:
        agent = subprocess.Popen(
            ("cline", "--acp"),
            cwd=desk.project,
            env=desk.environment_of("cline") | SWITCHES | PROVIDER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            yield Editor(desk, agent)
        finally:
            end_group(agent.pid)
            agent.communicate()


def test_resume(desk):
    """runs under an editor (Agent Client Protocol); resumes the session in a new process"""
    configure(desk)
    desk.brain.plays["first"] = [call("run_commands", commands=["echo heron"]), "It is heron."]
    with editor(desk) as running:
        session = running.open()
        running.prompt(session, "play:first Which word?")
    desk.brain.plays["second"] = ["Still heron."]
    with editor(desk) as running:
        running.prompt(running.open(session), "play:second Which word again?")
    assert "It is heron." in desk.brain.during("second")[-1].text
