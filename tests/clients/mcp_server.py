"""A tiny MCP server on stdin and stdout: ``lookup`` knows one secret, ``remember`` keeps a note.

python mcp_server.py NOTES_FILE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SECRET = "the door code is 4711"
TEXT = {"type": "string"}
TOOLS = [
    {
        "name": "lookup",
        "description": "Look up a fact.",
        "inputSchema": {"type": "object", "properties": {"topic": TEXT}, "required": ["topic"]},
    },
    {
        "name": "remember",
        "description": "Keep a note.",
        "inputSchema": {"type": "object", "properties": {"note": TEXT}, "required": ["note"]},
    },
]


def answer(method: str, params: dict[str, Any], notes: Path) -> dict[str, Any]:
    match method:
        case "initialize":
            version = params.get("protocolVersion", "2025-06-18")
            about = {"name": "desk", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            return {"content": [{"type": "text", "text": use(params, notes)}]}
    return {}


def use(params: dict[str, Any], notes: Path) -> str:
    if params["name"] == "remember":
        with notes.open("a") as file:
            file.write(params["arguments"]["note"] + "\n")
        return "kept"
    return SECRET


def main() -> None:
    notes = Path(sys.argv[1])
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked and "method" in asked:
            result = answer(asked["method"], asked.get("params") or {}, notes)
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
