"""Tools that a conversation adds and removes along the way, in blocks of system messages.

A chat template lists tools only once, so the answer uses the tools that exist at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from eaglegate.server.apis.messages.request import (
    TOOL_CHANGES,
    CountTokensRequest,
    MessageTool,
    OtherBlock,
)
from eaglegate.server.errors import InvalidRequest


def list_tools(request: CountTokensRequest) -> list[MessageTool]:
    """Return the request's tools and those defined along the way, without the removed ones."""
    tools = list(request.tools or ())
    removed_names: set[str] = set()
    for path, block in _find_changes(request):
        definition = (block.model_extra or {}).get("tool")
        tool = definition if isinstance(definition, dict) else {}
        if tool.get("type") == "tool_definition":
            tools.append(_define(tool.get("definition"), f"{path}.tool.definition"))
        elif tool.get("type") != "tool_reference" or not isinstance(tool.get("name"), str):
            raise InvalidRequest(
                f"'{path}.tool' must be a tool_reference with a name, or a tool_definition: this "
                "gateway has no MCP servers.",
                param=f"{path}.tool",
            )
        elif block.type == "tool_removal":
            removed_names.add(tool["name"])
        else:
            removed_names.discard(tool["name"])
    return [tool for tool in tools if tool.name not in removed_names]


def _find_changes(request: CountTokensRequest) -> Iterator[tuple[str, OtherBlock]]:
    for index, message in enumerate(request.messages):
        if isinstance(message.content, str):
            continue
        for block_index, block in enumerate(message.content):
            if isinstance(block, OtherBlock) and block.type in TOOL_CHANGES:
                yield f"messages[{index}].content[{block_index}]", block


def _define(definition: Any, path: str) -> MessageTool:
    try:
        return MessageTool.model_validate(definition)
    except ValidationError:
        raise InvalidRequest(
            f"'{path}' must be a tool in the format of 'tools'.", param=path
        ) from None
