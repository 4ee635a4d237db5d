"""Request models of Anthropic's POST /v1/messages and /v1/messages/count_tokens, and the conversion
of their content blocks to template messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, Tag, model_validator

from eaglegate.server.apis.shared.fields import (
    KV_TRANSFER,
    Many,
    OpenModel,
    RequestModel,
    SpeculationMetrics,
    tag_parts,
)
from eaglegate.server.apis.shared.request import MAX_MESSAGES, MAX_TOOLS
from eaglegate.server.apis.shared.template import (
    MediaPolicy,
    TemplatePart,
    is_newest,
    join_lines,
)
from eaglegate.server.errors import InvalidRequest
from eaglegate.text.rendering.template import strip_billing

TOOL_CHANGES = ("tool_addition", "tool_removal")


class TextBlock(OpenModel):
    type: Literal["text"]
    text: str


class ThinkingBlock(OpenModel):
    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(OpenModel):
    """Accepted because clients send back received blocks. Templates cannot show it."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(OpenModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class OtherBlock(OpenModel):
    """Images, documents and hosted tools. They are parsed so that the error can name their type."""

    type: str


class ToolResultBlock(OpenModel):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Many[TextBlock | OtherBlock] | None = None
    is_error: bool | None = None


_KINDS = {
    "text": "Text",
    "thinking": "Thinking",
    "redacted_thinking": "Redacted",
    "tool_use": "Use",
    "tool_result": "Result",
}
Block = Annotated[
    Annotated[TextBlock, Tag("Text")]
    | Annotated[ThinkingBlock, Tag("Thinking")]
    | Annotated[RedactedThinkingBlock, Tag("Redacted")]
    | Annotated[ToolUseBlock, Tag("Use")]
    | Annotated[ToolResultBlock, Tag("Result")]
    | Annotated[OtherBlock, Tag("Other")],
    tag_parts(_KINDS),
]


class InputMessage(OpenModel):
    """A message. ``clear_at`` says when a system message is removed."""

    role: Literal["user", "assistant", "system"]
    content: str | Many[Block]
    clear_at: Literal["next_user_message", "never"] | None = None
    output_config: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_output_config(self) -> Self:
        if self.output_config:
            raise InvalidRequest(
                "'output_config' is not supported in a message: it applies to the whole request. "
                "Give it next to 'messages'.",
                param="messages[].output_config",
                code="unsupported_parameter",
            )
        return self


class MessageTool(OpenModel):
    """A tool. ``type`` names a tool defined by Anthropic; it is absent or custom for a function.

    ``allowed_callers`` may name code that Anthropic runs, in addition to the model.
    """

    name: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    input_examples: Many[dict[str, Any]] | None = None
    allowed_callers: Many[str] | None = None
    strict: bool | None = None


class MessageToolChoice(RequestModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(OpenModel):
    """Thinking options. The budget is enforced if the engine knows how reasoning ends."""

    type: str
    budget_tokens: Annotated[int, Field(ge=0)] | None = None


class OutputFormat(OpenModel):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(RequestModel):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None

    refused: ClassVar[Mapping[str, str]] = {
        "task_budget": "no budget is counted across requests; use 'max_tokens'",
    }


class Container(OpenModel):
    id: str | None = None
    skills: Many[dict[str, Any]] | None = None


class ContextEdit(OpenModel):
    type: str
    keep: Any = None


class ContextManagement(OpenModel):
    edits: Many[ContextEdit] | None = None


class CountTokensRequest(RequestModel):
    """The fields that determine the prompt."""

    model: str | None = None
    messages: Annotated[Many[InputMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: str | Many[TextBlock] | None = None
    tools: Annotated[Many[MessageTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """Older name of ``output_config.format``."""
    cache_control: dict[str, Any] | None = None
    speed: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    refused: ClassVar[Mapping[str, str]] = KV_TRANSFER | {
        "mcp_servers": "this gateway calls no MCP servers; connect to them in the client",
        "prefill": "send the beginning as the last assistant message",
        "watermarking": "this engine adds no watermark",
    }


class MessagesRequest(CountTokensRequest):
    """Anthropic's fields for a text model, and the speculation fields."""

    max_tokens: Annotated[int, Field(ge=1)]
    stream: bool | None = None
    stop_sequences: Annotated[Many[str], Field(max_length=16)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    context_management: ContextManagement | None = None
    diagnostics: dict[str, Any] | None = None
    inference_geo: str | None = None
    container: str | Container | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    num_speculative_tokens: Annotated[int, Field(ge=0)] | None = None
    per_request_spec_decode_metrics: SpeculationMetrics | None = None
    return_steps: bool | None = None

    refused: ClassVar[Mapping[str, str]] = {
        **CountTokensRequest.refused,
        "compaction": "this gateway summarizes no conversations; ask for a summary in a message",
        "thread": "this gateway keeps no conversations; send all messages",
    }
    refusal_details: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "thread": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
    }
    """With these details, Anthropic's tool runners retry with the whole conversation and without
    ``thread``.
    """


UNSHOWN = ("fallback", "mcp_tool_listing", *TOOL_CHANGES)
"""Blocks that the model does not see. Anthropic's models do not see them either."""


def _list_shown(messages: Sequence[InputMessage]) -> Iterator[tuple[int, InputMessage]]:
    """Yield the messages that the model sees, with their positions in the request."""
    last_user = max(
        (index for index, item in enumerate(messages) if item.role == "user"), default=-1
    )
    for index, message in enumerate(messages):
        if message.clear_at == "next_user_message" and index < last_user:
            continue
        yield index, message


def system_message(request: CountTokensRequest) -> Iterator[dict[str, Any]]:
    system = request.system
    yield from _join_system([system] if isinstance(system, str) else [b.text for b in system or ()])


def _join_system(texts: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield a system message, unless nothing is left of its texts."""
    if text := "\n".join(filter(None, map(strip_billing, texts))):
        yield {"role": "system", "content": text}


def template_messages(request: CountTokensRequest, media: MediaPolicy) -> Iterator[dict[str, Any]]:
    """Yield the messages for the chat template. Raises InvalidRequest.

    ``media`` is the policy for the non-text parts of earlier messages.
    """
    messages = request.messages
    newest = is_newest([message.role for message in messages])
    for index, message in _list_shown(messages):
        path = f"messages[{index}].content"
        if isinstance(message.content, str) and message.role == "system":
            yield from _join_system([message.content])
        elif isinstance(message.content, str):
            yield {"role": message.role, "content": message.content}
        elif message.role == "assistant":
            yield _assistant(message.content, path, media)
        else:
            in_message = media.in_message(newest[index])
            yield from _user_messages(message, message.content, path, in_message, media)


def _assistant(blocks: Sequence[Block], path: str, media: MediaPolicy) -> dict[str, Any]:
    text: list[str] = []
    thinking: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        match block:
            case OtherBlock() if block.type in UNSHOWN:
                pass
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
                text.append(str(_convert(block, f"{path}[{index}]", "assistant", media)))
    out: dict[str, Any] = {"role": "assistant", "content": "\n".join(text)}
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
    """Yield one message per tool result, and one per run of text between tool results."""
    parts: list[TemplatePart] = []
    for index, block in enumerate(blocks):
        if isinstance(block, ToolResultBlock):
            if parts:
                yield {"role": message.role, "content": join_lines(parts)}
                parts = []
            yield _result(block, f"{path}[{index}].content", in_results)
        elif block.type not in UNSHOWN:
            parts.append(_convert(block, f"{path}[{index}]", message.role, media))
    if message.role == "system":
        yield from _join_system(map(str, parts))
    elif parts or not blocks:
        yield {"role": message.role, "content": join_lines(parts)}


def _result(block: ToolResultBlock, path: str, media: MediaPolicy) -> dict[str, Any]:
    content = block.content
    parts: list[TemplatePart] = (
        [content]
        if isinstance(content, str)
        else [
            _convert(part, f"{path}[{index}]", "tool", media)
            for index, part in enumerate(content or ())
        ]
    )
    if block.is_error:
        parts = _mark_error(parts)
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": join_lines(parts)}


def _mark_error(parts: list[TemplatePart]) -> list[TemplatePart]:
    first_text = parts[0] if parts and isinstance(parts[0], str) else ""
    if first_text.lower().startswith("error"):
        return parts
    return [f"Error: {first_text}", *(parts[1:] if parts and isinstance(parts[0], str) else parts)]


def _convert(block: OpenModel, path: str, role: str, media: MediaPolicy) -> TemplatePart:
    if isinstance(block, TextBlock):
        return block.text
    members = block.model_dump()
    readable = _extract_text(members)
    return media.convert(members, path, role) if readable is None else readable


def _extract_text(block: dict[str, Any]) -> str | None:
    """Return the text of a document, search result, summary or tool reference; None if there is
    none.
    """
    if block.get("type") == "tool_reference":
        return _lines(block.get("tool_name")) or None
    if block.get("type") == "compaction" and isinstance(block.get("content"), str):
        return str(block["content"])
    if block.get("type") == "search_result":
        return _lines(block.get("title"), block.get("source"), _join_texts(block.get("content")))
    source = block.get("source")
    if block.get("type") != "document" or not isinstance(source, dict):
        return None
    text = (
        source.get("data") if source.get("type") == "text" else _join_texts(source.get("content"))
    )
    fields = (block.get("title"), block.get("context"), text)
    return _lines(*fields) if isinstance(text, str) else None


def _join_texts(content: Any) -> str | None:
    """Return a text, or the joined texts of a list of text blocks; None for anything else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = [block.get("text") if isinstance(block, dict) else None for block in content]
    strings = [text for text in texts if isinstance(text, str)]
    return "\n".join(strings) if strings and len(strings) == len(texts) else None


def _lines(*parts: Any) -> str:
    return "\n".join(part for part in parts if isinstance(part, str) and part)
