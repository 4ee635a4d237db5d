"""One chat prompt to write, as plain data that another process can be given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from engine.rendering.messages import convert_messages, merge_developer
from engine.rendering.template import ChatTemplate
from engine.rendering.variables import filter_variables


@dataclass(frozen=True, slots=True)
class TemplateInput:
    """What a template is given. ``kwargs`` are the request's, ``named`` the tokenizer's."""

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
        """Raises ValueError where the template refuses."""
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
