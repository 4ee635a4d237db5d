"""Chat templates as Hugging Face defines them, run in a Jinja sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
import orjson
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.rendering.messages import convert_messages, filter_variables, merge_developer

TAG = "<eaglegate: the answer goes on here> "
"""Marks where a final message ends, so that the template's text after it can be dropped."""


class GenerationTag(Extension):
    """``{% generation %}`` marks model output for training; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template. Raises ValueError where the template raises."""

    def __init__(self, source: str) -> None:
        environment = _create_environment()
        try:
            self._template = environment.from_string(source)
            tree = environment.parse(source)
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template cannot be read: {error}") from error
        self.source = source
        self.variables = frozenset(meta.find_undeclared_variables(tree))
        self.content_in_parts = _iterates_content(tree)
        """It expects a message's content as a list of parts."""
        self.knows_developer = '"developer"' in source or "'developer'" in source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
    ) -> str:
        given = {"documents": None} | dict(variables)
        own = {
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(given | own)
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError) as error:
            raise ValueError(str(error)) from error

    def render_open(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> str:
        """Render up to the end of the last message's content, for the model to continue it."""
        marked = [*messages[:-1], _mark_end(messages[-1])]
        text = self.render(marked, tools, variables, add_generation_prompt=False)
        at = text.rfind(TAG.strip())
        if at < 0:
            raise ValueError("the template leaves out the final message, so it cannot go on")
        kept = text[at : at + len(TAG)] == TAG
        return text[:at] if kept else text[:at].rstrip()


def _create_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter of Jinja escapes HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _iterates_content(tree: nodes.Template) -> bool:
    """Whether a loop iterates over a message's content, also inside a macro."""
    inside = {id(loop) for macro in tree.find_all(nodes.Macro) for loop in _find_loops(macro)}
    if any(
        _is_content(loop.iter) or (_is_named(loop.iter, {"content"}) and id(loop) not in inside)
        for loop in _find_loops(tree)
    ):
        return True
    return any(
        _is_named(loop.iter, _find_content_parameters(macro, tree))
        for macro in tree.find_all(nodes.Macro)
        for loop in _find_loops(macro)
    )


def _find_loops(node: nodes.Node) -> list[nodes.For]:
    return list(node.find_all(nodes.For))


def _find_content_parameters(macro: nodes.Macro, tree: nodes.Template) -> set[str]:
    """The parameters of ``macro`` that receive a message's content."""
    names: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if _is_named(call.node, {macro.name}):
            placed = zip(macro.args, call.args, strict=False)
            names |= {parameter.name for parameter, given in placed if _is_content(given)}
            names |= {given.key for given in call.kwargs if _is_content(given.value)}
    return names


def _is_content(node: nodes.Node | None) -> bool:
    """``message.content`` or ``message['content']``, also filtered, tested or sliced."""
    match node:
        case nodes.Filter() | nodes.Test() | nodes.Getitem(arg=nodes.Slice()):
            return _is_content(node.node)
        case nodes.Getattr():
            return node.attr == "content"
        case nodes.Getitem(arg=nodes.Const(value="content")):
            return True
    return False


def _is_named(node: nodes.Node | None, names: set[str]) -> bool:
    return isinstance(node, nodes.Name) and node.name in names


def _mark_end(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content + TAG}
    texts = [at for at, part in enumerate(content or ()) if "text" in part]
    if not texts:
        raise ValueError("the final message has no text to go on with")
    parts = [dict(part) for part in content or ()]
    parts[texts[-1]]["text"] += TAG
    return {**message, "content": parts}


@dataclass(frozen=True, slots=True)
class TemplateInput:
    """The input of one chat template, as plain data for another process."""

    source: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    named: Mapping[str, Any]
    kwargs: Mapping[str, Any]
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @property
    def packed(self) -> bytes:
        return orjson.dumps({name: getattr(self, name) for name in self.__slots__})

    def write(self, template: ChatTemplate) -> str:
        """Raises ValueError where the template raises."""
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("a final message to go on with leaves no place for a new one")
        talk = convert_messages(self.messages, in_parts=template.content_in_parts)
        if not template.knows_developer:
            talk = merge_developer(talk)
        variables = {**self.named, **filter_variables(self.kwargs, template.variables)}
        if self.continue_final_message:
            return template.render_open(talk, self.tools, variables)
        return template.render(
            talk, self.tools, variables, add_generation_prompt=self.add_generation_prompt
        )
