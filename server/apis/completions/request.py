"""Request model of POST /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from server.apis.shared.fields import (
    UNSUPPORTED_VLLM,
    ResponseFormat,
    SamplingFields,
    TokenId,
)
from server.apis.shared.request import Many

MAX_PROMPTS = 1024

PromptText = Annotated[str, Field(min_length=1)]
TokenIds = Annotated[Many[TokenId], Field(min_length=1)]
PROMPT_BOUNDS = Field(min_length=1, max_length=MAX_PROMPTS)


class CompletionRequest(SamplingFields):
    """OpenAI's fields, and the extensions known from ``vllm serve``."""

    model: str | None = None
    prompt: (
        PromptText
        | TokenIds
        | Annotated[Many[PromptText], PROMPT_BOUNDS]
        | Annotated[Many[TokenIds], PROMPT_BOUNDS]
    )
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """0 goes with ``echo``: the prompt alone, for its log probabilities."""
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: int | None = None
    response_format: ResponseFormat | None = None
    add_special_tokens: bool | None = None

    refused: ClassVar[Mapping[str, str]] = UNSUPPORTED_VLLM | {
        "prompt_embeds": "this gateway takes text and token ids",
        "suffix": "this model cannot fill in the middle; put all text in 'prompt'",
    }
