"""The tools and tool_choice of the Responses API to a ToolPolicy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.errors import InvalidRequest
from server.job import Namespaced, ToolPolicy
from server.protocol.base import MAX_TOOLS
from server.protocol.responses import AllowedChoice, NamedChoice, ResponsesRequest, Tool
from server.validate import tools
from server.validate.served import Served


@dataclass(frozen=True, slots=True)
class Offered:
    """One tool as it is offered to the model."""

    function: dict[str, Any]
    """As chat completions write it, its name flat."""
    custom: bool
    namespaced: Namespaced | None = None

    @property
    def name(self) -> str:
        return str(self.function["function"]["name"])


def response_policy(request: ResponsesRequest, served: Served) -> ToolPolicy:
    """Raises InvalidRequest."""
    offered = list(_offered(request.tools or (), "tools"))
    if len(offered) > MAX_TOOLS:
        raise InvalidRequest(
            f"There may be at most {MAX_TOOLS} tools, those in namespaces included; "
            f"given {len(offered)}.",
            param="tools",
        )
    named = {tool.name: tool.namespaced for tool in offered if tool.namespaced}
    return tools.policy(
        [tool.function for tool in offered],
        _choice(request, named),
        request.parallel_tool_calls,
        served,
        custom=[tool.name for tool in offered if tool.custom],
        namespaces=named,
    )


def _offered(given: Sequence[Tool], param: str) -> Iterator[Offered]:
    for at, tool in enumerate(given):
        path = f"{param}[{at}]"
        if tool.type == "namespace":
            yield from _in_namespace(tool, path)
        else:
            yield _one(tool, path)


def _in_namespace(tool: Tool, path: str) -> Iterator[Offered]:
    """Its tools under flat names: no chat template knows namespaces."""
    if tool.name is None or not tool.tools:
        missing = f"{path}.{'tools' if tool.name else 'name'}"
        raise InvalidRequest(
            f"'{missing}' is missing: a namespace needs a 'name' and 'tools'.", param=missing
        )
    for at, inner in enumerate(tool.tools):
        place = f"{path}.tools[{at}]"
        name = None if inner.name is None else tools.flat_name(tool.name, inner.name)
        yield _one(inner.model_copy(update={"name": name}), place, (tool.name, inner.name or ""))


def _one(tool: Tool, path: str, namespaced: Namespaced | None = None) -> Offered:
    if tool.type not in ("function", "custom") or tool.name is None:
        raise InvalidRequest(
            f"'{path}' has type '{tool.type}': there are no hosted tools here, only the client's "
            "own (type 'function' or 'custom', with 'name').",
            param=path,
            code="unsupported_parameter",
        )
    if tool.type == "custom":
        function = tools.custom_tool(tool.name, tool.description, tool.format, path)
        return Offered(function, True, namespaced)
    described = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    known = {key: value for key, value in described.items() if value is not None}
    return Offered({"type": "function", "function": known}, False, namespaced)


def _choice(request: ResponsesRequest, namespaces: Mapping[str, Namespaced]) -> tools.Choice | None:
    match request.tool_choice:
        case None:
            return None
        case NamedChoice() as named:
            return tools.Choice("required", (_flat(named, namespaces),), single=True)
        case AllowedChoice(mode=mode, tools=allowed):
            return tools.Choice(mode, tuple(_flat(tool, namespaces) for tool in allowed))
        case "auto" | "none" as mode if not request.tools:
            return tools.Choice("none" if mode == "auto" else mode)
        case mode:
            return tools.Choice(mode)


def _flat(named: NamedChoice, namespaces: Mapping[str, Namespaced]) -> str:
    """The name as it is offered; a tool's own name will do where one namespace has it."""
    if named.namespace is not None:
        return tools.flat_name(named.namespace, named.name)
    found = [flat for flat, (_, own) in namespaces.items() if own == named.name]
    if len(found) > 1 and named.name not in namespaces:
        raise InvalidRequest(
            f"'tool_choice' names the tool '{named.name[:64]}', which several namespaces have; "
            f"give the full name, one of: {', '.join(found)[:400]}.",
            param="tool_choice",
        )
    return found[0] if len(found) == 1 and named.name not in namespaces else named.name
