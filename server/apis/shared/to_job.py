"""Conversion of a request to a Job: fields and rules that several APIs share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from eaglegate.engine.types import RepetitionStop, Sampling
from eaglegate.server.access.caller import Caller
from eaglegate.server.access.notices import Notices
from eaglegate.server.apis.shared.fields import (
    EngineFields,
    RepetitionDetection,
    SamplingFields,
    StreamOptions,
)
from eaglegate.server.errors import Forbidden, InvalidRequest, NotFound
from eaglegate.server.generation.job import (
    Conversation,
    Display,
    Job,
    Placement,
    PromptSource,
    Question,
)
from eaglegate.server.generation.served_model import ServedModel
from eaglegate.server.generation.slices import classify_workload, fingerprint

NOTHING: Mapping[str, Any] = {}
NO_FIELDS, NO_OPTIONS = EngineFields(), StreamOptions()
MAX_DEPTH_PARAM = "num_speculative_tokens"
MAX_BAD_WORDS_BYTES = 512
"""vLLM allows 1024 tokens. A word may take one token per byte, with and without a leading space."""
MAX_STOP_CHARS = 1024
"""Maximum length of a stop sequence. Text that may begin one is held back from the client."""


class JobFields(Protocol):
    """Fields that the requests of all APIs have."""

    @property
    def stream(self) -> bool | None: ...

    @property
    def num_speculative_tokens(self) -> int | None: ...

    @property
    def per_request_spec_decode_metrics(self) -> str | None: ...

    @property
    def return_steps(self) -> bool | None: ...

    @property
    def cache_salt(self) -> str | None: ...


def make_job(
    request: JobFields,
    served_model: ServedModel,
    caller: Caller,
    *,
    id: str,
    api: str,
    model: str,
    question: Question,
    display: Display,
    affinity: str | None,
    reasons: bool = False,
) -> Job:
    """Make a Job. Raises InvalidRequest.

    ``affinity`` is the session according to the body, and ``reasons`` is True if the request asks
    for reasoning.
    """
    return Job(
        id=id,
        api=api,
        model=model,
        created=int(time.time()),
        question=question,
        display=display,
        caller=caller,
        placement=_make_placement(request, served_model, caller, affinity),
        workload=classify_workload(
            caller.workload,
            served_model.workloads,
            has_tools=question.tool_policy.choice != "none",
            has_constraint=question.constraint is not None,
            has_reasoning=reasons,
        ),
        template=_fingerprint_prompt(question.prompts[0]),
    )


def _make_placement(
    request: JobFields, served_model: ServedModel, caller: Caller, affinity: str | None
) -> Placement:
    fields = request if isinstance(request, EngineFields) else NO_FIELDS
    return Placement(
        depth=requested_depth(
            request.num_speculative_tokens, fields.vllm_xargs, served_model, caller.notices
        ),
        priority=fields.priority or 0,
        cache_salt=request.cache_salt,
        affinity=affinity,
    )


def choose_metrics(request: JobFields, served_model: ServedModel) -> str:
    """Return the speculation metrics that the answer includes."""
    return request.per_request_spec_decode_metrics or served_model.spec_metrics


def make_display(
    request: SamplingFields,
    served_model: ServedModel,
    *,
    include_reasoning: bool = True,
    prompt_text: bool = False,
    echo: bool = False,
    echo_only: bool = False,
    repeated_fields: Mapping[str, Any] = NOTHING,
) -> Display:
    """Make the Display of a chat completion or completion. Raises InvalidRequest."""
    options = request.stream_options or NO_OPTIONS
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("'stream_options' needs 'stream': true.", param="stream_options")
    token_ids, prompt_logprobs = bool(request.return_token_ids), request.prompt_logprobs is not None
    return Display(
        stream=bool(request.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        include_reasoning=include_reasoning,
        wants_prompt=token_ids or prompt_logprobs or prompt_text or echo,
        wants_prompt_logprobs=prompt_logprobs,
        echo=echo,
        echo_only=echo_only,
        spec_metrics=choose_metrics(request, served_model),
        obfuscates=bool(options.include_obfuscation),
        return_token_ids=token_ids,
        return_steps=bool(request.return_steps),
        returns_prompt_text=prompt_text,
        token_names="ids" if request.return_tokens_as_token_ids else "text",
        repeated=repeated_fields,
    )


def _fingerprint_prompt(prompt: PromptSource) -> str:
    """Return the fingerprint of the system prompt and tools."""
    if not isinstance(prompt, Conversation):
        return ""
    system = (str(m["content"]) for m in prompt.messages if m["role"] in ("system", "developer"))
    return fingerprint(system, list(prompt.tools) or None)


def default_sampling(request: object, served_model: ServedModel) -> Sampling:
    """Return each field from the request, else from the model's generation config, else neutral.

    ``max_tokens`` is the config's, since the request's limit has other names.
    """

    def choose(name: str, neutral: float) -> float:
        value: float | None = getattr(request, name, None)
        return served_model.sampling.get(name, neutral) if value is None else value

    return Sampling(
        max_tokens=int(served_model.sampling.get("max_tokens", 0)),
        temperature=choose("temperature", 1.0),
        top_p=choose("top_p", 1.0),
        top_k=max(0, int(choose("top_k", 0))),
        min_p=choose("min_p", 0.0),
        repetition_penalty=choose("repetition_penalty", 1.0),
    )


def make_sampling(
    request: EngineFields,
    served_model: ServedModel,
    *,
    max_tokens: int | None = None,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
) -> Sampling:
    default = default_sampling(request, served_model)
    limit = max_tokens or default.max_tokens
    if limit and (request.min_tokens or 0) > limit:
        raise InvalidRequest(
            f"'min_tokens' must not exceed the answer's limit of {limit} tokens; given "
            f"{request.min_tokens}.",
            param="min_tokens",
        )
    bias, allowed_ids, bad_words = request.logit_bias, request.allowed_token_ids, request.bad_words
    vocab_size = served_model.vocab_size
    check_token_ids(allowed_ids or (), vocab_size, "allowed_token_ids")
    repetition = request.repetition_detection
    return Sampling(
        max_tokens=limit,
        temperature=default.temperature,
        top_p=default.top_p,
        top_k=default.top_k,
        min_p=default.min_p,
        repetition_penalty=default.repetition_penalty,
        min_tokens=request.min_tokens or 0,
        seed=request.seed,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        logit_bias=_read_logit_bias(bias, vocab_size) if bias else {},
        allowed_token_ids=tuple(dict.fromkeys(allowed_ids or ())),
        bad_words=_read_bad_words(bad_words) if bad_words else (),
        thinking_token_budget=thinking_budget(request.thinking_token_budget, served_model),
        repetition=None if repetition is None else _read_repetition(repetition),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _read_repetition(detection: RepetitionDetection) -> RepetitionStop:
    if detection.min_pattern_size > detection.max_pattern_size:
        raise InvalidRequest(
            "'repetition_detection.min_pattern_size' must not exceed 'max_pattern_size'; given "
            f"{detection.min_pattern_size} and {detection.max_pattern_size}.",
            param="repetition_detection",
        )
    return RepetitionStop(
        detection.max_pattern_size, max(1, detection.min_pattern_size), detection.min_count
    )


def thinking_budget(budget: int | None, served_model: ServedModel) -> int | None:
    """Check a thinking budget; -1 means no limit, as in vLLM. Raises InvalidRequest."""
    if budget is None or budget == -1:
        return None
    if served_model.thinking_budget is False:
        raise InvalidRequest(
            f"'thinking_token_budget' of {budget} cannot be enforced: the engine does not know how "
            "this model's reasoning ends, or runs a --worker-extension-cls of its own. Leave it "
            "out, or start with --reasoning-parser or --reasoning-config.",
            param="thinking_token_budget",
        )
    return budget


def check_token_ids(token_ids: Sequence[int], vocab_size: int | None, param: str) -> None:
    """Raise InvalidRequest for the first id that the model does not have."""
    for token_id in token_ids:
        if vocab_size is not None and token_id >= vocab_size:
            raise InvalidRequest(
                f"'{param}' contains token id {token_id}; this model's token ids are below "
                f"{vocab_size}.",
                param=param,
            )


def _read_bad_words(words: Sequence[str]) -> tuple[str, ...]:
    if any(not word.strip() for word in words):
        raise InvalidRequest(
            "An entry of 'bad_words' must contain more than white space: leading white space is "
            "removed. To ban a white-space token, give its id in 'logit_bias'.",
            param="bad_words",
        )
    size = sum(len(word.encode()) + 1 for word in words)
    if size > MAX_BAD_WORDS_BYTES:
        raise InvalidRequest(
            f"'bad_words' may have at most {MAX_BAD_WORDS_BYTES} bytes in total, counting one more "
            f"for each entry; given {size}. Remove some.",
            param="bad_words",
        )
    return tuple(words)


def read_prompt_logprobs(request: SamplingFields, echo_logprobs: int | None = None) -> int | None:
    """Return the number of prompt log probabilities; ``echo`` needs ``echo_logprobs``.

    Raises InvalidRequest.
    """
    count = request.prompt_logprobs
    if count is not None and request.stream:
        raise InvalidRequest(
            "'prompt_logprobs' cannot be streamed; leave out 'stream': true.",
            param="prompt_logprobs",
        )
    if None not in (count, echo_logprobs) and count != echo_logprobs:
        raise InvalidRequest(
            f"'echo' also returns the prompt's log probabilities: 'prompt_logprobs' of {count} "
            f"must equal 'logprobs' of {echo_logprobs}, or be left out.",
            param="prompt_logprobs",
        )
    return echo_logprobs if count is None else count


def read_stops(stop: str | list[str] | None, param: str = "stop") -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if "" in stops:
        raise InvalidRequest(f"A sequence in '{param}' must not be empty.", param=param)
    num_chars = max(map(len, stops), default=0)
    if num_chars > MAX_STOP_CHARS:
        raise InvalidRequest(
            f"A sequence in '{param}' may have at most {MAX_STOP_CHARS} characters; given one of "
            f"{num_chars}. Shorten it.",
            param=param,
        )
    return stops


def service_tier(tier: str | None) -> dict[str, str]:
    """Name the only tier, ``default``, in the response if the request names a tier."""
    return {} if tier is None else {"service_tier": "default"}


def _read_logit_bias(bias: Mapping[str, float], vocab_size: int | None) -> dict[int, float]:
    for key in bias:
        if not (key.isascii() and key.isdecimal()) or int(key) >= (vocab_size or 1 << 62):
            limit = "" if vocab_size is None else f" below {vocab_size}"
            raise InvalidRequest(
                f"Keys of 'logit_bias' are token ids{limit}; given '{key[:40]}'.",
                param="logit_bias",
            )
    return {int(key): value for key, value in bias.items()}


def resolve_model(requested_name: str | None, served_model: ServedModel, caller: Caller) -> str:
    """Return the requested model name, or the first served one. Raises NotFound and Forbidden."""
    name = requested_name or served_model.models[0]
    check_model(name, served_model, caller)
    return name


def check_model(model: str, served_model: ServedModel, caller: Caller) -> None:
    """Raise NotFound, or Forbidden if the caller's key may not use the model.

    Every endpoint that accepts a model name calls this function.
    """
    if model not in served_model.models:
        raise NotFound(
            f"The model '{model}' does not exist here. This gateway serves: "
            f"{', '.join(served_model.models)}.",
            param="model",
            code="model_not_found",
        )
    if not caller.may_use(model):
        raise Forbidden(
            f"The API key '{caller.name}' may not use the model '{model}'.",
            param="model",
            code="model_not_allowed",
        )


def requested_depth(
    depth: int | None, xargs: Mapping[str, Any] | None, served_model: ServedModel, notices: Notices
) -> int | None:
    """Return the requested draft tokens per step, 0 to K, or None. Raises InvalidRequest."""
    for name in xargs or ():
        if name != MAX_DEPTH_PARAM:
            notices.ignore(f"vllm_xargs.{name}")
    value = depth if depth is not None else (xargs or {}).get(MAX_DEPTH_PARAM)
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value <= served_model.depth:
        raise InvalidRequest(
            f"'{MAX_DEPTH_PARAM}' must be a whole number from 0 to {served_model.depth}, the "
            f"engine's depth; given {value!r}.",
            param=MAX_DEPTH_PARAM,
        )
    if value != served_model.depth and not served_model.depth_per_request:
        raise InvalidRequest(
            f"'{MAX_DEPTH_PARAM}' cannot be set here: {served_model.depth} tokens are drafted "
            f"for every request; given {value}. Leave it out.",
            param=MAX_DEPTH_PARAM,
        )
    return value
