"""Rendering of messages to token ids with vLLM's own renderers; needs no running engine.

A usual conversation goes directly to the model's template. For everything else vLLM has a renderer
per tokenizer family (Hugging Face templates, Mistral's tekken, DeepSeek's encoders in code, Kimi).
gpt-oss has no renderer there and goes through Harmony, as in vLLM's server.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.renderers import ChatParams
from vllm.renderers.hf import resolve_chat_template, resolve_chat_template_content_format
from vllm.renderers.registry import renderer_from_config

from eaglegate.engine.vllm_backend.arguments import make_engine_config
from eaglegate.text.rendering.encoding import (
    NO_LIMITS,
    WINDOW,
    RenderLimits,
    TextEncoder,
    truncate_ids,
)
from eaglegate.text.rendering.sandbox import SMALL_BYTES, TemplateInput, TemplateRunner
from eaglegate.text.rendering.special_text import (
    MarkedInput,
    Messages,
    SpecialText,
    SpecialTextRefused,
)
from eaglegate.text.rendering.template import (
    CODED,
    INSTRUCTIONS,
    ChatTemplate,
    filter_variables,
    has_images,
    merge_developer,
    merge_refused,
    read_template,
)
from eaglegate.text.rendering.watchdog import RenderTooSlow

READ_DEVELOPER = frozenset({"HfRenderer", "CohereRenderer", "InklingRenderer"})
"""Renderers that pass OpenAI's developer role to a template that knows it, else as the system role.

The others refuse the role (Mistral) or use it for something else (DeepSeek's search agents).
"""

SYSTEM_FIRST = frozenset({"DeepseekV32Renderer"})
"""Renderers that write a later system message into the assistant's turn, as its own words."""
WRITE_TEXT = frozenset({"HfRenderer", "DeepseekV32Renderer", "DeepseekV4Renderer"})
"""Renderers that return text if asked not to tokenize it."""
TOKENIZE_WHOLE = frozenset({"MistralRenderer", "KimiK3Renderer", "InklingRenderer"})
"""Renderers that tokenize a prompt at once, as Harmony does."""
READ_TEXT = frozenset({"MistralRenderer", "KimiK3Renderer"})
"""Renderers that read message contents as text only, without special tokens. So does Harmony."""
TEMPLATE_RUNNERS = frozenset({"vllm.tokenizers.hf", "transformers.tokenization_utils_base"})
"""Modules whose ``apply_chat_template`` only runs the template."""
MAX_CODED_TOKENS = 1 << 19
"""Most tokens of a prompt tokenized at once that is to be truncated."""


class VllmRenderer:
    """See ``eaglegate.text.rendering.base.Renderer``. Raises ValueError if the template refuses a
    conversation."""

    def __init__(
        self,
        source: AsyncEngineArgs | VllmConfig,
        chat_template: str | None = None,
        content_format: str = "auto",
        parse_special: bool = False,
    ) -> None:
        """Open the renderer. ``chat_template`` is a file or the template itself.

        With ``parse_special``, a special token's text in a message becomes the token. Raises
        OSError if the template's file does not exist.
        """
        self._chat_template = None if chat_template is None else read_template(chat_template)
        config = source if isinstance(source, VllmConfig) else make_engine_config(source)
        self._renderer = renderer_from_config(config)
        self._name = type(self._renderer).__name__
        self._model_config = config.model_config
        self._max_model_len = config.model_config.max_model_len
        self._has_template = self._name == "HfRenderer"
        self._is_harmony = config.model_config.hf_config.model_type == "gpt_oss"
        self._accepted_roles = () if self._name in SYSTEM_FIRST else INSTRUCTIONS
        self._reads_developer = self._is_harmony or self._name in READ_DEVELOPER
        self._content_format: Any = content_format
        self._tokenizing_params = dataclasses.replace(
            self._renderer.default_chat_tok_params, max_total_tokens=None
        )
        """Parameters without vLLM's check of the length, which the gateway checks for all
        renderers."""
        self._writer = TemplateRunner()
        fast_tokenizer = getattr(self.tokenizer, "backend_tokenizer", None)
        self._encoder = (
            TextEncoder(fast_tokenizer) if isinstance(fast_tokenizer, Tokenizer) else None
        )
        self._encodes_chat = self._encoder is not None and not self._tokenizing_params.do_lower_case
        """True if chats are encoded here. vLLM's tokenizer would compute offsets as well."""
        self._special_tokens = dict(getattr(self.tokenizer, "special_tokens_map", {}))
        self._writes_usual = self._encodes_chat and self._has_usual_template()
        self._special_text = None if parse_special else self._find_special_text()
        if self._has_template:
            self._warm_up()

    def _warm_up(self) -> None:
        """Render both kinds of content, whose first renders take long, before any request."""
        for content in ("a", [{"type": "text", "text": "a"}]):
            with suppress(Exception):  # the template may refuse such a conversation
                self.render_chat([{"role": "user", "content": content}], None)

    def tokenizer_info(self) -> dict[str, Any]:
        """Describe the tokenizer as ``vllm serve`` does, with the chat template in use."""
        from vllm.entrypoints.serve.tokenize.serving import TokenizerInfo

        template = self._resolve_template(False) if self._has_template else None
        source = self._chat_template if template is None else template.source
        return dict(TokenizerInfo(self.tokenizer, source).to_dict())

    @property
    def tokenizer(self) -> Any:
        return self._renderer.get_tokenizer()

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
        """Render a conversation to token ids. ``chat_template`` is the request's own template."""
        chat = MarkedInput(messages, tools, chat_template_kwargs or {})
        if self._special_text is not None:
            chat = self._special_text.mark(chat.messages, chat.tools, chat.kwargs)
        template = self._resolve_template(bool(tools)) if self._has_template else None
        if template is not None:
            template_input = TemplateInput(
                chat_template or template.source,
                chat.messages,
                chat.tools,
                self._special_tokens,
                chat.kwargs,
                add_generation_prompt,
                continue_final_message,
            )
            model_template = None if chat_template is not None else template
            if (
                model_template is None
                or model_template.is_suspect
                or self._writes(template_input, bool(chat.mark))
            ):
                text = self._writer.write(template_input, model_template, limits)
                return self._encode_parts(text, chat.mark, limits)
        elif chat_template is not None:
            raise ValueError("the prompts of this model are written in code, not by a template")
        if template is None and has_images(messages):
            raise ValueError("it is written in code, which this gateway gives text only")
        variables = CODED if template is None else template.variables
        kwargs = filter_variables(chat.kwargs, variables) | {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }
        if template is not None and template_input.num_bytes <= SMALL_BYTES:
            try:
                token_ids = self._writer.watch(
                    template, lambda: self._render(chat, kwargs, limits, template), limits
                )
            except RenderTooSlow:
                text = self._writer.write(template_input, template, limits)
                return self._encode_parts(text, chat.mark, limits)
        else:
            token_ids = self._render(chat, kwargs, limits, template)
        limits.check(len(token_ids), exact=True)
        return token_ids

    def _writes(self, template_input: TemplateInput, is_marked: bool) -> bool:
        """Return True if the model's own template is run here, and not by vLLM.

        Both give the same prompt. For a usual conversation, vLLM's own work takes as long as the
        template. A long conversation must not be rendered in this process. The parts of a marked
        one are encoded separately.
        """
        if self._writes_usual and template_input.is_usual:
            return True
        if has_images(template_input.messages):  # vLLM would ask for the images themselves
            return True
        return self._content_format == "auto" and (
            is_marked or template_input.num_bytes > SMALL_BYTES
        )

    def _has_usual_template(self) -> bool:
        """Return True if vLLM passes the template a conversation and nothing else."""
        kinds = type(self.tokenizer).__mro__
        runners = {kind.__module__ for kind in kinds if "apply_chat_template" in vars(kind)}
        is_plain = runners <= TEMPLATE_RUNNERS and not self._model_config.enable_prompt_embeds
        return self._has_template and is_plain

    def _render(
        self,
        chat: MarkedInput,
        kwargs: dict[str, Any],
        limits: RenderLimits,
        template: ChatTemplate | None,
    ) -> list[int]:
        """Render as vLLM does. ``template`` is None if the prompt is written in code."""
        messages = (
            merge_refused(chat.messages, self._accepted_roles)
            if template is None
            else template.arrange(chat.messages, self._special_tokens)
        )
        conversation = [dict(message) for message in messages]
        if not self._reads_developer:
            conversation = merge_developer(conversation)
        if self._is_harmony or self._name in TOKENIZE_WHOLE:
            self._check_length(chat, limits)
        if self._is_harmony:
            return _render_harmony(conversation, chat.tools, kwargs)
        kwargs["tools"] = [dict(tool) for tool in chat.tools] if chat.tools else None
        uses_vllm = self._has_template and not chat.mark and not self._encodes_chat
        if self._name in WRITE_TEXT and not uses_vllm:
            kwargs["tokenize"] = False
        params = ChatParams(
            chat_template=self._chat_template,
            chat_template_content_format=self._content_format,
            chat_template_kwargs=kwargs,
        )
        try:
            if uses_vllm:
                rendering = self._renderer.render_chat(
                    [conversation], params, self._tokenizing_params
                )
                return list(rendering[1][0]["prompt_token_ids"])
            _, prompt = self._renderer.render_messages(conversation, params)
        except VLLMClientError as error:
            raise ValueError(str(error)) from error
        if isinstance(text := prompt.get("prompt"), str):
            return self._encode_parts(text, chat.mark, limits)
        if chat.mark:
            raise SpecialTextRefused
        return list(prompt["prompt_token_ids"])

    def _check_length(self, chat: MarkedInput, limits: RenderLimits) -> None:
        """Check the length of prompts that vLLM tokenizes at once, by counting their text in
        windows first.

        Raises PromptTooLong or RenderingCancelled.
        """
        pieces = list(split_texts(chat.messages, chat.tools or ()))
        if sum(map(len, pieces)) <= WINDOW:
            return
        max_tokens = limits.max_tokens if limits.keep is None else None
        bound = RenderLimits(
            max_tokens or max(MAX_CODED_TOKENS, self._max_model_len), ended=limits.ended
        )
        num_tokens = 0
        for piece in pieces:
            # A piece may share its first and last token with its neighbours.
            num_tokens += max(0, len(self.tokenizer.encode(piece, add_special_tokens=False)) - 2)
            bound.check(num_tokens)

    def _find_special_text(self) -> SpecialText | None:
        """Return the special tokens' texts; None if vLLM reads message contents as text only."""
        if self._is_harmony or self._name in READ_TEXT:
            return None
        added_tokens = self.tokenizer.added_tokens_decoder.values()
        special_text = SpecialText.of(
            added_tokens, lambda text: self.encode(text, False), self.decode
        )
        special_text.splits &= self._name not in TOKENIZE_WHOLE
        return special_text

    def _encode_parts(self, text: str, mark: str, limits: RenderLimits) -> list[int]:
        if self._encoder is not None:
            return self._encoder.encode_parts(text, mark, limits)
        if not mark:
            return self.encode(text, False, limits)
        token_ids: list[int] = []
        for part in text.split(mark):
            token_ids += self.tokenizer.encode(part, add_special_tokens=False)
            limits.check(len(token_ids), exact=True)
        return truncate_ids(token_ids, limits)

    def encode(
        self, text: str, add_special_tokens: bool, limits: RenderLimits = NO_LIMITS
    ) -> list[int]:
        if self._encoder is not None:
            return self._encoder.encode(text, add_special_tokens, limits)
        token_ids = list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))
        limits.check(len(token_ids), exact=True)
        return truncate_ids(token_ids, limits)

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))

    @lru_cache(maxsize=2)  # noqa: B019
    def _resolve_template(self, with_tools: bool) -> ChatTemplate | None:
        """Return the template that vLLM would use; None if there is none."""
        source = resolve_chat_template(
            self.tokenizer,
            self._chat_template,
            [{}] if with_tools else None,
            model_config=self._model_config,
        )
        if source is None:
            return None
        template = ChatTemplate(source)
        if template.is_suspect and self._content_format == "auto":
            return template
        content_format = resolve_chat_template_content_format(
            self._chat_template,
            [{}] if with_tools else None,
            self._content_format,
            self.tokenizer,
            model_config=self._model_config,
        )
        template.content_in_parts = content_format == "openai"
        return template


def split_texts(messages: Messages, tools: Messages) -> Iterator[str]:
    """Split the texts that certainly become part of a prompt into pieces."""
    contents = [message.get("content") for message in messages]
    texts = [content for content in contents if isinstance(content, str)]
    parts = [part for content in contents if isinstance(content, list | tuple) for part in content]
    texts += [part["text"] for part in parts if isinstance(part.get("text"), str)]
    descriptions = (tool.get("function", {}).get("description") for tool in tools)
    texts += [text for text in descriptions if isinstance(text, str)]
    for text in texts:
        yield from (text[index : index + WINDOW] for index in range(0, len(text), WINDOW))


def _render_harmony(
    messages: list[dict[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    kwargs: Mapping[str, Any],
) -> list[int]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionToolsParam
    from vllm.entrypoints.openai.parser import harmony_utils

    instructions, other_messages = harmony_utils.extract_instructions_from_messages(messages)
    preamble = harmony_utils.build_harmony_preamble(
        instructions=instructions,
        tools=[ChatCompletionToolsParam.model_validate(tool) for tool in tools or ()] or None,
        reasoning_effort=kwargs.get("reasoning_effort"),
        with_custom_tools=bool(tools),
    )
    conversation = [*preamble, *harmony_utils.parse_chat_inputs_to_harmony_messages(other_messages)]
    return list(harmony_utils.render_for_completion(conversation))
