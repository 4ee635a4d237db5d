"""Request models of POST /v1/messages and /v1/messages/count_tokens (Anthropic's format)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from server.apis.shared.fields import SpeculationMetrics
from server.apis.shared.request import MAX_MESSAGES, MAX_TOOLS, Many, OpenModel, RequestModel


class TextBlock(OpenModel):
    type: Literal["text"]
    text: str


class ThinkingBlock(OpenModel):
    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(OpenModel):
    """Accepted because clients send back what they received; templates cannot show it."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(OpenModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class OtherBlock(OpenModel):
    """Images, documents, hosted tools: parsed so that the error can name their type."""

    type: str


class ToolResultBlock(OpenModel):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Many[TextBlock | OtherBlock] | None = None
    is_error: bool | None = None


def _kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return _KINDS.get(kind, "Other") if isinstance(kind, str) else "Other"


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
    Discriminator(_kind),
]


class InputMessage(OpenModel):
    role: Literal["user", "assistant", "system"]
    content: str | Many[Block]


class MessageTool(OpenModel):
    """``type`` names a tool of Anthropic's, or is absent or custom for a function."""

    name: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class MessageToolChoice(RequestModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(OpenModel):
    """The budget bounds an enabled thinking where the engine knows how reasoning ends."""

    type: str
    budget_tokens: Annotated[int, Field(ge=0)] | None = None


class OutputFormat(OpenModel):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(RequestModel):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountTokensRequest(RequestModel):
    """The fields that determine the prompt."""

    model: str | None = None
    messages: Annotated[Many[InputMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: str | Many[TextBlock] | None = None
    tools: Annotated[Many[MessageTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = None
    speed: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    refused: ClassVar[Mapping[str, str]] = {
        "watermarking": "this engine adds no watermark",
        "prefill": "send the beginning as the last assistant message",
    }


class MessagesRequest(CountTokensRequest):
    """Anthropic's fields for a text model, and how far to speculate."""

    max_tokens: Annotated[int, Field(ge=1)]
    stream: bool | None = None
    stop_sequences: Annotated[Many[str], Field(max_length=16)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    context_management: dict[str, Any] | None = None
    diagnostics: dict[str, Any] | None = None
    inference_geo: str | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    num_speculative_tokens: Annotated[int, Field(ge=0)] | None = None
    per_request_spec_decode_metrics: SpeculationMetrics | None = None
