"""Ids of the items of the Responses API."""

from __future__ import annotations

import uuid

PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}


def new_id(kind: str) -> str:
    return f"{PREFIXES[kind]}_{uuid.uuid4().hex}"
