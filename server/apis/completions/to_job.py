"""Request model of POST /v1/completions, and its conversion to a Job."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from eaglegate.server.access.caller import Caller
from eaglegate.server.apis.shared.constraints import content_constraint
from eaglegate.server.apis.shared.fields import (
    UNSUPPORTED_VLLM,
    Many,
    ResponseFormat,
    SamplingFields,
    TokenId,
)
from eaglegate.server.apis.shared.to_job import (
    check_token_ids,
    make_display,
    make_job,
    make_sampling,
    read_prompt_logprobs,
    read_stops,
    resolve_model,
)
from eaglegate.server.errors import InvalidRequest
from eaglegate.server.generation.job import Job, PromptSource, Question
from eaglegate.server.generation.served_model import ServedModel

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default. Without a limit, a completion would run to the end of the context."""


MAX_PROMPTS = 1024

PromptText = Annotated[str, Field(min_length=1)]
TokenIds = Annotated[Many[TokenId], Field(min_length=1)]
PROMPT_BOUNDS = Field(min_length=1, max_length=MAX_PROMPTS)


class CompletionRequest(SamplingFields):
    """OpenAI's fields, then extensions of ``vllm serve``."""

    model: str | None = None
    prompt: (
        PromptText
        | TokenIds
        | Annotated[Many[PromptText], PROMPT_BOUNDS]
        | Annotated[Many[TokenIds], PROMPT_BOUNDS]
    )
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """0 is allowed with ``echo`` and returns only the prompt with its log probabilities."""
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: int | None = None
    response_format: ResponseFormat | None = None
    add_special_tokens: bool | None = None

    refused: ClassVar[Mapping[str, str]] = UNSUPPORTED_VLLM | {
        "prompt_embeds": "this gateway takes text and token ids",
        "suffix": "this model cannot fill in the middle; put all text in 'prompt'",
    }


def make_completion_job(
    request: CompletionRequest, served_model: ServedModel, caller: Caller
) -> Job:
    """Make the Job. Raises InvalidRequest and NotFound."""
    model = resolve_model(request.model, served_model, caller)
    return make_job(
        request,
        served_model,
        caller,
        id=f"cmpl-{uuid.uuid4().hex}",
        api="completions",
        model=model,
        question=_make_question(request, served_model),
        display=make_display(
            request, served_model, echo=bool(request.echo), echo_only=request.max_tokens == 0
        ),
        affinity=request.session_id or request.user,
    )


def _make_question(request: CompletionRequest, served_model: ServedModel) -> Question:
    prompts = _read_prompts(request, served_model.vocab_size)
    _check_num_choices(request, len(prompts))
    echo_logprobs = request.logprobs if request.echo else None
    sampling = make_sampling(
        request,
        served_model,
        max_tokens=_max_tokens(request),
        logprobs=request.logprobs,
        prompt_logprobs=read_prompt_logprobs(request, echo_logprobs),
    )
    param, constraint = content_constraint(request, request.response_format)
    return Question(
        prompts=prompts,
        sampling=sampling,
        n=request.n or 1,
        stop=read_stops(request.stop),
        include_stop=bool(request.include_stop_str_in_output),
        skip_special_tokens=request.skip_special_tokens is not False,
        parses=False,
        add_special_tokens=request.add_special_tokens is not False,
        truncate_prompt=request.truncate_prompt_tokens,
        truncation_side=request.truncation_side or "left",
        constraint=constraint,
        grammar_param=param,
    )


def _check_num_choices(request: CompletionRequest, num_prompts: int) -> None:
    n = request.n or 1
    _check_best_of(request.best_of, n)
    if num_prompts * n > MAX_PROMPTS:
        raise InvalidRequest(
            f"{num_prompts} prompts with 'n' of {n} exceed the limit of {MAX_PROMPTS} choices.",
            param="prompt",
        )


def _max_tokens(request: CompletionRequest) -> int:
    """Return the token limit, at least 1: an engine always generates a token, which
    ``Display.echo_only`` drops.
    """
    if request.max_tokens == 0 and not request.echo:
        raise InvalidRequest(
            "'max_tokens' of 0 needs 'echo': it returns the prompt and its log probabilities only.",
            param="max_tokens",
        )
    return DEFAULT_MAX_TOKENS if request.max_tokens is None else max(1, request.max_tokens)


def _read_prompts(request: CompletionRequest, vocab_size: int | None) -> tuple[PromptSource, ...]:
    prompt = request.prompt
    if isinstance(prompt, str):
        return (prompt,)
    sources: list[PromptSource] = []
    for item in prompt:
        if isinstance(item, int):
            check_token_ids([i for i in prompt if isinstance(i, int)], vocab_size, "prompt")
            return (tuple(i for i in prompt if isinstance(i, int)),)
        if isinstance(item, str):
            sources.append(item)
        else:
            check_token_ids(item, vocab_size, "prompt")
            sources.append(tuple(item))
    return tuple(sources)


def _check_best_of(best_of: int | None, n: int) -> None:
    if best_of is not None and best_of != n:
        raise InvalidRequest(
            f"'best_of' is not supported; give 'n' alone. Given best_of {best_of} and n {n}.",
            param="best_of",
            code="unsupported_parameter",
        )
