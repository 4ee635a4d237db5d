"""Messages to token ids with vLLM's own renderers; needs no running engine.

vLLM has a renderer per tokenizer family (Hugging Face templates, Mistral's tekken, DeepSeek's
encoders in code, Kimi); gpt-oss has none there and goes through Harmony, as in vLLM's server.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.renderers import ChatParams
from vllm.renderers.chat_utils import load_chat_template
from vllm.renderers.registry import renderer_from_config
from vllm.usage.usage_lib import UsageContext

from engine.rendering.messages import without_developer

Message = Mapping[str, Any]
Tool = Mapping[str, Any]

READ_DEVELOPER = frozenset({"HfRenderer", "CohereRenderer", "InklingRenderer"})
"""Renderers that give OpenAI's developer role to a template that knows it, else as the system's.

The others refuse the role (Mistral) or mean something else by it (DeepSeek's search agents).
"""


class VllmRenderer:
    """See ``server.prompt.Renderer``. Raises ValueError where the template refuses."""

    def __init__(self, arguments: AsyncEngineArgs, chat_template: str | None = None) -> None:
        config = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
        self._renderer = renderer_from_config(config)
        self._harmony = config.model_config.hf_config.model_type == "gpt_oss"
        self._reads_developer = self._harmony or type(self._renderer).__name__ in READ_DEVELOPER
        self._chat_template = load_chat_template(chat_template)
        self._tokenizing = dataclasses.replace(
            self._renderer.default_chat_tok_params, max_total_tokens=None
        )
        """Without vLLM's check of the length: a prompt's fit is decided for all renderers alike."""

    @property
    def tokenizer(self) -> Any:
        return self._renderer.get_tokenizer()

    def render_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        kwargs = dict(chat_template_kwargs or {})
        conversation = [dict(message) for message in messages]
        if not self._reads_developer:
            conversation = without_developer(conversation)
        if self._harmony:
            return _harmony(conversation, tools, kwargs)
        kwargs |= {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": [dict(tool) for tool in tools] if tools else None,
        }
        params = ChatParams(
            chat_template=chat_template or self._chat_template, chat_template_kwargs=kwargs
        )
        try:
            _, (prompt,) = self._renderer.render_chat([conversation], params, self._tokenizing)
        except VLLMClientError as error:
            raise ValueError(str(error)) from error
        return list(prompt["prompt_token_ids"])

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))


def _harmony(
    messages: list[dict[str, Any]], tools: Sequence[Tool] | None, kwargs: Mapping[str, Any]
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
