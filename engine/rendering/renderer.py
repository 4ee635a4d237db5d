"""Renderer without vLLM: starts in a fraction of a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engine.rendering.encoding import NO_LIMITS, RenderLimits, TextEncoder
from engine.rendering.files import ModelFiles
from engine.rendering.sandbox import TemplateRunner
from engine.rendering.special_text import MarkedInput, SpecialText
from engine.rendering.template import ChatTemplate, TemplateInput


class TemplateRenderer:
    """See ``server.generation.prompt.Renderer``. Raises ValueError where the template refuses."""

    def __init__(
        self, files: ModelFiles, chat_template: str | None = None, parse_special: bool = False
    ) -> None:
        """``parse_special``: a special token's text in a message becomes the token."""
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(files.tokenizer_json))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._encoder = TextEncoder(self._tokenizer)
        self._special = self._find_special_text()
        self._parse_special = parse_special
        self._writer = TemplateRunner()
        self._named = files.special_tokens
        self._info = files.tokenizer_info
        given = None if chat_template is None else read_template(chat_template)
        self._plain = _compile(given or files.chat_template(with_tools=False))
        self._with_tools = _compile(given or files.chat_template(with_tools=True))

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def tokenizer_info(self) -> dict[str, Any]:
        template = {} if self._plain is None else {"chat_template": self._plain.source}
        return self._info | template

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
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        limits: RenderLimits = NO_LIMITS,
    ) -> list[int]:
        """``chat_template`` overrides the model's, for this request."""
        template = self._with_tools if tools else self._plain
        if template is None and chat_template is None:
            raise ValueError("the model has no chat template: give one with --chat-template")
        own = chat_template is None
        given = MarkedInput(messages, tools, chat_template_kwargs or {})
        if not self._parse_special:
            given = self._special.mark(given.messages, given.tools, given.kwargs)
        writing = TemplateInput(
            chat_template or (template.source if template else ""),
            given.messages,
            given.tools,
            self._named,
            given.kwargs,
            add_generation_prompt,
            continue_final_message,
        )
        text = self._writer.write(writing, template if own else None, limits)
        return self._encoder.encode_parts(text, given.mark, limits)

    def encode(
        self, text: str, add_special_tokens: bool, limits: RenderLimits = NO_LIMITS
    ) -> list[int]:
        return self._encoder.encode(text, add_special_tokens, limits)

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def spells_special_tokens(self, text: str, token_ids: Sequence[int]) -> bool:
        """Whether ``text``, tokenized again, would have special tokens that these ids do not."""
        added = self._tokenizer.get_added_tokens_decoder()
        return self._special.count(text) > sum(1 for id in token_ids if id in added)

    def _find_special_text(self) -> SpecialText:
        added = self._tokenizer.get_added_tokens_decoder().values()
        return SpecialText.of(added, lambda text: self.encode(text, False), self.decode)


def _compile(source: str | None) -> ChatTemplate | None:
    return None if source is None else ChatTemplate(source)


def read_template(template: str) -> str:
    """The content of a file, or the template itself, which has line breaks or braces."""
    if any(mark in template for mark in "{}\n"):
        return template
    return Path(template).read_text(encoding="utf-8")
