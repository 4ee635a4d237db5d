"""Anthropic content blocks to chat template messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from server.apis.messages.request import (
    Block,
    CountTokensRequest,
    InputMessage,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from server.apis.shared.request import OpenModel
from server.apis.shared.template import MediaPolicy, is_newest, join


def system_message(request: CountTokensRequest) -> Iterator[dict[str, Any]]:
    system = request.system
    text = system if isinstance(system, str) else "\n".join(b.text for b in system or ())
    if text:
        yield {"role": "system", "content": text}


def template_messages(request: CountTokensRequest, replaces: bool) -> Iterator[dict[str, Any]]:
    """``replaces``: non-text content becomes a placeholder. Raises InvalidRequest."""
    given = request.messages
    newest = is_newest([message.role for message in given])
    for at, message in enumerate(given):
        path = f"messages[{at}].content"
        if isinstance(message.content, str):
            yield {"role": message.role, "content": message.content}
        elif message.role == "assistant":
            yield _assistant(message.content, path, MediaPolicy(replaces))
        else:
            here = MediaPolicy(replaces and not newest[at])
            yield from _user_messages(message, message.content, path, here, MediaPolicy(replaces))


def _assistant(blocks: Sequence[Block], path: str, media: MediaPolicy) -> dict[str, Any]:
    text: list[str] = []
    thinking: list[str] = []
    calls: list[dict[str, Any]] = []
    for at, block in enumerate(blocks):
        match block:
            case TextBlock():
                text.append(block.text)
            case ThinkingBlock():
                thinking.append(block.thinking)
            case ToolUseBlock():
                function = {"name": block.name, "arguments": block.input}
                calls.append({"id": block.id, "type": "function", "function": function})
            case RedactedThinkingBlock():
                pass
            case _:
                text.append(_text(block, f"{path}[{at}]", media))
    out: dict[str, Any] = {"role": "assistant", "content": join(text)}
    if thinking:
        out["reasoning"] = out["reasoning_content"] = "".join(thinking)
    if calls:
        out["tool_calls"] = calls
    return out


def _user_messages(
    message: InputMessage,
    blocks: Sequence[Block],
    path: str,
    media: MediaPolicy,
    in_results: MediaPolicy,
) -> Iterator[dict[str, Any]]:
    """Each tool result becomes a message; so does each run of text around it."""
    text: list[str] = []
    for at, block in enumerate(blocks):
        if isinstance(block, ToolResultBlock):
            if text:
                yield {"role": message.role, "content": "\n".join(text)}
                text = []
            yield _result(block, f"{path}[{at}].content", in_results)
        else:
            text.append(_text(block, f"{path}[{at}]", media))
    if text:
        yield {"role": message.role, "content": "\n".join(text)}


def _result(block: ToolResultBlock, path: str, media: MediaPolicy) -> dict[str, Any]:
    content = block.content
    if not isinstance(content, str):
        texts = [_text(part, f"{path}[{at}]", media) for at, part in enumerate(content or ())]
        content = "\n".join(texts)
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def _text(block: OpenModel, path: str, media: MediaPolicy) -> str:
    if isinstance(block, TextBlock):
        return block.text
    readable = _extract_text(block.model_dump())
    return media.text(str(getattr(block, "type", "")), path) if readable is None else readable


def _extract_text(block: dict[str, Any]) -> str | None:
    """The text of a document, a search result or a tool reference; None if it has none."""
    if block.get("type") == "tool_reference":
        return _lines(block.get("tool_name")) or None
    if block.get("type") == "search_result":
        return _lines(block.get("title"), block.get("source"), _join_texts(block.get("content")))
    source = block.get("source")
    if block.get("type") != "document" or not isinstance(source, dict):
        return None
    text = (
        source.get("data") if source.get("type") == "text" else _join_texts(source.get("content"))
    )
    return _lines(block.get("title"), text) if isinstance(text, str) else None


def _join_texts(content: Any) -> str | None:
    """Text, or a list of text blocks; None for anything else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = [block.get("text") if isinstance(block, dict) else None for block in content]
    found = [text for text in texts if isinstance(text, str)]
    return "\n".join(found) if found and len(found) == len(texts) else None


def _lines(*parts: Any) -> str:
    return "\n".join(part for part in parts if isinstance(part, str) and part)
