"""Responses request to Job."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from engine.types import Constraint, Sampling
from server.apis.responses.items import ItemDict, messages
from server.apis.responses.request import (
    ENCRYPTED,
    HOSTED_TOOL_INCLUDES,
    LOGPROBS,
    ResponsesRequest,
    TextJsonSchemaFormat,
)
from server.apis.responses.tools import CLIENT_TOOLS, make_response_policy
from server.apis.shared.constraints import (
    NamedConstraint,
    read_structured_outputs,
    require_single,
    schema_constraint,
)
from server.apis.shared.fields import (
    JsonObjectFormat,
)
from server.apis.shared.notices import ignore
from server.apis.shared.template import effort_kwargs, own_template, template_kwargs
from server.apis.shared.to_job import make_job, make_sampling, resolve_model
from server.errors import InvalidRequest
from server.generation.job import Job, ServedModel, ToolPolicy
from server.generation.prompt import Conversation


def make_responses_job(
    request: ResponsesRequest,
    items: Sequence[ItemDict],
    served: ServedModel,
    workload: str | None = None,
) -> Job:
    """``items`` are the whole conversation, earlier items included.

    Raises InvalidRequest or NotFound.
    """
    model = resolve_model(request.model, served)
    _check_includes(request)
    policy = make_response_policy(request, served)
    talk = _conversation(request, items, policy, served)
    wanted = require_single([*_text_format(request), *read_structured_outputs(request)])
    sampling = _sampling(request, served)
    effort = request.reasoning.effort if request.reasoning else None
    job = make_job(
        request,
        served,
        id=f"resp_{uuid.uuid4().hex}",
        api="responses",
        model=model,
        sampling=sampling,
        prompts=(talk,),
        policy=policy,
        constraint=wanted,
        reasons=effort not in (None, "none"),
        workload=workload,
    )
    return replace(
        job,
        include_reasoning=request.include_reasoning is not False,
        drops_oldest=request.truncation == "auto",
        repeated=_echo_request(request, sampling) | {"model": model},
        affinity=request.session_id or request.prompt_cache_key or request.user,
    )


def _check_includes(request: ResponsesRequest) -> None:
    for name in request.include or ():
        if name not in (ENCRYPTED, LOGPROBS) and name not in HOSTED_TOOL_INCLUDES:
            ignore(f"include[{name}]")


def check_storage(request: ResponsesRequest) -> None:
    """Raises InvalidRequest for contradictory fields about history and storage."""
    if request.conversation is not None and request.previous_response_id is not None:
        raise InvalidRequest(
            "'conversation' and 'previous_response_id' are mutually exclusive: both set the "
            "preceding items.",
            param="conversation",
        )
    if request.background and request.store is False:
        raise InvalidRequest(
            "'background' needs 'store': a response that is not stored cannot be fetched later.",
            param="background",
        )


def _conversation(
    request: ResponsesRequest, items: Sequence[ItemDict], policy: ToolPolicy, served: ServedModel
) -> Conversation:
    system = [{"role": "system", "content": request.instructions}] if request.instructions else []
    template_messages = list(messages(items))
    if not template_messages:
        raise InvalidRequest("'input' is empty: there is nothing to answer.", param="input")
    effort = effort_kwargs(request.reasoning.effort if request.reasoning else None)
    verbosity = request.text.verbosity if request.text else None
    spoken = {"verbosity": verbosity} if verbosity else {}
    asked = request.chat_template_kwargs
    return Conversation(
        messages=(*system, *template_messages),
        tools=policy.tools if policy.choice != "none" else (),
        template_kwargs=template_kwargs(served, asked, **effort, **spoken),
        template=own_template(served, asked),
    )


def _sampling(request: ResponsesRequest, served: ServedModel) -> Sampling:
    wants_logprobs = LOGPROBS in (request.include or ())
    return make_sampling(
        request,
        served,
        max_tokens=request.max_output_tokens,
        logprobs=(request.top_logprobs or 0) if wants_logprobs else None,
    )


def _text_format(request: ResponsesRequest) -> Iterator[NamedConstraint]:
    wanted = request.text.format if request.text else None
    if isinstance(wanted, JsonObjectFormat):
        yield "text.format", Constraint("json_object")
    if isinstance(wanted, TextJsonSchemaFormat):
        strict = wanted.strict is True
        yield "text.format", schema_constraint(wanted.schema_, "text.format.schema", strict)


def _echo_request(request: ResponsesRequest, sampling: Sampling) -> dict[str, Any]:
    """Members of the request that the response repeats."""
    given = request.model_dump(by_alias=True, exclude_none=True)
    text = {"format": {"type": "text"}} | given.get("text", {})
    reasoning = {"effort": None, "summary": None} | given.get("reasoning", {})
    return {
        "background": bool(request.background),
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": given.get("metadata", {}),
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": reasoning,
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": request.store is not False,
        "temperature": sampling.temperature,
        "text": text,
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": [
            _complete_tool(tool) for tool in given.get("tools", ()) if tool["type"] in CLIENT_TOOLS
        ],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": request.truncation or "disabled",
        **({} if request.user is None else {"user": request.user}),
        **_conversation_member(request),
    }


def _conversation_member(request: ResponsesRequest) -> dict[str, Any]:
    id = request.conversation_id
    return {} if id is None else {"conversation": {"id": id}}


def _complete_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A function with all members that the API's schema requires."""
    if tool["type"] != "function":
        return tool
    return {"description": None, "parameters": None, "strict": None} | tool
