"""Codex CLI on the Responses API."""

from __future__ import annotations

import json

import pytest

from tests.clients.desk import Desk, Ran

pytestmark = pytest.mark.client("codex")

CONFIG = """
model = "demo"
model_provider = "local"
model_context_window = {window}
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


def configure(desk: Desk, window: int = 200_000) -> None:
    command, *arguments = desk.mcp_command
    text = CONFIG.format(
        url=desk.url,
        window=window,
        command=json.dumps(command),
        arguments=json.dumps(arguments),
    )
    folder = desk.home / ".codex"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(text)


def codex(desk: Desk, *arguments: str) -> Ran:
    return desk.run("codex", "codex", "exec", "--json", "--skip-git-repo-check", *arguments)


def test_edits_a_file(desk):
    """reads, edits and checks a file with its shell and patch tools"""
    configure(desk)
    desk.write("hello.txt", "Hello wrld\n")
    desk.brain.plays["fix"] = [
        lambda seen: print(seen.tools) or "<think>\nI look.\n</think>\n\nLook.",
    ]
    ran = codex(desk, "play:fix Fix the typo.")
    print(ran)
    print("\n".join(map(str, desk.traffic.exchanges)))
    for s in desk.brain.seen:
        print(s.text[-3000:], s.num_tokens)
    assert ran.code == 0, ran
    assert 0
