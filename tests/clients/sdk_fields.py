"""This gateway's decision on every field of the official SDKs' requests.

A field works, is refused, or is ignored because the answer is the same without it. A type of a
block, an item or a tool has its members listed where they are acted on; the others have one
decision as a whole. A newer SDK with a field or a type that is not here fails
``test_sdk_fields.py``: decide, act on it in ``server/apis``, and add it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

WORKS, REFUSED, IGNORED = "works", "refused", "ignored"
HOSTED = "of tools that others run: left out with a notice"
MEDIA = "refused in what the user asks now, else replaced"
PARTS = "decided by what holds it"
TEMPLATE = "handed to the chat template"


def decide(**names: str) -> dict[str, str]:
    """Decisions by field, from the fields of each decision."""
    return {field: decision for decision, fields in names.items() for field in fields.split()}


FIELDS: Mapping[str, Mapping[str, str]] = {
    "messages": decide(
        works="""max_tokens messages model output_config output_format stop_sequences stream system
            temperature thinking tool_choice tools top_k top_p""",
        refused="compaction mcp_servers thread",
        ignored="""betas billing_policy cache_control container context_management diagnostics
            fallback_credit_token fallbacks inference_geo metadata service_tier speed
            user_profile_id workspace_id""",
    ),
    "count_tokens": decide(
        works="messages model output_config system thinking tool_choice tools",
        refused="mcp_servers",
        ignored="""betas billing_policy cache_control compaction context_management speed
            user_profile_id workspace_id""",
    ),
    "chat": decide(
        works="""frequency_penalty logit_bias logprobs max_completion_tokens max_tokens messages
            modalities model n parallel_tool_calls presence_penalty reasoning_effort
            response_format seed stop stream stream_options temperature tool_choice tools
            top_logprobs top_p verbosity""",
        refused="audio function_call functions moderation",
        ignored="""metadata prediction prompt_cache_key prompt_cache_options
            prompt_cache_retention safety_identifier service_tier store user web_search_options""",
    ),
    "completions": decide(
        works="""best_of echo frequency_penalty logit_bias logprobs max_tokens model n
            presence_penalty prompt seed stop stream stream_options temperature top_p""",
        refused="suffix",
        ignored="user",
    ),
    "responses": decide(
        works="""background conversation include input instructions max_output_tokens metadata
            model parallel_tool_calls previous_response_id reasoning store stream stream_options
            temperature text tool_choice tools top_logprobs top_p truncation""",
        refused="moderation prompt",
        ignored="""access_programs background_options context_management image max_tool_calls
            prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier
            service_tier user""",
    ),
}
"""Decisions by API and field. ``include`` and ``best_of`` list the values that are served."""

CLIENT_TOOL = decide(
    works="name strict display_height_px display_width_px enable_zoom",
    refused="allowed_callers",
    ignored="cache_control defer_loading display_number input_examples max_characters",
)
FUNCTION = decide(
    works="name description input_schema input_examples strict",
    refused="allowed_callers",
    ignored="cache_control defer_loading eager_input_streaming",
)
Decision = str | Mapping[str, str]
ANTHROPIC: Mapping[str, Decision] = {
    "UserMessageParam": decide(works="role content"),
    "AssistantMessageParam": decide(works="role content"),
    "SystemMessageParam": decide(works="role content clear_at", refused="output_config"),
    "SystemMessageOutputConfigParam": REFUSED,
    "text": decide(works="text data", ignored="cache_control citations media_type"),
    "thinking": decide(works="thinking", ignored="signature"),
    "redacted_thinking": decide(ignored="data"),
    "tool_use": decide(works="id name input", ignored="cache_control caller toolset_name"),
    "tool_result": decide(
        works="tool_use_id content is_error", ignored="cache_control toolset_name"
    ),
    "document": decide(works="source title context", ignored="cache_control citations"),
    "search_result": decide(works="content source title", ignored="cache_control citations"),
    "tool_reference": decide(works="tool_name name", ignored="cache_control"),
    "content": decide(works="content"),
    "compaction": decide(
        works="content", ignored="cache_control encrypted_content signature tool_changes"
    ),
    "tool_addition": decide(works="tool", ignored="cache_control"),
    "tool_removal": decide(works="tool", ignored="cache_control"),
    "tool_definition": decide(works="definition"),
    "mcp_tool*_reference": REFUSED,
    "fallback": IGNORED,
    "mcp_tool_listing": IGNORED,
    "OutputConfigParam": decide(works="effort format", refused="task_budget"),
    "json_schema": decide(works="schema"),
    "enabled": decide(works="budget_tokens", ignored="block_binding display"),
    "adaptive": decide(ignored="block_binding display"),
    "disabled": {},
    "between_tools": {},
    "auto": decide(works="disable_parallel_tool_use"),
    "any": decide(works="disable_parallel_tool_use"),
    "tool": decide(works="name disable_parallel_tool_use"),
    "none": {},
    "ToolParam": FUNCTION,
    "custom": FUNCTION | decide(refused="allowed_callers skill_id version"),
    "object": decide(works="properties required"),
    "bash_2*": CLIENT_TOOL,
    "computer_2*": CLIENT_TOOL,
    "memory_2*": CLIENT_TOOL,
    "text_editor_2*": CLIENT_TOOL,
    "*_toolset_2*": REFUSED,
    "Browser*": REFUSED,
    "Computer*": REFUSED,
    "ContainerParams": decide(refused="skills", ignored="id"),
    "anthropic": REFUSED,
    "MetadataParam": decide(works="user_id"),
    **dict.fromkeys(("summarize", "create", "continue", "tokens"), REFUSED),
    **dict.fromkeys(("image", "base64", "url", "file", "browser_state", "container_upload"), MEDIA),
    **dict.fromkeys(
        ("advisor_*", "*code_execution*", "mcp_tool_use", "mcp_tool_result", "mcp_toolset", "MCP*",
         "server_tool_use", "tool_search_*", "web_fetch_*", "web_search_*", "WebFetch*",
         "RequestMCP*", "approximate", "all", "only", "except"), HOSTED,
    ),
    **dict.fromkeys(
        ("*_location", "CitationsConfig*", "Image*", "Fallback*", "billing_policy", "ephemeral",
         "clear_*", "compact_2*", "ContextManagementConfigParam", "DiagnosticsParam",
         "ThinkingBlockBindingParam", "thinking_turns", "tool_uses", "input_tokens", "direct",
         "download_*", "tab_opened"), IGNORED,
    ),
    "Message*Params*": PARTS,
}  # fmt: skip
CHAT: Mapping[str, Decision] = {
    "ChatCompletionAssistantMessageParam": decide(works="role content name refusal tool_calls")
    | dict.fromkeys(("audio", "function_call"), TEMPLATE),
    "ChatCompletion*MessageParam": decide(works="role content name tool_call_id"),
    "text": decide(works="text", ignored="prompt_cache_breakpoint"),
    "refusal": decide(works="refusal"),
    "function": decide(works="function id"),
    "custom": decide(works="custom id"),
    "Function": decide(works="name arguments description parameters"),
    "Custom": decide(works="name input description format"),
    "FunctionDefinition": decide(works="name description parameters strict"),
    "CustomFormatGrammarGrammar": decide(works="definition syntax"),
    "grammar": decide(works="grammar"),
    "JSONSchema": decide(works="name schema strict", ignored="description"),
    "json_schema": decide(works="json_schema"),
    "json_object": {},
    "allowed_tools": decide(works="allowed_tools"),
    "ChatCompletionAllowedToolsParam": decide(works="mode tools"),
    "ChatCompletionStreamOptionsParam": decide(
        works="include_usage include_obfuscation"
    ),
    "PromptCache*": IGNORED,
    "FilePromptCacheBreakpoint": IGNORED,
    "content": IGNORED,
    "WebSearchOptions*": HOSTED,
    "approximate": HOSTED,
    **dict.fromkeys(
        ("image_url", "ImageURL", "input_audio", "InputAudio", "file", "FileFile"), MEDIA
    ),
    **dict.fromkeys(
        ("Audio", "ChatCompletionAudioParam", "VoiceID", "FunctionCall", "Moderation*",
         "ChatCompletionFunctionCallOptionParam"), REFUSED,
    ),
    "CompletionCreateParams*": PARTS,
}  # fmt: skip
CALLED = decide(works="call_id name namespace", ignored="id status caller")
RESPONSES: Mapping[str, Decision] = {
    "message": decide(works="role content", ignored="id status phase"),
    "input_text": decide(works="text", ignored="prompt_cache_breakpoint"),
    "output_text": decide(works="text", ignored="annotations logprobs"),
    "refusal": decide(works="refusal"),
    "reasoning": decide(works="content summary encrypted_content", ignored="id status"),
    "reasoning_text": decide(works="text"),
    "summary_text": decide(works="text"),
    "function_call": CALLED | decide(works="arguments", ignored="async"),
    "function_call_output": CALLED | decide(works="output"),
    "custom_tool_call": CALLED | decide(works="input", ignored="async"),
    "custom_tool_call_output": CALLED | decide(works="output"),
    "ItemReference": decide(works="id"),
    "function": decide(
        works="name description parameters strict", refused="async allowed_callers",
        ignored="defer_loading output_schema",
    ),
    "custom": decide(
        works="name description format", refused="async allowed_callers", ignored="defer_loading"
    ),
    "namespace": decide(works="name tools", ignored="description"),
    "grammar": decide(works="definition syntax"),
    "text": {},
    "Text": decide(works="format"),
    "json_object": {},
    "json_schema": decide(works="name schema strict", ignored="description"),
    "allowed_tools": decide(works="mode tools"),
    "shell": decide(works="environment", ignored="allowed_callers"),
    "local_shell": {},
    "apply_patch": decide(ignored="allowed_callers"),
    "local": decide(works="skills"),
    "LocalSkillParam": decide(works="name description path"),
    "shell_call": decide(works="call_id action", ignored="id status caller environment"),
    "ShellCallAction": decide(works="commands timeout_ms max_output_length"),
    "shell_call_output": decide(
        works="call_id output", ignored="id status caller max_output_length"
    ),
    "ResponseFunctionShellCallOutputContentParam": decide(works="stdout stderr outcome"),
    "exit": decide(works="exit_code"),
    "timeout": {},
    "local_shell_call": decide(works="call_id action", ignored="id status"),
    "exec": decide(works="command env timeout_ms user working_directory"),
    "local_shell_call_output": decide(works="id output", ignored="status"),
    "apply_patch_call": decide(works="call_id operation", ignored="id status caller"),
    "apply_patch_call_output": decide(works="call_id output status", ignored="id caller"),
    "*_file": decide(works="path diff", ignored="""detail file_data file_id file_url filename
        prompt_cache_breakpoint"""),
    "ResponseTextConfigParam": decide(works="format verbosity"),
    "Reasoning": decide(works="effort summary generate_summary context", ignored="mode"),
    "ResponseConversationParamParam": decide(works="id"),
    "StreamOptions": decide(works="include_obfuscation"),
    **dict.fromkeys(("input_image", "input_file"), MEDIA),
    **dict.fromkeys(
        ("computer*", "additional_tools", "compaction", "compaction_trigger", "program*",
         "configuration_update", "code_interpreter_call", "mcp_call", "Moderation*",
         "ResponsePromptParam", "PendingSafetyCheck", "ComputerCallOutput*", "click",
         "double_click", "drag", "*DragPath", "keypress", "move", "screenshot", "scroll", "type",
         "wait", "logs", "http_error", "mcp_protocol_error", "mcp_tool_execution_error"), REFUSED,
    ),
    **dict.fromkeys(
        ("*search*", "code_interpreter", "image_generation*", "*ImageGeneration*", "mcp*", "*Mcp*",
         "Filters", "approximate", "RankingOptions*", "Result", "eq", "ne", "gt", "gte", "lt",
         "lte", "in", "nin", "and", "or", "container_auto", "container_reference", "inline",
         "base64", "skill_reference", "ContainerNetwork*", "allowlist", "disabled", "open_page",
         "find_in_page", "url", "auto", "image"), HOSTED,
    ),
    **dict.fromkeys(
        ("*_citation", "file_path", "Logprob*", "PromptCache*", "AccessPrograms", "direct",
         "BackgroundOptions", "ContextManagement", "Image"), IGNORED,
    ),
    "ResponseCreateParams*": PARTS,
}  # fmt: skip
TYPES: Mapping[str, Mapping[str, Decision]] = {
    "messages": ANTHROPIC,
    "count_tokens": ANTHROPIC,
    "chat": CHAT,
    "completions": CHAT,
    "responses": RESPONSES,
}


def list_undecided(found: Mapping[str, Any]) -> list[str]:
    """Fields and types of an SDK, by API, that the table does not know."""
    return [f"{api}: {name}" for api, what in found.items() for name in _list_undecided(api, what)]


def _list_undecided(api: str, found: Mapping[str, Any]) -> Iterator[str]:
    yield from _missing("", found["fields"], FIELDS[api])
    for name, members in found.get("types", {}).items():
        decision = _find(TYPES[api], name)
        if decision is None:
            yield f"type {name}"
        elif not isinstance(decision, str):
            yield from _missing(f"{name}.", members, decision)


def _find(table: Mapping[str, Decision], name: str) -> Decision | None:
    """The decision under this exact name, else under the first pattern that matches it."""
    exact = table.get(name)
    patterns = (key for key in table if "*" in key and fnmatchcase(name, key))
    return exact if exact is not None else next((table[key] for key in patterns), None)


def _missing(prefix: str, names: Iterable[str], known: Mapping[str, str]) -> Iterator[str]:
    return (prefix + name for name in names if name not in known)
