"""Request model of POST /v1/responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Discriminator, Field, Tag, field_validator

from eaglegate.server.apis.shared.fields import (
    KV_TRANSFER,
    CacheHints,
    CustomFormat,
    EngineFields,
    FunctionName,
    JsonObjectFormat,
    Many,
    Metadata,
    OpenModel,
    OtherPart,
    ReasoningEffort,
    RefusalPart,
    RequestModel,
    ServiceTier,
    TextFormat,
    Verbosity,
    tag_parts,
)
from eaglegate.server.apis.shared.request import MAX_MESSAGES, MAX_TOOLS

ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
HOSTED_TOOL_INCLUDES = frozenset(
    (
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "web_search_call.action.sources",
        "web_search_call.results",
    )
)
"""Includable members of items that this gateway's responses never contain."""


MAX_ID = 64
"""Maximum length of an item's id, as in OpenAI's API."""


class ItemTextPart(OpenModel):
    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
    text: str


_PARTS = dict.fromkeys(get_args(ItemTextPart.model_fields["type"].annotation), "Text") | {
    "refusal": "Refusal"
}
ItemPart = Annotated[
    Annotated[ItemTextPart, Tag("Text")]
    | Annotated[RefusalPart, Tag("Refusal")]
    | Annotated[OtherPart, Tag("Other")],
    tag_parts(_PARTS),
]


class IdentifiedItem(OpenModel):
    id: Annotated[str, Field(min_length=1, max_length=MAX_ID)] | None = None


class MessageItem(IdentifiedItem):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Many[ItemPart]


class FunctionCallItem(IdentifiedItem):
    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str


class CustomCallItem(IdentifiedItem):
    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    namespace: str | None = None
    input: str


class OutputItem(IdentifiedItem):
    """Output of a function or custom tool."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: str | Many[ItemPart]


class ShellAction(OpenModel):
    commands: Many[str]


class LocalShellAction(OpenModel):
    command: Many[str]


class PatchOperation(OpenModel):
    type: Literal["create_file", "update_file", "delete_file"]
    path: str
    diff: str | None = None


class ShellCallItem(IdentifiedItem):
    type: Literal["shell_call"]
    call_id: str
    action: ShellAction


class LocalShellCallItem(IdentifiedItem):
    type: Literal["local_shell_call"]
    call_id: str
    action: LocalShellAction


class PatchCallItem(IdentifiedItem):
    type: Literal["apply_patch_call"]
    call_id: str
    operation: PatchOperation


class ShellOutcome(OpenModel):
    type: Literal["exit", "timeout"]
    exit_code: int | None = None


class ShellChunk(OpenModel):
    """Output of one shell command."""

    stdout: str
    stderr: str
    outcome: ShellOutcome


class ShellOutputItem(IdentifiedItem):
    type: Literal["shell_call_output"]
    call_id: str
    output: Many[ShellChunk]


class LocalShellOutputItem(OpenModel):
    """Output of a local shell. ``id`` is the call's id."""

    type: Literal["local_shell_call_output"]
    id: Annotated[str, Field(min_length=1, max_length=MAX_ID)]
    output: str


class PatchOutputItem(IdentifiedItem):
    type: Literal["apply_patch_call_output"]
    call_id: str
    status: Literal["completed", "failed"]
    output: str | None = None


class ReasoningItem(IdentifiedItem):
    type: Literal["reasoning"]
    content: Many[ItemTextPart] | None = None
    summary: Many[ItemTextPart] | None = None
    encrypted_content: str | None = None


class ItemReference(OpenModel):
    """A reference to a stored item."""

    type: Literal["item_reference"] = "item_reference"
    id: Annotated[str, Field(min_length=1, max_length=MAX_ID)]

    @field_validator("type", mode="before")
    @classmethod
    def _default_type(cls, value: Any) -> Any:
        return "item_reference" if value is None else value


class OtherItem(OpenModel):
    type: str


KINDS = {
    "apply_patch_call": "PatchCall",
    "apply_patch_call_output": "PatchOutput",
    "local_shell_call": "LocalShellCall",
    "local_shell_call_output": "LocalShellOutput",
    "shell_call": "ShellCall",
    "shell_call_output": "ShellOutput",
    "custom_tool_call": "CustomCall",
    "custom_tool_call_output": "Output",
    "function_call": "FunctionCall",
    "function_call_output": "Output",
    "item_reference": "Reference",
    "message": "Message",
    "reasoning": "Reasoning",
}


def _item_tag(value: Any) -> str:
    """Return the tag of an item's model, so that errors refer to that type. ``type`` may be
    missing.
    """
    members = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    if members.get("type") is not None:
        return KINDS.get(members["type"], "Other") if isinstance(members["type"], str) else "Other"
    return "Reference" if "id" in members and "role" not in members else "Message"


InputItem = Annotated[
    Annotated[FunctionCallItem, Tag("FunctionCall")]
    | Annotated[CustomCallItem, Tag("CustomCall")]
    | Annotated[OutputItem, Tag("Output")]
    | Annotated[ShellCallItem, Tag("ShellCall")]
    | Annotated[ShellOutputItem, Tag("ShellOutput")]
    | Annotated[LocalShellCallItem, Tag("LocalShellCall")]
    | Annotated[LocalShellOutputItem, Tag("LocalShellOutput")]
    | Annotated[PatchCallItem, Tag("PatchCall")]
    | Annotated[PatchOutputItem, Tag("PatchOutput")]
    | Annotated[ReasoningItem, Tag("Reasoning")]
    | Annotated[MessageItem, Tag("Message")]
    | Annotated[ItemReference, Tag("Reference")]
    | Annotated[OtherItem, Tag("Other")],
    Discriminator(_item_tag),
]


class ResponseTool(OpenModel):
    """A function, a custom tool, a namespace of tools, or a tool that OpenAI defines."""

    type: str
    name: FunctionName | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: CustomFormat | None = None
    tools: Annotated[Many[ResponseTool], Field(max_length=MAX_TOOLS)] | None = None
    """Tools of a namespace."""


class NamedChoice(RequestModel):
    type: Literal["function", "custom"]
    name: str
    namespace: str | None = None


class HostedChoice(OpenModel):
    """A tool that OpenAI defines, chosen by its type."""

    type: str


class AllowedChoice(RequestModel):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[Many[NamedChoice | HostedChoice], Field(min_length=1)]


ResponseToolChoice = (
    Literal["none", "auto", "required"] | NamedChoice | AllowedChoice | HostedChoice
)


class TextJsonSchemaFormat(RequestModel):
    type: Literal["json_schema"]
    name: str
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class TextConfig(RequestModel):
    format: (
        Annotated[TextFormat | JsonObjectFormat | TextJsonSchemaFormat, Field(discriminator="type")]
        | None
    ) = None
    verbosity: Verbosity | None = None


class ReasoningConfig(RequestModel):
    """Options for reasoning. If a summary is requested, it contains the complete reasoning."""

    effort: ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: str | None = None


class ResponseStreamOptions(RequestModel):
    include_obfuscation: bool | None = None


class ConversationName(RequestModel):
    id: str


class ResponsesRequest(EngineFields, CacheHints):
    """OpenAI's fields for a text model, then extensions of ``vllm serve``."""

    model: str | None = None
    input: str | Annotated[Many[InputItem], Field(max_length=MAX_MESSAGES)] = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationName | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    tools: Annotated[Many[ResponseTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: Many[str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    metadata: Metadata | None = None
    client_metadata: dict[str, Any] | None = None
    service_tier: ServiceTier | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    session_id: str | None = None

    refused: ClassVar[Mapping[str, str]] = KV_TRANSFER | {
        "moderation": "there is no moderation service here",
        "previous_input_messages": "use 'previous_response_id', 'conversation' or 'input'",
        "prompt": "this gateway stores no prompts; use 'instructions' and 'input'",
        "watermarking": "this gateway adds no watermark",
    }

    @property
    def wants_summary(self) -> bool:
        reasoning = self.reasoning
        return reasoning is not None and bool(reasoning.summary or reasoning.generate_summary)

    @property
    def conversation_id(self) -> str | None:
        conversation = self.conversation
        return conversation.id if isinstance(conversation, ConversationName) else conversation
