"""Mapping of an EngineRequest to vLLM's SamplingParams, in process and over HTTP. Imports no
vLLM."""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from eaglegate.engine.errors import RequestRejected
from eaglegate.engine.types import Constraint, DepthReason, Drafter, EngineRequest, TokenLogprob
from eaglegate.text.events import FinishReason
from eaglegate.text.media.image import Image

DEPTH = "num_speculative_tokens"
"""A request's depth in vLLM's ``extra_args`` (over vLLM's HTTP: ``vllm_xargs``)."""
TRAFFIC = "traffic"
"""Key in ``extra_args``: the slice in which a request's acceptance is learnt."""
TENANT = "tenant"
"""Key in ``extra_args``: the tenant whose traffic the request may learn from."""
UNTAUGHT = "untaught"
"""Key in ``extra_args`` of a request from which the planner learns nothing."""
DEPTH_BITS = 15
OTHER_DRAFTER_BIT = 1 << DEPTH_BITS
"""Set in the number of a step's account if its drafts are a lookup's."""
REASONS = tuple(DepthReason)
TRACED = "traced"
"""Key in ``extra_args``: the request's steps carry their draft tokens."""
LATENCY = "latency_objective_ms"
"""Key in ``extra_args`` of a request of the latency class: its objective in milliseconds per output
token, 0 for none."""
WEIGHT = "key_weight"
"""Key in ``extra_args``: the share of a request's key among those outside the latency class."""
QUOTES = "quotes"
"""Key in ``extra_args``: packed tokens that lookups search beside the prompt."""
MAX_QUOTES = 16_384
"""Most tokens of a request's quotes, the newest ones. They take 8 bytes each in the engine."""
LOOKUP_BOUND = "lookup"
"""Key in ``extra_args``: the request's longest lookup."""
AUDIT = "audit"
"""Key in ``extra_args``: rules by which to score the answer at the end of the prompt."""
ABORT = "abort"
"""vLLM's finish reason of aborted requests, and of requests that a stopping engine abandons."""
FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "repetition": FinishReason.STOP,
}


def pack_depth(depth: int, reason: DepthReason | None) -> int:
    """Pack a step's depth and the planner's reason for it into the one number of the step's
    account."""
    code = 0 if reason is None else REASONS.index(reason) + 1
    return depth | code << DEPTH_BITS + 1


def mark_other_drafter(packed_depth: int) -> int:
    """Mark a step's number: its drafts are not the draft model's."""
    return packed_depth | OTHER_DRAFTER_BIT


def unpack_depth(packed_depth: int) -> tuple[int, DepthReason | None, Drafter]:
    """Return the depth, the reason that ``pack_depth`` packed, and who drafted."""
    code = packed_depth >> DEPTH_BITS + 1
    drafter = Drafter.LOOKUP if packed_depth & OTHER_DRAFTER_BIT else Drafter.DRAFT
    return packed_depth & OTHER_DRAFTER_BIT - 1, REASONS[code - 1] if code else None, drafter


def pack_rates(rates: Iterable[float], token_price: float) -> list[int]:
    """Pack a plan's rates and its price of a token in thousandths. Lists of vLLM's accounts hold
    integers."""
    return [round(1000 * number) for number in (*rates, token_price)]


def unpack_rates(packed_rates: Iterable[int]) -> tuple[tuple[float, ...], float]:
    """Return the rates and the price of a token; no rates from an empty list."""
    *rates, token_price = [number / 1000 for number in packed_rates] or [0.0]
    return tuple(rates), token_price


def build_sampling_fields(request: EngineRequest) -> dict[str, Any]:
    """Return the fields that are set. vLLM returns tokens without text, because the gateway itself
    cuts at stop strings."""
    s = request.sampling
    fields: dict[str, Any] = {
        "max_tokens": s.max_tokens,
        "min_tokens": s.min_tokens,
        "temperature": s.temperature,
        "top_p": s.top_p,
        "top_k": s.top_k,
        "min_p": s.min_p,
        "presence_penalty": s.presence_penalty,
        "frequency_penalty": s.frequency_penalty,
        "repetition_penalty": s.repetition_penalty,
        "ignore_eos": s.ignore_eos,
        "detokenize": False,
        "seed": s.seed,
        "logit_bias": dict(s.logit_bias) or None,
        "allowed_token_ids": list(s.allowed_token_ids) or None,
        "bad_words": list(s.bad_words) or None,
        "thinking_token_budget": s.thinking_token_budget,
        "repetition_detection": None if s.repetition is None else asdict(s.repetition),
        "stop_token_ids": list(s.stop_token_ids) or None,
        "logprobs": s.logprobs,
        "prompt_logprobs": s.prompt_logprobs,
        "structured_outputs": build_structured_outputs(request.constraint),
        "extra_args": _build_extra_args(request),
    }
    if request.scoring is not None:  # the workers score it where log probabilities are computed
        fields |= {"prompt_logprobs": 0, "skip_reading_prefix_cache": False}
    return {name: value for name, value in fields.items() if value is not None}


def _build_extra_args(request: EngineRequest) -> dict[str, Any]:
    extra: dict[str, Any] = {TRAFFIC: request.workload}
    if request.tenant:
        extra[TENANT] = request.tenant
    if not request.teaches:
        extra[UNTAUGHT] = 1
    if request.depth is not None:
        extra[DEPTH] = request.depth
    if request.latency_ms is not None:
        extra[LATENCY] = request.latency_ms
    if request.weight != 1:
        extra[WEIGHT] = request.weight
    if request.traced:
        extra[TRACED] = 1
    if request.quotes:
        extra[QUOTES] = pack_tokens(request.quotes)
    if request.lookup is not None:
        extra[LOOKUP_BOUND] = request.lookup
    if request.scoring is not None:
        extra[AUDIT] = dict(request.scoring)
    return extra


def pack_tokens(token_ids: Iterable[int]) -> str:
    """Pack token ids into a text. vLLM copies ``extra_args`` deeply, number by number: 16,384 of
    them would hold up the event loop for 13 ms."""
    return b64encode(array("q", token_ids).tobytes()).decode()


def unpack_tokens(text: str) -> list[int]:
    return array("q", b64decode(text)).tolist()


def build_structured_outputs(constraint: Constraint | None) -> dict[str, Any] | None:
    if constraint is None:
        return None
    match constraint.kind:
        case "json_schema":
            return {"json": constraint.value}
        case "json_object":
            return {"json_object": True}
        case "choice":
            return {"choice": list(constraint.choices)}
        case kind:
            return {kind: constraint.value}


def is_reasoning_ended(constraint: Constraint | None) -> bool | None:
    """Return vLLM's ``reasoning_ended``: True constrains from the first token, None after the
    reasoning."""
    return None if constraint is None or constraint.after_reasoning else True


def select_top(entries: Iterable[TokenLogprob], top: int) -> tuple[TokenLogprob, ...]:
    """Select the ``top`` most likely tokens, by rank. vLLM may add the chosen token, in any
    order."""
    ranked_entries = sorted(entries, key=lambda entry: entry.rank or 0)
    return tuple(entry for entry in ranked_entries if (entry.rank or 0) <= top)


def check_placeholders(prompt: Sequence[int], images: Sequence[Image], placeholder: int) -> None:
    """Check that a prompt has one placeholder per image. Raises RequestRejected."""
    count = prompt.count(placeholder)
    if count != len(images):
        raise RequestRejected(
            f"Token {placeholder} stands for an image: a prompt with {len(images)} images must "
            f"have it {len(images)} times; this one has it {count} times.",
            "prompt",
        )
