"""Conversion of a Responses request to a Job: its conversation, tools, tool_choice and formats."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eaglegate.engine.types import Constraint, Sampling
from eaglegate.server.access.caller import Caller
from eaglegate.server.access.notices import Notices
from eaglegate.server.apis.responses import client_tools
from eaglegate.server.apis.responses.items import ItemDict, flat_name, messages
from eaglegate.server.apis.responses.request import (
    ENCRYPTED,
    HOSTED_TOOL_INCLUDES,
    LOGPROBS,
    AllowedChoice,
    HostedChoice,
    NamedChoice,
    ResponsesRequest,
    ResponseTool,
    TextJsonSchemaFormat,
)
from eaglegate.server.apis.shared import tools
from eaglegate.server.apis.shared.constraints import (
    NamedConstraint,
    read_structured_outputs,
    require_single,
    schema_constraint,
)
from eaglegate.server.apis.shared.fields import JsonObjectFormat
from eaglegate.server.apis.shared.request import MAX_TOOLS
from eaglegate.server.apis.shared.template import (
    MediaPolicy,
    effort_kwargs,
    own_template,
    template_kwargs,
)
from eaglegate.server.apis.shared.to_job import (
    choose_metrics,
    make_job,
    make_sampling,
    read_stops,
    resolve_model,
)
from eaglegate.server.apis.shared.tools import read_text_grammar
from eaglegate.server.errors import InvalidRequest
from eaglegate.server.generation.job import (
    Conversation,
    Display,
    Job,
    Namespaced,
    Question,
    ToolPolicy,
)
from eaglegate.server.generation.prompt import drop_images
from eaglegate.server.generation.served_model import ServedModel
from eaglegate.text.rendering.template import strip_billing

if TYPE_CHECKING:
    from eaglegate.text.grammars.text_grammar import TextGrammar


def make_responses_job(
    request: ResponsesRequest,
    items: Sequence[ItemDict],
    served_model: ServedModel,
    caller: Caller,
    media: MediaPolicy,
) -> Job:
    """Make the Job. Raises InvalidRequest and NotFound.

    ``items`` are the whole conversation, including earlier items. ``media`` has the places of the
    new ones.
    """
    model = resolve_model(request.model, served_model, caller)
    _check_includes(request, caller.notices)
    question = _make_question(request, items, served_model, media)
    options = request.stream_options
    effort = request.reasoning.effort if request.reasoning else None
    return make_job(
        request,
        served_model,
        caller,
        id=f"resp_{uuid.uuid4().hex}",
        api="responses",
        model=model,
        question=question,
        display=Display(
            stream=bool(request.stream),
            include_reasoning=request.include_reasoning is not False,
            spec_metrics=choose_metrics(request, served_model),
            obfuscates=bool(options and options.include_obfuscation),
            return_steps=bool(request.return_steps),
            repeated=_echo_request(request, question.sampling) | {"model": model},
        ),
        affinity=request.session_id or request.prompt_cache_key or request.user,
        reasons=effort not in (None, "none"),
    )


def _make_question(
    request: ResponsesRequest,
    items: Sequence[ItemDict],
    served_model: ServedModel,
    media: MediaPolicy,
) -> Question:
    policy = make_response_policy(request, served_model, media.notices)
    conversation = _conversation(request, items, policy, served_model, media)
    param, constraint = require_single([*_text_format(request), *read_structured_outputs(request)])
    return Question(
        prompts=(conversation,),
        sampling=_sampling(request, served_model),
        stop=read_stops(request.stop),
        include_stop=bool(request.include_stop_str_in_output),
        skip_special_tokens=request.skip_special_tokens is not False,
        drops_oldest=request.truncation == "auto",
        tool_policy=policy,
        constraint=constraint,
        grammar_param=param,
    )


def _check_includes(request: ResponsesRequest, notices: Notices) -> None:
    for name in request.include or ():
        if name not in (ENCRYPTED, LOGPROBS) and name not in HOSTED_TOOL_INCLUDES:
            notices.ignore(f"include[{name}]")


def check_storage(request: ResponsesRequest) -> None:
    """Raise InvalidRequest for contradictory fields about history and storage."""
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
    request: ResponsesRequest,
    items: Sequence[ItemDict],
    policy: ToolPolicy,
    served_model: ServedModel,
    media: MediaPolicy,
) -> Conversation:
    instructions = strip_billing(request.instructions or "")
    system = [{"role": "system", "content": instructions}] if instructions else []
    template_messages = list(messages(items, media))
    if not template_messages:
        raise InvalidRequest("'input' is empty: there is nothing to answer.", param="input")
    effort = effort_kwargs(request.reasoning.effort if request.reasoning else None)
    verbosity = request.text.verbosity if request.text else None
    options = {"verbosity": verbosity} if verbosity else {}
    variables = request.chat_template_kwargs
    conversation = Conversation(
        messages=(*system, *template_messages),
        tools=policy.tools if policy.choice != "none" else (),
        template_kwargs=template_kwargs(served_model, variables, **effort, **options),
        template=own_template(served_model, variables),
        images=tuple(media.images),
    )
    if request.truncation == "auto" and media.image_input is not None:
        conversation = drop_images(conversation, media.image_input.max_images)
    media.check_images(conversation.images)
    return conversation


def _sampling(request: ResponsesRequest, served_model: ServedModel) -> Sampling:
    wants_logprobs = LOGPROBS in (request.include or ())
    return make_sampling(
        request,
        served_model,
        max_tokens=request.max_output_tokens,
        logprobs=(request.top_logprobs or 0) if wants_logprobs else None,
    )


def _text_format(request: ResponsesRequest) -> Iterator[NamedConstraint]:
    text_format = request.text.format if request.text else None
    if isinstance(text_format, JsonObjectFormat):
        yield "text.format", Constraint("json_object")
    if isinstance(text_format, TextJsonSchemaFormat):
        strict = text_format.strict is True
        yield "text.format", schema_constraint(text_format.schema_, "text.format.schema", strict)


def _echo_request(request: ResponsesRequest, sampling: Sampling) -> dict[str, Any]:
    """Return the members of the request that the response repeats."""
    members = request.model_dump(by_alias=True, exclude_none=True)
    text = {"format": {"type": "text"}} | members.get("text", {})
    reasoning = {"effort": None, "summary": None} | members.get("reasoning", {})
    return {
        "background": bool(request.background),
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": members.get("metadata", {}),
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": reasoning,
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": request.store is not False,
        "temperature": sampling.temperature,
        "text": text,
        "tool_choice": members.get("tool_choice", "auto"),
        "tools": [
            _complete_tool(echo)
            for tool, echo in zip(request.tools or (), members.get("tools", ()), strict=True)
            if not _is_hosted(tool)
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
    """Return a function with all members that the API's schema requires."""
    if tool["type"] != "function":
        return tool
    return {"description": None, "parameters": None, "strict": None} | tool


NAMED_TOOLS = ("function", "custom", "namespace")
"""Types of tools that the client defines."""


def _is_hosted(tool: ResponseTool) -> bool:
    """Return True for a tool that OpenAI would run. Such tools are ignored."""
    run_by_client = client_tools.is_client_tool(tool.type, tool.model_extra)
    return tool.type not in NAMED_TOOLS and not run_by_client


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """A tool as it is offered to the model."""

    function: dict[str, Any]
    """The function in the format of chat completions, with a flat name."""
    custom: bool
    namespaced: Namespaced | None = None
    grammar: TextGrammar | None = None
    defined: bool = False
    """True for a tool that OpenAI defines and the client runs."""

    @property
    def name(self) -> str:
        return str(self.function["function"]["name"])


def make_response_policy(
    request: ResponsesRequest, served_model: ServedModel, notices: Notices
) -> ToolPolicy:
    """Make the tool policy. Raises InvalidRequest."""
    offers = list(_list_offers(request.tools or (), "tools", notices))
    if len(offers) > MAX_TOOLS:
        raise InvalidRequest(
            f"There may be at most {MAX_TOOLS} tools, including those in namespaces; "
            f"given {len(offers)}.",
            param="tools",
        )
    namespaces = {tool.name: tool.namespaced for tool in offers if tool.namespaced}
    return tools.make_policy(
        [tool.function for tool in offers],
        _read_choice(request, offers, namespaces, notices),
        request.parallel_tool_calls,
        served_model,
        custom={tool.name: tool.grammar for tool in offers if tool.custom},
        namespaces=namespaces,
        hosted_tools={tool.type: tool.type for tool in request.tools or () if _is_hosted(tool)},
        defined_names=frozenset(tool.name for tool in offers if tool.defined),
    )


def _list_offers(
    response_tools: Sequence[ResponseTool], param: str, notices: Notices
) -> Iterator[ToolOffer]:
    for index, tool in enumerate(response_tools):
        path = f"{param}[{index}]"
        if tool.type == "namespace":
            yield from _flatten_namespace(tool, path)
        elif tool.type in NAMED_TOOLS:
            yield _make_offer(tool, path)
        elif client_tools.is_client_tool(tool.type, tool.model_extra):
            function = client_tools.offer(tool.type, tool.model_extra)
            yield ToolOffer(function, False, defined=True)
        else:
            client_tools.check_readable(tool.type, path)
            tools.ignore_hosted(tool.type, notices)


def _flatten_namespace(tool: ResponseTool, path: str) -> Iterator[ToolOffer]:
    """Yield a namespace's tools under flat names, since chat templates do not know namespaces."""
    if tool.name is None or not tool.tools:
        missing_field = f"{path}.{'tools' if tool.name else 'name'}"
        raise InvalidRequest(
            f"'{missing_field}' is missing: a namespace needs a 'name' and 'tools'.",
            param=missing_field,
        )
    for index, inner in enumerate(tool.tools):
        tool_path = f"{path}.tools[{index}]"
        name = None if inner.name is None else flat_name(tool.name, inner.name)
        yield _make_offer(
            inner.model_copy(update={"name": name}), tool_path, (tool.name, inner.name or "")
        )


def _make_offer(tool: ResponseTool, path: str, namespaced: Namespaced | None = None) -> ToolOffer:
    if tool.type not in ("function", "custom") or tool.name is None:
        raise InvalidRequest(
            f"'{path}' must be of type 'function' or 'custom' and have a 'name'; "
            f"given type '{tool.type[:64]}'.",
            param=path,
        )
    _check_callers(tool, path)
    if tool.type == "custom":
        function = tools.custom_function(tool.name, tool.description)
        return ToolOffer(function, True, namespaced, read_text_grammar(tool.format, path))
    fields = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    members = {key: value for key, value in fields.items() if value is not None}
    return ToolOffer({"type": "function", "function": members}, False, namespaced)


def _check_callers(tool: ResponseTool, path: str) -> None:
    """Raise InvalidRequest for a tool that only programs may call, or whose calls are
    asynchronous.
    """
    options = tool.model_extra or {}
    callers = options.get("allowed_callers")
    if callers and "direct" not in callers:
        raise InvalidRequest(
            f"'{path}.allowed_callers' must contain 'direct': the model calls tools itself here.",
            param=f"{path}.allowed_callers",
        )
    if options.get("async"):
        raise InvalidRequest(
            f"'{path}.async' is not supported: a call is answered before the model continues.",
            param=f"{path}.async",
            code="unsupported_parameter",
        )


def _read_choice(
    request: ResponsesRequest,
    offers: Sequence[ToolOffer],
    namespaces: Mapping[str, Namespaced],
    notices: Notices,
) -> tools.ToolSelection | None:
    defined_names = frozenset(tool.name for tool in offers if tool.defined)
    match request.tool_choice:
        case None:
            return None
        case NamedChoice() as named:
            return tools.ToolSelection("required", (_flat_choice(named, namespaces),), single=True)
        case AllowedChoice(mode=mode, tools=allowed):
            names = _allowed_names(allowed, namespaces, defined_names, notices)
            return tools.ToolSelection(mode, tuple(names))
        case HostedChoice(type=kind) if kind in defined_names:
            return tools.ToolSelection("required", (kind,), single=True)
        case HostedChoice(type=kind):
            raise _unusable_choice(kind)
        case "auto" | "none" as mode if not offers:
            return tools.ToolSelection("none")
        case mode:
            return tools.ToolSelection(mode)


def _allowed_names(
    choices: Sequence[NamedChoice | HostedChoice],
    namespaces: Mapping[str, Namespaced],
    defined_names: frozenset[str],
    notices: Notices,
) -> Iterator[str]:
    """Yield the names of the allowed tools. Hosted tools are ignored if another tool is allowed."""
    if not any(isinstance(tool, NamedChoice) or tool.type in defined_names for tool in choices):
        raise _unusable_choice(choices[0].type)
    for tool in choices:
        if isinstance(tool, NamedChoice):
            yield _flat_choice(tool, namespaces)
        elif tool.type in defined_names:
            yield tool.type
        else:
            notices.ignore(f"tool_choice.tools[{tool.type}]", "This gateway has no hosted tools")


def _unusable_choice(kind: str) -> InvalidRequest:
    if kind not in ("function", "custom", "allowed_tools"):
        return tools.demands_hosted(kind)
    need = "'mode' and 'tools'" if kind == "allowed_tools" else "'name'"
    return InvalidRequest(f"'tool_choice' of type '{kind}' needs {need}.", param="tool_choice")


def _flat_choice(choice: NamedChoice, namespaces: Mapping[str, Namespaced]) -> str:
    """Return the offered name. A tool's own name suffices if only one namespace has it."""
    if choice.namespace is not None:
        return flat_name(choice.namespace, choice.name)
    candidates = [flat for flat, (_, tool_name) in namespaces.items() if tool_name == choice.name]
    if len(candidates) > 1 and choice.name not in namespaces:
        raise InvalidRequest(
            f"'tool_choice' names the tool '{choice.name[:64]}', which exists in several "
            f"namespaces; give the full name, one of: {', '.join(candidates)[:400]}.",
            param="tool_choice",
        )
    return candidates[0] if len(candidates) == 1 and choice.name not in namespaces else choice.name
