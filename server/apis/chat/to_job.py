"""Conversion of a chat completion request to a Job, and of its messages to template messages."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from eaglegate.engine.types import Sampling
from eaglegate.server.access.caller import Caller
from eaglegate.server.access.notices import Notices
from eaglegate.server.apis.chat.request import (
    AllowedToolsChoice,
    ChatMessage,
    ChatRequest,
    ChatTool,
    FunctionTool,
    HostedTool,
    NamedCustomChoice,
    NamedFunctionChoice,
    ThinkingOptions,
)
from eaglegate.server.apis.shared import tools
from eaglegate.server.apis.shared.constraints import content_constraint
from eaglegate.server.apis.shared.fields import TextPart
from eaglegate.server.apis.shared.template import (
    MediaPolicy,
    TemplatePart,
    custom_call,
    effort_kwargs,
    is_newest,
    join_parts,
    own_template,
    parse_arguments,
    template_kwargs,
    thinking_kwargs,
)
from eaglegate.server.apis.shared.to_job import (
    make_display,
    make_job,
    make_sampling,
    read_prompt_logprobs,
    read_stops,
    resolve_model,
    service_tier,
)
from eaglegate.server.apis.shared.tools import read_text_grammar
from eaglegate.server.errors import InvalidRequest
from eaglegate.server.generation.job import Conversation, Job, Question, ToolPolicy
from eaglegate.server.generation.served_model import ServedModel
from eaglegate.text.rendering.template import INSTRUCTIONS

if TYPE_CHECKING:
    from eaglegate.text.grammars.text_grammar import TextGrammar

OTHER_TEXT = ("input_text", "output_text")
"""Types of text parts in other APIs."""
NEED_CONTENT = (*INSTRUCTIONS, "user")


def make_chat_job(request: ChatRequest, served_model: ServedModel, caller: Caller) -> Job:
    """Make the Job. Raises InvalidRequest and NotFound."""
    model = resolve_model(request.model, served_model, caller)
    policy = _make_policy(request, served_model, caller.notices)
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
    return make_job(
        request,
        served_model,
        caller,
        id=f"chatcmpl-{os.urandom(16).hex()}",
        api="chat",
        model=model,
        question=_make_question(request, policy, served_model, caller.notices),
        display=make_display(
            request,
            served_model,
            include_reasoning=includes_reasoning(request),
            prompt_text=bool(request.return_prompt_text),
            repeated_fields=service_tier(request.service_tier),
        ),
        affinity=request.session_id or request.prompt_cache_key or request.user,
        reasons=chat_effort(request) not in (None, "none"),
    )


def _make_question(
    request: ChatRequest, policy: ToolPolicy, served_model: ServedModel, notices: Notices
) -> Question:
    conversation = _make_conversation(request, policy, served_model, notices)
    if conversation.images:
        _check_image_fields(request)
    sampling = _sampling(request, served_model)
    param, constraint = content_constraint(request, request.response_format)
    return Question(
        prompts=(conversation,),
        sampling=sampling,
        n=request.n or 1,
        stop=read_stops(request.stop),
        include_stop=bool(request.include_stop_str_in_output),
        skip_special_tokens=request.skip_special_tokens is not False,
        truncate_prompt=request.truncate_prompt_tokens,
        truncation_side=request.truncation_side or "left",
        tool_policy=policy,
        constraint=constraint,
        grammar_param=param,
    )


def _check_image_fields(request: ChatRequest) -> None:
    """Raise InvalidRequest for fields that refer to the tokens of a prompt without images."""
    reasons = {
        "truncate_prompt_tokens": "a cut could divide an image",
        "prompt_logprobs": "the tokens of an image have no text",
    }
    for name, reason in reasons.items():
        if getattr(request, name) is not None:
            raise InvalidRequest(
                f"'{name}' does not work with images: {reason}. Leave it out.", param=name
            )


def _sampling(request: ChatRequest, served_model: ServedModel) -> Sampling:
    sampling = make_sampling(
        request,
        served_model,
        max_tokens=request.max_completion_tokens or request.max_tokens,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        prompt_logprobs=read_prompt_logprobs(request),
    )
    budget = chat_budget(request, served_model)
    return sampling if budget is None else replace(sampling, thinking_token_budget=budget)


def _make_policy(request: ChatRequest, served_model: ServedModel, notices: Notices) -> ToolPolicy:
    parallel, choice = request.parallel_tool_calls, _read_choice(request)
    if not request.tools and choice is None:
        return ToolPolicy(parallel=parallel is not False)
    functions, custom = list_offered_tools(request.tools or (), notices)
    hosted_tools = {t.type: t.type for t in request.tools or () if isinstance(t, HostedTool)}
    return tools.make_policy(
        functions, choice, parallel, served_model, custom=custom, hosted_tools=hosted_tools
    )


def list_offered_tools(
    chat_tools: Iterable[ChatTool], notices: Notices
) -> tuple[list[dict[str, Any]], dict[str, TextGrammar | None]]:
    """Return the client's tools as functions, and the grammars of custom tools by name."""
    functions: list[dict[str, Any]] = []
    grammars: dict[str, TextGrammar | None] = {}
    for index, tool in enumerate(chat_tools):
        if isinstance(tool, HostedTool):
            if tool.type in RUN_BY_CLIENTS:
                raise InvalidRequest(
                    f"'tools[{index}]' is of type '{tool.type}', which chat completions do not "
                    "have. Use /v1/responses, or offer a function.",
                    param=f"tools[{index}]",
                    code="unsupported_parameter",
                )
            tools.ignore_hosted(tool.type, notices)
            continue
        if isinstance(tool, FunctionTool):
            functions.append(tool.model_dump(exclude_none=True))
            continue
        custom_tool = tool.custom
        functions.append(tools.custom_function(custom_tool.name, custom_tool.description))
        grammars[custom_tool.name] = read_text_grammar(custom_tool.format, f"tools[{index}].custom")
    return functions, grammars


RUN_BY_CLIENTS = (
    "apply_patch", "computer", "computer_use_preview", "local_shell", "shell",
)  # fmt: skip
"""Tool types of the Responses API that the client runs. They are refused, because a client would
wait for calls that never come.
"""


def _read_choice(request: ChatRequest) -> tools.ToolSelection | None:
    match request.tool_choice:
        case None:
            return None
        case NamedFunctionChoice() | NamedCustomChoice() as choice:
            return tools.ToolSelection("required", (choice.name,), single=True)
        case AllowedToolsChoice(allowed_tools=choice):
            return tools.ToolSelection(choice.mode, tuple(tool.name for tool in choice.tools))
        case mode:
            return tools.ToolSelection(mode)


def _make_conversation(
    request: ChatRequest, policy: ToolPolicy, served_model: ServedModel, notices: Notices
) -> Conversation:
    reasoning = chat_kwargs(request)
    documents = {"documents": request.documents} if request.documents else {}
    verbosity = {"verbosity": request.verbosity} if request.verbosity else {}
    variables = request.chat_template_kwargs
    continues = bool(request.continue_final_message)
    generation_prompt = request.add_generation_prompt
    if continues and generation_prompt:
        raise InvalidRequest(
            "'continue_final_message' and 'add_generation_prompt' are mutually exclusive.",
            param="continue_final_message",
        )
    media = MediaPolicy.of(served_model, notices)
    return Conversation(
        messages=tuple(template_messages(request.messages, media)),
        tools=policy.tools if policy.choice != "none" else (),
        add_generation_prompt=not continues if generation_prompt is None else generation_prompt,
        continue_final_message=continues,
        template_kwargs=template_kwargs(
            served_model, variables, **reasoning, **verbosity, **documents
        ),
        template=own_template(served_model, variables, request.chat_template),
        images=media.check_images(media.images),
    )


def template_messages(messages: Sequence[ChatMessage], media: MediaPolicy) -> list[dict[str, Any]]:
    """Return the messages for the chat template. Raises InvalidRequest.

    ``media`` is the policy for the non-text parts of earlier messages.
    """
    newest = is_newest([message.role for message in messages])
    return [
        _message(message, f"messages[{index}]", media.in_message(newest[index]))
        for index, message in enumerate(messages)
    ]


def _message(message: ChatMessage, path: str, media: MediaPolicy) -> dict[str, Any]:
    if message.content is None and message.role in NEED_CONTENT:
        raise InvalidRequest(
            f"'{path}.content' is missing: a message of the role '{message.role}' needs it.",
            param=f"{path}.content",
        )
    out = message.model_dump(exclude_none=True)
    content = message.content or ""
    parts = [content] if isinstance(content, str) else content
    converted = [
        _convert_part(part, f"{path}.content[{index}]", message.role, media)
        for index, part in enumerate(parts)
    ]
    out["content"] = join_parts(message.role, converted)
    if reasoning := message.reasoning or message.reasoning_content:
        out["reasoning"] = out["reasoning_content"] = reasoning
    if "tool_calls" in out:
        out["tool_calls"] = [_call_message(call) for call in out["tool_calls"]]
    return out


def _call_message(call: dict[str, Any]) -> dict[str, Any]:
    if call["type"] == "custom":
        return custom_call(call["id"], call["custom"]["name"], call["custom"]["input"])
    function = call["function"]
    return call | {"function": function | {"arguments": parse_arguments(function.get("arguments"))}}


def _convert_part(part: Any, path: str, role: str, media: MediaPolicy) -> TemplatePart:
    if isinstance(part, str):
        return part
    if isinstance(part, TextPart):
        return part.text
    text = getattr(part, "refusal", None)
    if part.type in OTHER_TEXT:
        text = getattr(part, "text", None)
    return text if isinstance(text, str) else media.convert(part.model_dump(), path, role)


def chat_effort(request: ChatRequest) -> str | None:
    """Return ``reasoning_effort``, or OpenRouter's ``reasoning.effort``."""
    reasoning = request.reasoning
    return request.reasoning_effort or (reasoning.effort if reasoning else None)


def chat_kwargs(request: ChatRequest) -> dict[str, Any]:
    """Return template variables for Qwen's ``enable_thinking``, Anthropic's ``thinking`` and
    OpenRouter's ``reasoning``.
    """
    thinking, reasoning = request.thinking, request.reasoning
    switches = (
        reasoning.enabled if reasoning else None,
        thinking.type != "disabled" if isinstance(thinking, ThinkingOptions) else thinking,
        request.enable_thinking,
    )
    kwargs = effort_kwargs(chat_effort(request))
    for switch in switches:
        if switch is not None:
            kwargs |= thinking_kwargs(switch)
    return kwargs


def chat_budget(request: ChatRequest, served_model: ServedModel) -> int | None:
    """Return the reasoning budget from fields other than vLLM's.

    It has no effect if the engine does not know how reasoning ends, as in the messages API.
    """
    if served_model.thinking_budget is not True or request.thinking_token_budget is not None:
        return None
    thinking, reasoning = request.thinking, request.reasoning
    if isinstance(thinking, ThinkingOptions) and thinking.type != "disabled":
        return thinking.budget_tokens
    return request.thinking_budget or (reasoning.max_tokens if reasoning else None)


def includes_reasoning(request: ChatRequest) -> bool:
    excludes = request.reasoning is not None and request.reasoning.exclude
    return request.include_reasoning is not False and not excludes
