"""Messages to token ids with vLLM's own renderers; needs no running engine.

vLLM has a renderer per tokenizer family (Hugging Face templates, Mistral's tekken, DeepSeek's
encoders in code, Kimi); gpt-oss has none there and goes through Harmony, as in vLLM's server.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.renderers import ChatParams
from vllm.renderers.chat_utils import load_chat_template
from vllm.renderers.hf import resolve_chat_template
from vllm.renderers.registry import renderer_from_config
from vllm.usage.usage_lib import UsageContext

from engine.rendering.encoding import NO_LIMITS, WINDOW, RenderLimits, TextEncoder, truncate_ids
from engine.rendering.sandbox import SMALL_BYTES, TemplateRunner
from engine.rendering.template import (
    CODED,
    ChatTemplate,
    TemplateInput,
    filter_variables,
    merge_developer,
)

READ_DEVELOPER = frozenset({"HfRenderer", "CohereRenderer", "InklingRenderer"})
"""Renderers that give OpenAI's developer role to a template that knows it, else as the system's.

The others refuse the role (Mistral) or mean something else by it (DeepSeek's search agents).
"""


class VllmRenderer:
    """See ``server.generation.prompt.Renderer``. Raises ValueError where the template refuses."""

    def __init__(
        self,
        arguments: AsyncEngineArgs,
        chat_template: str | None = None,
        content_format: str = "auto",
    ) -> None:
        config = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
        self._renderer = renderer_from_config(config)
        self._model_config = config.model_config
        self._templated = type(self._renderer).__name__ == "HfRenderer"
        self._harmony = config.model_config.hf_config.model_type == "gpt_oss"
        self._reads_developer = self._harmony or type(self._renderer).__name__ in READ_DEVELOPER
        self._content_format: Any = content_format
        self._chat_template = load_chat_template(chat_template)
        self._tokenizing = dataclasses.replace(
            self._renderer.default_chat_tok_params, max_total_tokens=None
        )
        """Without vLLM's check of the length: a prompt's fit is decided for all renderers alike."""
        self._writer = TemplateRunner()
        fast = getattr(self.tokenizer, "backend_tokenizer", None)
        self._encoder = TextEncoder(fast) if isinstance(fast, Tokenizer) else None

    def tokenizer_info(self) -> dict[str, Any]:
        """As ``vllm serve`` gives it, with the chat template that is in force."""
        from vllm.entrypoints.serve.tokenize.serving import TokenizerInfo

        template = self._resolve_template(False) if self._templated else None
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
        """``chat_template`` is a request's own."""
        template = self._resolve_template(bool(tools)) if self._templated else None
        if template is not None:
            writing = TemplateInput(
                chat_template or template.source,
                messages,
                tools,
                self.tokenizer.special_tokens_map,
                chat_template_kwargs or {},
                add_generation_prompt,
                continue_final_message,
            )
            small = self._content_format != "auto" or len(writing.packed) <= SMALL_BYTES
            if chat_template is not None or not small:
                text = self._writer.write(writing, None, limits)
                return self._encode(text, False, limits)
        elif chat_template is not None:
            raise ValueError("the prompts of this model are written in code, not by a template")
        read = CODED if template is None else template.variables
        kwargs = filter_variables(chat_template_kwargs, read) | {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }
        token_ids = self._render(messages, tools, kwargs)
        limits.check(len(token_ids))
        return token_ids

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: dict[str, Any],
    ) -> list[int]:
        """As vLLM does it."""
        conversation = [dict(message) for message in messages]
        if not self._reads_developer:
            conversation = merge_developer(conversation)
        if self._harmony:
            return _render_harmony(conversation, tools, kwargs)
        kwargs["tools"] = [dict(tool) for tool in tools] if tools else None
        params = ChatParams(
            chat_template=self._chat_template,
            chat_template_content_format=self._content_format,
            chat_template_kwargs=kwargs,
        )
        try:
            _, (prompt,) = self._renderer.render_chat([conversation], params, self._tokenizing)
        except VLLMClientError as error:
            raise ValueError(str(error)) from error
        return list(prompt["prompt_token_ids"])

    def encode(
        self, text: str, add_special_tokens: bool, limits: RenderLimits = NO_LIMITS
    ) -> list[int]:
        return self._encode(text, add_special_tokens, limits)

    def _encode(self, text: str, add_special_tokens: bool, limits: RenderLimits) -> list[int]:
        if self._encoder is not None and len(text) > WINDOW:
            return self._encoder.encode(text, add_special_tokens, limits)
        token_ids = list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))
        limits.check(len(token_ids))
        return truncate_ids(token_ids, limits)

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))

    @lru_cache(maxsize=2)  # noqa: B019
    def _resolve_template(self, with_tools: bool) -> ChatTemplate | None:
        """The one vLLM would take."""
        source = resolve_chat_template(
            self.tokenizer,
            self._chat_template,
            [{}] if with_tools else None,
            model_config=self._model_config,
        )
        return None if source is None else ChatTemplate(source)


def _render_harmony(
    messages: list[dict[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    kwargs: Mapping[str, Any],
) -> list[int]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionToolsParam
    from vllm.entrypoints.openai.parser import harmony_utils

    instructions, rest = harmony_utils.extract_instructions_from_messages(messages)
    preamble = harmony_utils.build_harmony_preamble(
        instructions=instructions,
        tools=[ChatCompletionToolsParam.model_validate(tool) for tool in tools or ()] or None,
        reasoning_effort=kwargs.get("reasoning_effort"),
        with_custom_tools=bool(tools),
    )
    conversation = [*preamble, *harmony_utils.parse_chat_inputs_to_harmony_messages(rest)]
    return list(harmony_utils.render_for_completion(conversation))
