"""Items of the Responses API: validation, listing, and conversion to chat template messages."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from eaglegate.server.access.notices import Notices
from eaglegate.server.apis.responses import client_tools
from eaglegate.server.apis.responses.request import (
    InputItem,
    ItemPart,
    ItemReference,
    MessageItem,
    OtherItem,
    ReasoningItem,
    ResponsesRequest,
)
from eaglegate.server.apis.shared.encryption import CannotDecrypt
from eaglegate.server.apis.shared.images import has_source, read_source
from eaglegate.server.apis.shared.template import (
    MediaPolicy,
    TemplatePart,
    custom_call,
    is_newest,
    join_lines,
    join_parts,
    parse_arguments,
)
from eaglegate.server.errors import InvalidRequest

ItemDict = Mapping[str, Any]
Decrypt = Callable[[str], str]
"""Decrypts ``encrypted_content``. Raises CannotDecrypt."""

REFERENCE = "item_reference"
TRACES = (
    "file_search_call",
    "image_generation_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_list_tools",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
)
TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "shell_call": "sh",
    "shell_call_output": "sho",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "apply_patch_call": "apc",
    "apply_patch_call_output": "apco",
}


def new_id(kind: str) -> str:
    return f"{PREFIXES[kind]}_{uuid.uuid4().hex}"


def read_input(
    request: ResponsesRequest, decrypt: Decrypt, media: MediaPolicy
) -> list[dict[str, Any]]:
    """Return the input items, each with an id. Raises InvalidRequest for non-text content."""
    if isinstance(request.input, str):
        user_items = [{"type": "message", "role": "user", "content": request.input}]
        return [_complete_item(item) for item in user_items if item["content"]]
    return read_items(request.input, "input", decrypt, media)


def read_items(
    items: Sequence[InputItem], param: str, decrypt: Decrypt, media: MediaPolicy
) -> list[dict[str, Any]]:
    """Return the client's items as the API lists them. Raises InvalidRequest for non-text content.

    References stay in place until ``resolve_references`` replaces them. ``media`` is the policy for
    earlier images and files.
    """
    newest = is_newest([_speaker(item) for item in items])
    out = []
    for index, item in enumerate(items):
        path = f"{param}[{index}]"
        if isinstance(item, ItemReference):
            out.append({"type": REFERENCE, "id": item.id, "place": path})
        elif not _is_skipped(item, param, media.notices):
            members = _check_item(item, path, decrypt, media.in_message(newest[index]))
            out.append(_complete_item(members))
            media.paths[out[-1]["id"]] = path
    return out


def _speaker(item: InputItem) -> str:
    """Return the chat role that wrote the item."""
    if isinstance(item, MessageItem):
        return item.role
    return "tool" if item.type.endswith("_output") else "assistant"


def _is_skipped(item: InputItem, param: str, notices: Notices) -> bool:
    """Return True for a trace of a hosted tool, whose result is in the messages that follow."""
    if item.type not in TRACES:
        return False
    notices.ignore(f"{param}[{item.type}]", "This gateway has no hosted tools")
    return True


def _check_item(item: InputItem, path: str, decrypt: Decrypt, media: MediaPolicy) -> dict[str, Any]:
    if isinstance(item, OtherItem):
        raise InvalidRequest(
            f"'{path}' has type '{item.type}', which is not supported: this gateway has no "
            "hosted tools and takes complete items only.",
            param=path,
        )
    parts = getattr(item, "content", None) or getattr(item, "output", None) or ()
    if not isinstance(parts, str) and item.type not in client_tools.OUTPUTS:
        _check_parts(parts, path, _speaker(item), media)
    members = item.model_dump(exclude_none=True)
    if isinstance(item, ReasoningItem) and item.encrypted_content is not None:
        text = _decrypt_text(item.encrypted_content, f"{path}.encrypted_content", decrypt)
        return members | {"content": [{"type": "reasoning_text", "text": text}]}
    return members


def _decrypt_text(token: str, path: str, decrypt: Decrypt) -> str:
    """Decrypt the reasoning, which takes precedence over any plain text in the item."""
    try:
        return decrypt(token)
    except CannotDecrypt as error:
        raise InvalidRequest(
            f"'{path}' cannot be decrypted: {error}. Send it unchanged, or leave the item out.",
            param=path,
            code="invalid_encrypted_content",
        ) from None


def _check_parts(parts: Iterable[ItemPart], path: str, role: str, media: MediaPolicy) -> None:
    for index, part in enumerate(parts):
        if part.type in (*TEXT_PARTS, "refusal"):
            continue
        place = f"{path}.content[{index}]"
        if media.reads(part.type, role):
            read_source(part.model_dump(), place)
        else:
            media.text(part.type, place)


def _complete_item(item: dict[str, Any]) -> dict[str, Any]:
    """Return the item as the API lists it: with id and status, and with text as parts."""
    kind = item["type"]
    out = {"id": new_id(kind), "status": "completed"} | item
    if kind == "message" and isinstance(item["content"], str):
        assistant = item["role"] == "assistant"
        part = {"type": "output_text" if assistant else "input_text", "text": item["content"]}
        out["content"] = [part | ({"annotations": [], "logprobs": []} if assistant else {})]
    if kind == "reasoning":
        out.setdefault("summary", [])
    return out


def messages(items: Iterable[ItemDict], media: MediaPolicy) -> Iterator[dict[str, Any]]:
    """Yield template messages. Consecutive reasoning, text and calls of the assistant become one
    message. Images are added to ``media``.
    """
    turn: dict[str, Any] = {}
    for item in items:
        if item["type"] == "reasoning":
            turn = _open(turn)
            _add(turn, ("reasoning", "reasoning_content"), _reasoning_text(item))
        elif item["type"] in ("function_call", "custom_tool_call", *client_tools.CALLS):
            turn = _open(turn)
            turn.setdefault("tool_calls", []).append(_call(item))
        elif item.get("role") == "assistant":
            turn = _open(turn)
            parts = _convert_parts(item, "content", "assistant", media)
            _add(turn, ("content",), "\n".join(str(part) for part in parts if part))
        else:
            if turn:
                yield turn
            turn = {}
            yield _plain_message(item, media)
    if turn:
        yield turn


def _reasoning_text(item: ItemDict) -> str:
    """Return the reasoning, or its summary if there is none."""
    summary = (part["text"] for part in item.get("summary") or ())
    parts = item.get("content") or ()
    return "\n".join(filter(None, map(_read_text, parts))) or "\n\n".join(summary)


def _open(turn: dict[str, Any]) -> dict[str, Any]:
    return turn or {"role": "assistant", "content": ""}


def _add(turn: dict[str, Any], names: Iterable[str], text: str) -> None:
    for name in names:
        turn[name] = "\n".join(filter(None, (turn.get(name), text)))


def _plain_message(item: ItemDict, media: MediaPolicy) -> dict[str, Any]:
    if item["type"] in ("function_call_output", "custom_tool_call_output"):
        parts = [part for part in _convert_parts(item, "output", "tool", media) if part]
        return {"role": "tool", "tool_call_id": item["call_id"], "content": join_lines(parts)}
    if item["type"] in client_tools.OUTPUTS:
        call_id, content = client_tools.read_output(item)
        return {"role": "tool", "tool_call_id": call_id, "content": content}
    role = item["role"]
    return {"role": role, "content": join_parts(role, _convert_parts(item, "content", role, media))}


def _call(item: ItemDict) -> dict[str, Any]:
    if item["type"] in client_tools.CALLS:
        kind, arguments = client_tools.read_call(item)
        invocation = {"name": kind, "arguments": arguments}
        return {"id": item["call_id"], "type": "function", "function": invocation}
    namespace, name = item.get("namespace"), item["name"]
    name = flat_name(namespace, name) if namespace else name
    if item["type"] == "custom_tool_call":
        return custom_call(item["call_id"], name, item["input"])
    function = {"name": name, "arguments": parse_arguments(item["arguments"])}
    return {"id": item["call_id"], "type": "function", "function": function}


def _convert_parts(
    item: ItemDict, member: str, role: str, media: MediaPolicy
) -> list[TemplatePart]:
    content = item[member]
    if isinstance(content, str):
        return [content]
    path = f"{media.paths.get(item['id'], item['id'])}.content"
    return [
        _convert_part(part, f"{path}[{index}]", role, media)
        for index, part in enumerate(content or ())
    ]


def _convert_part(
    part: Mapping[str, Any], path: str, role: str, media: MediaPolicy
) -> TemplatePart:
    """Return the template's part. Parts of a new item were checked on arrival. A stored one may
    have an image that was not, because a model that reads text only received it.
    """
    text = _read_text(part)
    if text is not None:
        return text
    if media.reads(part["type"], role) and has_source(part):
        return media.convert(part, path, role)
    return media.placeholder(part["type"])


def _read_text(part: Mapping[str, Any]) -> str | None:
    if part["type"] in TEXT_PARTS or part["type"] == "refusal":
        return part.get("text") or part.get("refusal") or ""
    return None


def flat_name(namespace: str, name: str) -> str:
    """Return the flat name of a tool in a namespace, in vLLM's format."""
    return f"{namespace}__{name}"
