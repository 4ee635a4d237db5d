"""Tools and tool_choice of a request as a ToolPolicy."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from eaglegate.server.access.notices import Notices
from eaglegate.server.apis.shared.constraints import (
    check_bounds,
    check_readable,
    check_schema,
    check_strict,
)
from eaglegate.server.apis.shared.fields import CustomFormat
from eaglegate.server.apis.shared.text_grammars import compile_grammar
from eaglegate.server.errors import InvalidRequest
from eaglegate.server.generation.job import Namespaced, ToolPolicy
from eaglegate.server.generation.served_model import ServedModel
from eaglegate.text.parsing.tools import PARAMETERS

if TYPE_CHECKING:
    from eaglegate.text.grammars.text_grammar import TextGrammar

OfferedTool = Mapping[str, Any]
"""A tool in the format of chat completions: {"type": "function", "function": {...}}."""


@dataclass(frozen=True, slots=True)
class ToolSelection:
    """API-independent tool choice."""

    mode: str
    """Mode of the choice: none, auto or required."""
    names: tuple[str, ...] = ()
    """Functions that may be called; empty for all."""
    single: bool = False
    """True for exactly one call, regardless of parallel_tool_calls."""


def custom_function(name: str, description: str | None) -> dict[str, Any]:
    """Return a custom tool as a function with one text argument."""
    members = {} if description is None else {"description": description}
    return {"type": "function", "function": {"name": name, **members, "parameters": PARAMETERS}}


def ignore_hosted(kind: str, notices: Notices) -> None:
    """Ignore a hosted tool. Raises InvalidRequest under ``--unknown-fields refuse``."""
    rule = "This gateway has no hosted tools, only tools that the client runs"
    notices.ignore(f"tools[{kind}]", rule)


def make_policy(
    tools: Sequence[OfferedTool],
    choice: ToolSelection | None,
    parallel: bool | None,
    served_model: ServedModel,
    *,
    custom: Mapping[str, TextGrammar | None] | None = None,
    namespaces: Mapping[str, Namespaced] | None = None,
    hosted_tools: Mapping[str, str] | None = None,
    defined_names: frozenset[str] = frozenset(),
) -> ToolPolicy:
    """Make the policy of a request. Raises InvalidRequest.

    ``custom`` has the grammar of each custom tool by name, ``hosted_tools`` the type of each
    ignored hosted tool by name, and ``defined_names`` the names of tools that the API defines.
    """
    if choice is None or (choice.mode == "auto" and not choice.names):
        choice = ToolSelection("auto" if tools else "none")
    functions = tuple(tools)
    if choice.mode != "none":
        _check_hosted(functions, choice, hosted_tools or {})
        _check_offered(functions, choice, served_model)
    allows_several = parallel is not False and not choice.single
    return ToolPolicy(
        functions,
        choice.mode,
        frozenset(choice.names),
        allows_several,
        custom or {},
        namespaces or {},
        defined_names,
    )


def demands_hosted(kind: str) -> InvalidRequest:
    return InvalidRequest(
        f"'tool_choice' requires a tool of type '{kind[:64]}': this gateway has no hosted tools, "
        "only tools that the client runs.",
        param="tool_choice",
    )


def _check_hosted(
    tools: Sequence[OfferedTool], choice: ToolSelection, hosted_tools: Mapping[str, str]
) -> None:
    """Refuse a choice that only ignored tools could satisfy."""
    names = {str(tool["function"]["name"]) for tool in tools}
    for name in choice.names:
        if name in hosted_tools and name not in names:
            raise demands_hosted(hosted_tools[name])
    if hosted_tools and not tools:
        raise demands_hosted(next(iter(hosted_tools.values())))


def _check_offered(
    tools: Sequence[OfferedTool], choice: ToolSelection, served_model: ServedModel
) -> None:
    if not tools:
        raise InvalidRequest("'tool_choice' needs 'tools'.", param="tool_choice")
    if not served_model.tools:
        raise InvalidRequest(
            "This gateway runs without a tool-call parser, so it cannot take 'tools'; "
            "start it with --tool-call-parser.",
            param="tools",
        )
    names = [str(tool["function"]["name"]) for tool in tools]
    if len(set(names)) < len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(
            f"Two of the 'tools' have the name '{duplicate}'; names must differ.", param="tools"
        )
    _check_known(choice.names, frozenset(names))
    for index, tool in enumerate(tools):
        _check_parameters(tool["function"], f"tools[{index}]")


_ACCEPTED: set[bytes] = set()
"""Digests of parameters that passed the checks, because agents send the same tools with every
turn.
"""
MAX_ACCEPTED = 4096


def _check_parameters(function: Mapping[str, Any], param: str) -> None:
    schema, strict = function.get("parameters"), function.get("strict") is True
    parameters_json = orjson.dumps((schema, strict, "parameters" in function))
    digest = hashlib.blake2b(parameters_json, digest_size=16).digest()
    if digest in _ACCEPTED:
        return
    check_bounds(schema, param)
    if isinstance(schema, dict):
        check_readable(schema, param)
    if strict and "parameters" in function:
        check_schema(function["parameters"], param)
        check_strict(function["parameters"], param)
    if len(_ACCEPTED) >= MAX_ACCEPTED:
        _ACCEPTED.clear()
    _ACCEPTED.add(digest)


def _check_known(names: Collection[str], tool_names: Collection[str]) -> None:
    for name in names:
        if name not in tool_names:
            raise InvalidRequest(
                f"'tool_choice' names the tool '{name[:64]}', which is not in 'tools'.",
                param="tool_choice",
            )


def read_text_grammar(form: CustomFormat | None, path: str) -> TextGrammar | None:
    """Compile the grammar of a custom tool; None for free text.

    Chat completions nest the grammar one level deeper than the Responses API.
    """
    if form is None or form.type == "text":
        return None
    grammar, location = (
        (form.grammar, f"{path}.format.grammar") if form.grammar else (form, f"{path}.format")
    )
    if grammar.syntax is None or grammar.definition is None:
        raise InvalidRequest(
            f"'{location}' needs a 'syntax' (lark or regex) and a 'definition'.", param=location
        )
    return compile_grammar(grammar.syntax, grammar.definition, f"{location}.definition")
