"""The sampling fields that several endpoints share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.types import RepetitionStop, Sampling
from server.apis.shared.sampling_fields import EngineFields, RepetitionDetection, SamplingFields
from server.apis.shared.served import Served
from server.errors import InvalidRequest

MAX_BAD_WORDS_BYTES = 512
"""vLLM has room for 1024 tokens; a word may take one a byte, with and without a space before."""
MAX_STOP_CHARS = 1024
"""In one stop sequence: what may begin one is held back from the client."""


def sampling(
    request: EngineFields,
    served: Served,
    *,
    max_tokens: int | None = None,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
) -> Sampling:
    """What the client asked for, else what the model's generation config says, else neutral."""
    defaults = served.sampling

    def given(name: str, neutral: float) -> Any:
        value = getattr(request, name)
        return defaults.get(name, neutral) if value is None else value

    return Sampling(
        max_tokens=max_tokens or int(defaults.get("max_tokens", 0)),
        min_tokens=request.min_tokens or 0,
        temperature=given("temperature", 1.0),
        top_p=given("top_p", 1.0),
        top_k=max(0, int(given("top_k", 0))),
        min_p=given("min_p", 0.0),
        seed=request.seed,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=given("repetition_penalty", 1.0),
        logit_bias=_logit_bias(request.logit_bias or {}, served.vocab_size),
        allowed_token_ids=_allowed(request.allowed_token_ids or (), served.vocab_size),
        bad_words=_bad_words(request.bad_words or ()),
        thinking_token_budget=thinking_budget(request.thinking_token_budget, served),
        repetition=repetition(request.repetition_detection),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def repetition(asked: RepetitionDetection | None) -> RepetitionStop | None:
    if asked is None:
        return None
    if asked.min_pattern_size > asked.max_pattern_size:
        raise InvalidRequest(
            "'repetition_detection.min_pattern_size' must not be above 'max_pattern_size'; given "
            f"{asked.min_pattern_size} and {asked.max_pattern_size}.",
            param="repetition_detection",
        )
    return RepetitionStop(asked.max_pattern_size, max(1, asked.min_pattern_size), asked.min_count)


def thinking_budget(asked: int | None, served: Served) -> int | None:
    """-1 sets no bound, as in vLLM."""
    if asked is None or asked == -1:
        return None
    if served.thinking_budget is False:
        raise InvalidRequest(
            f"'thinking_token_budget' of {asked} cannot be kept: the engine does not know how this "
            "model's reasoning ends. Leave it out, or start with --reasoning-parser or "
            "--reasoning-config.",
            param="thinking_token_budget",
        )
    return asked


def _allowed(token_ids: Sequence[int], vocab_size: int | None) -> tuple[int, ...]:
    """Each once. Raises InvalidRequest."""
    beyond = next((t for t in token_ids if vocab_size is not None and t >= vocab_size), None)
    if beyond is not None:
        raise InvalidRequest(
            f"'allowed_token_ids' holds token id {beyond}; this model's ids are below "
            f"{vocab_size}.",
            param="allowed_token_ids",
        )
    return tuple(dict.fromkeys(token_ids))


def _bad_words(words: Sequence[str]) -> tuple[str, ...]:
    if any(not word.strip() for word in words):
        raise InvalidRequest(
            "An entry of 'bad_words' must hold more than blanks: blanks at its beginning are left "
            "out. To ban a token of blanks, give its id in 'logit_bias'.",
            param="bad_words",
        )
    size = sum(len(word.encode()) + 1 for word in words)
    if size > MAX_BAD_WORDS_BYTES:
        raise InvalidRequest(
            f"The entries of 'bad_words' may take {MAX_BAD_WORDS_BYTES} bytes together, one more "
            f"for each entry; given {size}. Leave some out.",
            param="bad_words",
        )
    return tuple(words)


def prompt_logprobs(request: SamplingFields, echoed: int | None = None) -> int | None:
    """``echoed``: how many ``echo`` needs. Raises InvalidRequest."""
    asked = request.prompt_logprobs
    if asked is not None and request.stream:
        raise InvalidRequest(
            "'prompt_logprobs' goes with whole answers; leave out 'stream': true.",
            param="prompt_logprobs",
        )
    if None not in (asked, echoed) and asked != echoed:
        raise InvalidRequest(
            f"'echo' gives the prompt's log probabilities, too: 'prompt_logprobs' of {asked} must "
            f"equal 'logprobs' of {echoed}, or be left out.",
            param="prompt_logprobs",
        )
    return echoed if asked is None else asked


def stops(stop: str | list[str] | None, param: str = "stop") -> tuple[str, ...]:
    given = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if "" in given:
        raise InvalidRequest(f"A sequence in '{param}' must not be empty.", param=param)
    longest = max(map(len, given), default=0)
    if longest > MAX_STOP_CHARS:
        raise InvalidRequest(
            f"A sequence in '{param}' may have at most {MAX_STOP_CHARS} characters; given one of "
            f"{longest}. Shorten it.",
            param=param,
        )
    return given


def include_usage(request: SamplingFields) -> bool:
    options = request.stream_options
    if options is not None and not request.stream:
        raise InvalidRequest("'stream_options' needs 'stream': true.", param="stream_options")
    return options is not None and bool(options.include_usage)


def continuous_usage(request: SamplingFields) -> bool:
    """Whether every chunk carries the usage so far; as in vLLM only beside ``include_usage``."""
    options = request.stream_options
    return include_usage(request) and options is not None and bool(options.continuous_usage_stats)


def token_names(request: SamplingFields) -> str:
    """How log probabilities name tokens."""
    return "ids" if request.return_tokens_as_token_ids else "text"


def service_tier(asked: str | None) -> dict[str, str]:
    """There is one tier, ``default``; a request that names any hears which one served it."""
    return {} if asked is None else {"service_tier": "default"}


def spec_metrics(asked: str | None, served: Served) -> str:
    return served.spec_metrics if asked is None else asked


def _logit_bias(bias: Mapping[str, float], vocab_size: int | None) -> dict[int, float]:
    for key in bias:
        if not (key.isascii() and key.isdecimal()) or int(key) >= (vocab_size or 1 << 62):
            limit = "" if vocab_size is None else f" below {vocab_size}"
            raise InvalidRequest(
                f"Keys of 'logit_bias' are token ids{limit}; given '{key[:40]}'.",
                param="logit_bias",
            )
    return {int(key): value for key, value in bias.items()}
