"""Request model of POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from eaglegate.server.apis.shared.fields import (
    CALL_DISCRIMINATOR,
    UNSUPPORTED_VLLM,
    CacheHints,
    CustomFormat,
    FunctionName,
    Many,
    OpenModel,
    OtherPart,
    ReasoningEffort,
    RefusalPart,
    RequestModel,
    ResponseFormat,
    SamplingFields,
    ServiceTier,
    TextPart,
    TokenCount,
    Verbosity,
    call_tag,
    tag_parts,
    type_of,
)
from eaglegate.server.apis.shared.request import MAX_MESSAGES, MAX_TOOLS


def _tool_tag(value: Any) -> str:
    kind = type_of(value)
    is_hosted = isinstance(kind, str) and kind not in ("function", "custom")
    return "Hosted" if is_hosted else call_tag(value)


_PARTS = {"text": "Text", "refusal": "Refusal"}
ChatPart = Annotated[
    Annotated[str, Tag("Plain")]
    | Annotated[TextPart, Tag("Text")]
    | Annotated[RefusalPart, Tag("Refusal")]
    | Annotated[OtherPart, Tag("Other")],
    tag_parts(_PARTS, "Plain"),
]
ChatContent = str | Many[ChatPart] | None


class FunctionCall(OpenModel):
    name: str
    arguments: str | dict[str, Any] | None = None


class FunctionToolCall(OpenModel):
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class CustomCall(OpenModel):
    name: str
    input: str


class CustomToolCall(OpenModel):
    id: str
    type: Literal["custom"]
    custom: CustomCall


ToolCall = Annotated[
    Annotated[FunctionToolCall, Tag("Function")] | Annotated[CustomToolCall, Tag("Custom")],
    CALL_DISCRIMINATOR,
]


Role = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
"""OpenAI's roles, and others that a chat template may support: observation, ipython, ..."""


class ChatMessage(OpenModel):
    role: Role
    content: ChatContent = None
    name: str | None = None
    tool_calls: Many[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class Function(RequestModel):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(RequestModel):
    type: Literal["function"] = "function"
    function: Function


class Custom(RequestModel):
    name: FunctionName
    description: str | None = None
    format: CustomFormat | None = None


class CustomTool(RequestModel):
    type: Literal["custom"]
    custom: Custom


class HostedTool(OpenModel):
    """A tool that OpenAI runs itself. It is ignored, with a notice in the response."""

    type: str


ChatTool = Annotated[
    Annotated[FunctionTool, Tag("Function")]
    | Annotated[CustomTool, Tag("Custom")]
    | Annotated[HostedTool, Tag("Hosted")],
    Discriminator(_tool_tag),
]


class ToolName(RequestModel):
    name: str


class NamedFunctionChoice(RequestModel):
    type: Literal["function"] = "function"
    function: ToolName

    @property
    def name(self) -> str:
        return self.function.name


class NamedCustomChoice(RequestModel):
    type: Literal["custom"]
    custom: ToolName

    @property
    def name(self) -> str:
        return self.custom.name


class AllowedTools(RequestModel):
    mode: Literal["auto", "required"]
    tools: Annotated[Many[NamedFunctionChoice | NamedCustomChoice], Field(min_length=1)]


class AllowedToolsChoice(RequestModel):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ChatToolChoice = (
    Literal["none", "auto", "required"]
    | NamedFunctionChoice
    | NamedCustomChoice
    | AllowedToolsChoice
)


class ThinkingOptions(RequestModel):
    """Thinking options in the format of Anthropic and DeepSeek."""

    type: str
    budget_tokens: Annotated[int, Field(ge=0)] | None = None


class ReasoningOptions(RequestModel):
    """Reasoning options in the format of OpenRouter."""

    effort: ReasoningEffort | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None


class ChatRequest(SamplingFields, CacheHints):
    """OpenAI's fields for a text model, then extensions of ``vllm serve`` and others."""

    model: str | None = None
    messages: Annotated[Many[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    tools: Annotated[Many[ChatTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ChatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: ReasoningEffort | None = None
    verbosity: Verbosity | None = None
    modalities: Many[Literal["text"]] | None = None
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: ServiceTier | None = None
    prediction: dict[str, Any] | None = None

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    enable_thinking: bool | None = None
    thinking: ThinkingOptions | bool | None = None
    thinking_budget: Annotated[int, Field(ge=0)] | None = None
    reasoning: ReasoningOptions | None = None
    documents: Many[dict[str, Any]] | None = None
    return_prompt_text: bool | None = None

    refused: ClassVar[Mapping[str, str]] = UNSUPPORTED_VLLM | {
        "add_special_tokens": "the chat template adds them",
        "audio": "this is a text engine",
        "echo": "use 'continue_final_message'",
        "function_call": "it is deprecated; use 'tool_choice'",
        "functions": "it is deprecated; use 'tools'",
        "moderation": "there is no moderation service here",
    }
