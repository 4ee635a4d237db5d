"""The Renderer of a gateway that has no vLLM: starts in a fraction of a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engine.rendering.files import ModelFiles
from engine.rendering.messages import conversation, without_developer
from engine.rendering.template import ChatTemplate

OWN = ("messages", "tools", "documents", "add_generation_prompt", "chat_template", "tokenize")
"""Names in a template that are not a request's to give."""


class TemplateRenderer:
    """See ``server.prompt.Renderer``. Raises ValueError where the template refuses."""

    def __init__(self, files: ModelFiles, chat_template: str | None = None) -> None:
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(files.tokenizer_json))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._named = files.special_tokens
        given = None if chat_template is None else _read(chat_template)
        self._plain = _compiled(given or files.chat_template(with_tools=False))
        self._with_tools = _compiled(given or files.chat_template(with_tools=True))

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def vocab_size(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        template = self._with_tools if tools else self._plain
        if template is None:
            raise ValueError("the model has no chat template: give one with --chat-template")
        if continue_final_message and add_generation_prompt:
            raise ValueError("a final message to go on with leaves no place for a new one")
        talk = conversation(messages, in_parts=template.content_in_parts)
        if not template.knows_developer:
            talk = without_developer(talk)
        given = {
            key: value for key, value in (chat_template_kwargs or {}).items() if key not in OWN
        }
        variables = self._named | given
        if continue_final_message:
            text = template.render_open(talk, tools, variables)
        else:
            text = template.render(
                talk, tools, variables, add_generation_prompt=add_generation_prompt
            )
        return self.encode(text, add_special_tokens=False)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))


def _compiled(source: str | None) -> ChatTemplate | None:
    return None if source is None else ChatTemplate(source)


def _read(template: str) -> str:
    """A file, or the template itself, which has line ends or braces."""
    if any(mark in template for mark in "{}\n"):
        return template
    return Path(template).read_text(encoding="utf-8")
