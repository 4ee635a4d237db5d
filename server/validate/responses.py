"""POST /v1/responses: request to Job."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from engine.types import Constraint, Sampling
from server import slicing
from server.errors import InvalidRequest
from server.job import Job, ToolPolicy
from server.prompt import Conversation
from server.protocol.chat import JsonObjectFormat
from server.protocol.responses import JsonSchemaFormat, ResponsesRequest
from server.validate import sampling as fields
from server.validate.chat import effort_kwargs, template_of
from server.validate.constraints import json_schema
from server.validate.items import Item, messages
from server.validate.response_tools import response_policy
from server.validate.served import Served, check_model, depth

LOGPROBS = "message.output_text.logprobs"


def responses_job(
    request: ResponsesRequest,
    items: Sequence[Item],
    served: Served,
    workload: str | None = None,
) -> Job:
    """``items`` are the whole conversation, what was said before included.

    Raises InvalidRequest or NotFound; nothing has been started by then.
    """
    check_model(request.model, served)
    policy = response_policy(request, served)
    talk = _conversation(request, items, policy, served)
    wanted = _constraint(request)
    sampling = _sampling(request, served.sampling)
    effort = request.reasoning.effort if request.reasoning else None
    return Job(
        id=f"resp_{uuid.uuid4().hex}",
        api="responses",
        model=request.model,
        created=int(time.time()),
        sampling=sampling,
        prompts=(talk,),
        stream=bool(request.stream),
        include_reasoning=request.include_reasoning is not False,
        drops_oldest=request.truncation == "auto",
        spec_metrics=fields.spec_metrics(request.per_request_spec_decode_metrics, served),
        tool_policy=policy,
        constraint=wanted,
        repeated=_repeated(request, sampling),
        depth=depth(request.num_speculative_tokens, None, served),
        affinity=request.prompt_cache_key or request.user,
        workload=slicing.workload(
            workload,
            served.workloads,
            tools=policy.choice != "none",
            structured=wanted is not None,
            reasoning=effort not in (None, "none"),
        ),
        template=template_of(talk),
    )


def check_keeping(request: ResponsesRequest) -> None:
    """Raises InvalidRequest for what cannot be found before, or kept after."""
    if request.conversation is not None and request.previous_response_id is not None:
        raise InvalidRequest(
            "'conversation' and 'previous_response_id' exclude each other: each says what came "
            "before.",
            param="conversation",
        )
    if request.background and request.store is False:
        raise InvalidRequest(
            "'background' needs 'store': a response that is not stored cannot be fetched later.",
            param="background",
        )


def _conversation(
    request: ResponsesRequest, items: Sequence[Item], policy: ToolPolicy, served: Served
) -> Conversation:
    system = [{"role": "system", "content": request.instructions}] if request.instructions else []
    said = list(messages(items))
    if not said:
        raise InvalidRequest("'input' is empty: there is nothing to answer.", param="input")
    effort = effort_kwargs(request.reasoning.effort if request.reasoning else None)
    verbosity = request.text.verbosity if request.text else None
    spoken = {"verbosity": verbosity} if verbosity else {}
    asked = request.chat_template_kwargs or {}
    return Conversation(
        messages=(*system, *said),
        tools=policy.tools if policy.choice != "none" else (),
        template_kwargs=dict(served.template_kwargs) | effort | spoken | asked,
    )


def _sampling(request: ResponsesRequest, defaults: Mapping[str, float]) -> Sampling:
    def given(name: str, neutral: float) -> Any:
        value = getattr(request, name)
        return defaults.get(name, neutral) if value is None else value

    wants_logprobs = LOGPROBS in (request.include or ())
    return Sampling(
        max_tokens=request.max_output_tokens or int(defaults.get("max_tokens", 0)),
        temperature=given("temperature", 1.0),
        top_p=given("top_p", 1.0),
        top_k=max(0, int(given("top_k", 0))),
        min_p=given("min_p", 0.0),
        repetition_penalty=given("repetition_penalty", 1.0),
        seed=request.seed,
        logprobs=(request.top_logprobs or 0) if wants_logprobs else None,
    )


def _constraint(request: ResponsesRequest) -> Constraint | None:
    wanted = request.text.format if request.text else None
    if isinstance(wanted, JsonObjectFormat):
        return Constraint("json_object")
    if isinstance(wanted, JsonSchemaFormat):
        return json_schema(wanted.schema_, "text.format.schema", wanted.strict is True)
    return None


def _repeated(request: ResponsesRequest, sampling: Sampling) -> dict[str, Any]:
    """What a response says of the request that made it."""
    given = request.model_dump(by_alias=True, exclude_none=True)
    text = {"format": {"type": "text"}} | given.get("text", {})
    reasoning = {"effort": None, "summary": None} | given.get("reasoning", {})
    return {
        "background": bool(request.background),
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": given.get("metadata", {}),
        "model": request.model,
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
        "tools": [_shown(tool) for tool in given.get("tools", ())],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": request.truncation or "disabled",
        **({} if request.user is None else {"user": request.user}),
        **_belonging(request),
    }


def _belonging(request: ResponsesRequest) -> dict[str, Any]:
    id = request.conversation_id
    return {} if id is None else {"conversation": {"id": id}}


def _shown(tool: dict[str, Any]) -> dict[str, Any]:
    """A function with all its members, as the API's own schema demands."""
    if tool["type"] != "function":
        return tool
    return {"description": None, "parameters": None, "strict": None} | tool
