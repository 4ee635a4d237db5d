"""GitHub Copilot's CLI with a provider of one's own, on the Responses API."""

from __future__ import annotations

import pytest

from tests.clients.brain import call
from tests.clients.desk import Desk, Ran

pytestmark = pytest.mark.client("copilot")

SWITCHES = {
    "COPILOT_PROVIDER_TYPE": "openai",
    "COPILOT_PROVIDER_WIRE_API": "responses",
    "COPILOT_PROVIDER_API_KEY": "none",
    "COPILOT_PROVIDER_MODEL_ID": "gpt-5.4",
    "COPILOT_PROVIDER_WIRE_MODEL": "demo",
    "COPILOT_OFFLINE": "true",
    "COPILOT_AUTO_UPDATE": "false",
}
PATCH = """\
*** Begin Patch
*** Update File: hello.txt
@@
-Hello wrld
+Hello world
*** End Patch
"""


def copilot(desk: Desk, prompt: str, *options: str) -> Ran:
    environment = SWITCHES | {"COPILOT_PROVIDER_BASE_URL": f"{desk.url}/v1"}
    command = ("copilot", "-p", prompt, "--allow-all-tools", "--output-format", "json", *options)
    return desk.run("copilot", *command, env=environment)


def said(ran: Ran) -> str:
    """The last message of the agent."""
    assert ran.code == 0, ran
    messages = [event["data"] for event in ran.events if event["type"] == "assistant.message"]
    return messages[-1]["content"]


def test_patches(desk):
    """patches a file by a custom tool with a grammar, as under a GPT-5 id; runs a command"""
    desk.write("hello.txt", "Hello wrld\n")
    desk.brain.plays["fix"] = [
        call("apply_patch", input=PATCH),
        call("bash", command="cat hello.txt", description="check"),
        "Fixed.",
    ]
    ran = copilot(desk, "play:fix Fix the typo.")
    (patch,) = [tool for tool in desk.traffic.to("/responses")[0].json["tools"]
                if tool.get("name") == "apply_patch"]  # fmt: skip
    assert (patch["type"], patch["format"]["type"]) == ("custom", "grammar")
    assert said(ran) == "Fixed."
    assert desk.read("hello.txt") == "Hello world\n"
