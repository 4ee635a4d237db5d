"""Requests of Codex CLI 0.169, reduced to one of each kind."""

from __future__ import annotations

from eaglegate.server.access.notices import HEADER
from tests.server.apis.responses.test_responses import said

BODY = {
    "model": "demo",
    "stream": True,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a201c4",
    "client_metadata": {"session_id": "01a201c4", "x-codex-turn-metadata": '{"sandbox":"none"}'},
    "input": [
        {
            "type": "message",
            "id": "msg_c6afdc9a",
            "role": "developer",
            "content": [{"type": "input_text", "text": "You are a coding agent."}],
        },
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "List the files."}],
        },
    ],
    "tools": [
        {
            "type": "function",
            "name": "exec_command",
            "description": "Runs a command.",
            "strict": False,
            "parameters": {
                "type": "object",
                "properties": {"cmd": {"type": "string"}},
                "required": ["cmd"],
                "additionalProperties": False,
            },
        },
        {
            "type": "namespace",
            "name": "mcp__sums",
            "description": "Tools of the MCP server.",
            "tools": [{"type": "function", "name": "add_up", "strict": False, "parameters": {}}],
        },
        {"type": "web_search", "external_web_access": False},
    ],
}


async def test_a_turn_is_answered(lab):
    lab.says('<tool_call>\n{"name": "exec_command", "arguments": {"cmd": "ls"}}\n</tool_call>', [4])
    answer = await lab.post("/v1/responses", BODY)
    assert answer.status == 200, answer.body
    assert answer.headers[HEADER] == "tools[web_search]"
    (call,) = said(answer)[-1]["response"]["output"]
    assert (call["name"], call["arguments"]) == ("exec_command", '{"cmd": "ls"}')
