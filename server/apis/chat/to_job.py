"""POST /v1/chat/completions: request to Job."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from engine.types import Sampling
from server.apis.chat.request import (
    AllowedToolsChoice,
    ChatRequest,
    FunctionTool,
    HostedTool,
    NamedCustomChoice,
    NamedFunctionChoice,
    Tool,
)
from server.apis.shared import sampling as fields
from server.apis.shared import tools
from server.apis.shared.constraints import constraint
from server.apis.shared.reasoning import chat_budget, chat_effort, chat_kwargs, includes_reasoning
from server.apis.shared.served import Served, depth, model_of
from server.apis.shared.template import own_template, template_kwargs
from server.apis.shared.template_messages import template_messages
from server.apis.shared.tools import read_text_grammar
from server.errors import InvalidRequest
from server.generation import slices as slicing
from server.generation.job import Job, ToolPolicy
from server.generation.prompt import Conversation
from server.generation.text_grammar import TextGrammar


def chat_job(request: ChatRequest, served: Served, workload: str | None = None) -> Job:
    """Raises InvalidRequest or NotFound; nothing has been started by then.

    ``workload`` is the slice the client names in its header, if any.
    """
    model = model_of(request.model, served)
    policy = _policy(request, served)
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
    conversation = _conversation(request, policy, served)
    param, wanted = constraint(request, request.response_format)
    return Job(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        api="chat",
        model=model,
        created=int(time.time()),
        sampling=_sampling(request, served),
        n=request.n or 1,
        stop=fields.stops(request.stop),
        include_stop=bool(request.include_stop_str_in_output),
        skip_special_tokens=request.skip_special_tokens is not False,
        stream=bool(request.stream),
        include_usage=fields.include_usage(request),
        continuous_usage=fields.continuous_usage(request),
        include_reasoning=includes_reasoning(request),
        spec_metrics=fields.spec_metrics(request.per_request_spec_decode_metrics, served),
        return_token_ids=bool(request.return_token_ids),
        returns_prompt_text=bool(request.return_prompt_text),
        token_names=fields.token_names(request),
        tells_prompt=bool(request.return_token_ids or request.return_prompt_text)
        or request.prompt_logprobs is not None,
        gives_prompt_logprobs=request.prompt_logprobs is not None,
        prompts=(conversation,),
        truncate_prompt=request.truncate_prompt_tokens,
        truncation_side=request.truncation_side or "left",
        tool_policy=policy,
        constraint=wanted,
        grammar_param=param,
        repeated=fields.service_tier(request.service_tier),
        depth=depth(request.num_speculative_tokens, request.vllm_xargs, served),
        priority=request.priority or 0,
        cache_salt=request.cache_salt,
        affinity=request.session_id or request.prompt_cache_key or request.user,
        workload=slicing.workload(
            workload,
            served.workloads,
            tools=policy.choice != "none",
            structured=wanted is not None,
            reasoning=chat_effort(request) not in (None, "none"),
        ),
        template=template_of(conversation),
    )


def _sampling(request: ChatRequest, served: Served) -> Sampling:
    sampling = fields.sampling(
        request,
        served,
        max_tokens=request.max_completion_tokens or request.max_tokens,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        prompt_logprobs=fields.prompt_logprobs(request),
    )
    budget = chat_budget(request, served)
    return sampling if budget is None else replace(sampling, thinking_token_budget=budget)


def template_of(conversation: Conversation) -> str:
    """Which system prompt and tools, as a fingerprint."""
    system = (
        str(m["content"]) for m in conversation.messages if m["role"] in ("system", "developer")
    )
    return slicing.fingerprint(system, list(conversation.tools) or None)


def _policy(request: ChatRequest, served: Served) -> ToolPolicy:
    offered, custom = offered_tools(request.tools or ())
    parallel = request.parallel_tool_calls
    hosted = {t.type: t.type for t in request.tools or () if isinstance(t, HostedTool)}
    return tools.make_policy(
        offered, _choice(request), parallel, served, custom=custom, hosted=hosted
    )


def offered_tools(
    given: Iterable[Tool],
) -> tuple[list[dict[str, Any]], dict[str, TextGrammar | None]]:
    """The tools a client runs itself, as functions, and the grammars of custom ones by name."""
    offered: list[dict[str, Any]] = []
    custom: dict[str, TextGrammar | None] = {}
    for at, tool in enumerate(given):
        if isinstance(tool, HostedTool):
            tools.ignore_hosted(tool.type)
            continue
        if isinstance(tool, FunctionTool):
            offered.append(tool.model_dump(exclude_none=True))
            continue
        made = tool.custom
        offered.append(tools.custom_function(made.name, made.description))
        custom[made.name] = read_text_grammar(made.format, f"tools[{at}].custom")
    return offered, custom


def _choice(request: ChatRequest) -> tools.ToolSelection | None:
    match request.tool_choice:
        case None:
            return None
        case NamedFunctionChoice() | NamedCustomChoice() as named:
            return tools.ToolSelection("required", (named.name,), single=True)
        case AllowedToolsChoice(allowed_tools=allowed):
            return tools.ToolSelection(allowed.mode, tuple(tool.name for tool in allowed.tools))
        case mode:
            return tools.ToolSelection(mode)


def _conversation(request: ChatRequest, policy: ToolPolicy, served: Served) -> Conversation:
    reasoning = chat_kwargs(request)
    documents = {"documents": request.documents} if request.documents else {}
    verbosity = {"verbosity": request.verbosity} if request.verbosity else {}
    asked = request.chat_template_kwargs
    continued = bool(request.continue_final_message)
    generation_prompt = request.add_generation_prompt
    if continued and generation_prompt:
        raise InvalidRequest(
            "'continue_final_message' and 'add_generation_prompt' exclude each other.",
            param="continue_final_message",
        )
    return Conversation(
        messages=tuple(template_messages(request.messages, served.replaces_media)),
        tools=policy.tools if policy.choice != "none" else (),
        add_generation_prompt=not continued if generation_prompt is None else generation_prompt,
        continue_final_message=continued,
        template_kwargs=template_kwargs(served, asked, **reasoning, **verbosity, **documents),
        template=own_template(served, asked, request.chat_template),
    )
