"""Tools and tool_choice of the Responses API to a ToolPolicy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.apis.responses.request import (
    AllowedChoice,
    HostedChoice,
    NamedChoice,
    ResponsesRequest,
    ResponseTool,
)
from server.apis.shared import tools
from server.apis.shared.notices import ignore
from server.apis.shared.request import MAX_TOOLS
from server.apis.shared.tools import read_text_grammar
from server.errors import InvalidRequest
from server.generation.job import Namespaced, ServedModel, ToolPolicy
from server.generation.text_grammar import TextGrammar

CLIENT_TOOLS = ("function", "custom", "namespace")
"""Types of tools that the client runs; all others are hosted tools, which are ignored."""


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """One tool as it is offered to the model."""

    function: dict[str, Any]
    """In the format of chat completions, with a flat name."""
    custom: bool
    namespaced: Namespaced | None = None
    grammar: TextGrammar | None = None

    @property
    def name(self) -> str:
        return str(self.function["function"]["name"])


def make_response_policy(request: ResponsesRequest, served: ServedModel) -> ToolPolicy:
    """Raises InvalidRequest."""
    offered = list(_list_offers(request.tools or (), "tools"))
    if len(offered) > MAX_TOOLS:
        raise InvalidRequest(
            f"There may be at most {MAX_TOOLS} tools, those in namespaces included; "
            f"given {len(offered)}.",
            param="tools",
        )
    named = {tool.name: tool.namespaced for tool in offered if tool.namespaced}
    return tools.make_policy(
        [tool.function for tool in offered],
        _read_choice(request, offered, named),
        request.parallel_tool_calls,
        served,
        custom={tool.name: tool.grammar for tool in offered if tool.custom},
        namespaces=named,
        hosted={t.type: t.type for t in request.tools or () if t.type not in CLIENT_TOOLS},
    )


def _list_offers(given: Sequence[ResponseTool], param: str) -> Iterator[ToolOffer]:
    for at, tool in enumerate(given):
        path = f"{param}[{at}]"
        if tool.type == "namespace":
            yield from _flatten_namespace(tool, path)
        elif tool.type in CLIENT_TOOLS:
            yield _make_offer(tool, path)
        else:
            tools.ignore_hosted(tool.type)


def _flatten_namespace(tool: ResponseTool, path: str) -> Iterator[ToolOffer]:
    """Its tools under flat names: chat templates do not know namespaces."""
    if tool.name is None or not tool.tools:
        missing = f"{path}.{'tools' if tool.name else 'name'}"
        raise InvalidRequest(
            f"'{missing}' is missing: a namespace needs a 'name' and 'tools'.", param=missing
        )
    for at, inner in enumerate(tool.tools):
        place = f"{path}.tools[{at}]"
        name = None if inner.name is None else tools.flat_name(tool.name, inner.name)
        yield _make_offer(
            inner.model_copy(update={"name": name}), place, (tool.name, inner.name or "")
        )


def _make_offer(tool: ResponseTool, path: str, namespaced: Namespaced | None = None) -> ToolOffer:
    if tool.type not in ("function", "custom") or tool.name is None:
        raise InvalidRequest(
            f"'{path}' must be of type 'function' or 'custom' and have a 'name'; "
            f"given type '{tool.type[:64]}'.",
            param=path,
        )
    if tool.type == "custom":
        function = tools.custom_function(tool.name, tool.description)
        return ToolOffer(function, True, namespaced, read_text_grammar(tool.format, path))
    described = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    known = {key: value for key, value in described.items() if value is not None}
    return ToolOffer({"type": "function", "function": known}, False, namespaced)


def _read_choice(
    request: ResponsesRequest, offered: Sequence[ToolOffer], namespaces: Mapping[str, Namespaced]
) -> tools.ToolSelection | None:
    match request.tool_choice:
        case None:
            return None
        case NamedChoice() as named:
            return tools.ToolSelection("required", (_flat_choice(named, namespaces),), single=True)
        case AllowedChoice(mode=mode, tools=allowed):
            return tools.ToolSelection(mode, tuple(_allowed_names(allowed, namespaces)))
        case HostedChoice(type=kind):
            raise _unusable_choice(kind)
        case "auto" | "none" as mode if not offered:
            return tools.ToolSelection("none")
        case mode:
            return tools.ToolSelection(mode)


def _allowed_names(
    allowed: Sequence[NamedChoice | HostedChoice], namespaces: Mapping[str, Namespaced]
) -> Iterator[str]:
    """Their names; hosted tools are ignored if there is another."""
    if not any(isinstance(tool, NamedChoice) for tool in allowed):
        raise _unusable_choice(allowed[0].type)
    for tool in allowed:
        if isinstance(tool, NamedChoice):
            yield _flat_choice(tool, namespaces)
        else:
            ignore(f"tool_choice.tools[{tool.type}]", "This gateway has no hosted tools")


def _unusable_choice(kind: str) -> InvalidRequest:
    if kind not in ("function", "custom", "allowed_tools"):
        return tools.demands_hosted(kind)
    need = "'mode' and 'tools'" if kind == "allowed_tools" else "'name'"
    return InvalidRequest(f"'tool_choice' of type '{kind}' needs {need}.", param="tool_choice")


def _flat_choice(named: NamedChoice, namespaces: Mapping[str, Namespaced]) -> str:
    """The offered name; a tool's own name suffices if only one namespace has it."""
    if named.namespace is not None:
        return tools.flat_name(named.namespace, named.name)
    found = [flat for flat, (_, own) in namespaces.items() if own == named.name]
    if len(found) > 1 and named.name not in namespaces:
        raise InvalidRequest(
            f"'tool_choice' names the tool '{named.name[:64]}', which exists in several "
            f"namespaces; give the full name, one of: {', '.join(found)[:400]}.",
            param="tool_choice",
        )
    return found[0] if len(found) == 1 and named.name not in namespaces else named.name
