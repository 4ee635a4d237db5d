"""POST /tokenize and /detokenize, as ``vllm serve`` has them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from server.apis.chat.request import Message, Tool
from server.apis.shared.models import Many, RequestModel
from server.apis.shared.sampling_fields import TokenId


class TokenizeRequest(RequestModel):
    """Either a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[Many[Message], Field(min_length=1)] | None = None
    tools: Many[Tool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(RequestModel):
    model: str | None = None
    tokens: Many[TokenId]
