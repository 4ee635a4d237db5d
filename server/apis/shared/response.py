"""Encoding shared by all APIs: token text, log probabilities, usage and metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from eaglegate.engine.events import Finish, Usage, UsageDelta
from eaglegate.engine.speculation.accounts.accounting import sum_steps
from eaglegate.engine.types import DecodeStep, PositionLogprobs, TokenLogprob
from eaglegate.server.generation.job import Job


@dataclass(frozen=True, slots=True)
class EncodingContext:
    """Data that encoders need. ``pieces`` has the bytes of every token id; ``depth`` is the
    most tokens that a step may verify for a request: K, or the longest lookup if that is greater.
    """

    pieces: Mapping[int, bytes]
    depth: int = 0
    reasoning_fields: tuple[str, ...] = ("reasoning", "reasoning_content")
    token_names: str = "text"
    """Names of tokens: text or ids."""

    def token(self, token_id: int) -> str:
        """Return the text of one token, or its id. Incomplete characters are shown as U+FFFD."""
        if self.token_names == "ids":
            return f"token_id:{token_id}"
        return self.pieces[token_id].decode("utf-8", "replace")

    def text(self, token_ids: Iterable[int]) -> str:
        return b"".join(self.pieces[token_id] for token_id in token_ids).decode("utf-8", "replace")

    def metrics(self, job: Job, finish: Finish) -> dict[str, Any] | None:
        """Return vLLM's ``metrics`` object of one choice; None if not requested or without a
        draft.
        """
        if job.display.spec_metrics == "none" or not self.depth or not finish.decode:
            return None
        is_detailed = job.display.spec_metrics == "detailed"
        return {
            "speculative_decoding": speculative_decoding(finish.decode, self.depth, is_detailed)
        }


def speculative_decoding(
    decode: Sequence[DecodeStep], depth: int, is_detailed: bool
) -> dict[str, Any]:
    """Return one choice's speculation metrics under vLLM's field names, counting delivered tokens.

    Formulas: engine/speculation/accounts/accounting.py. Without a verify step, the acceptance
    length and rate are undefined and therefore null.
    """
    totals = sum_steps(decode)
    histogram = list(totals.histogram)
    out: dict[str, Any] = {
        "mean_acceptance_length": totals.acceptance_length,
        "draft_acceptance_rate": totals.acceptance_rate,
        "acceptance_histogram": histogram + [0] * (depth + 1 - len(histogram)),
        "num_spec_steps": totals.verify_steps,
        "num_accepted_draft_tokens": totals.accepted,
        "num_draft_tokens": totals.proposed,
        "num_spec_tokens": depth,
    }
    if is_detailed:
        verify = [step for step in decode if step.drafted]
        out["per_step_accepted"] = [step.accepted for step in verify]
        out["per_step_drafted"] = [step.drafted for step in verify]
    return out


FLOOR = -9999.0
"""OpenAI's value for a probability of 0, since JSON has no negative infinity."""


def list_logprobs(
    positions: Iterable[PositionLogprobs], context: EncodingContext
) -> list[dict[str, Any]]:
    """Return one object per token, with its alternatives."""
    return [
        _token_object(position.chosen, context)
        | {"top_logprobs": [_token_object(token, context) for token in position.top]}
        for position in positions
    ]


def list_prompt_logprobs(
    positions: Iterable[PositionLogprobs | None] | None, context: EncodingContext
) -> list[dict[str, Any] | None]:
    """Return prompt log probabilities in vLLM's format: by token id, and null for the first
    token.
    """
    return [
        None if position is None else _key_by_token_id(position, context)
        for position in positions or ()
    ]


def _key_by_token_id(position: PositionLogprobs, context: EncodingContext) -> dict[str, Any]:
    return {
        str(token.token_id): {
            "logprob": logprob_value(token),
            "rank": token.rank,
            "decoded_token": context.token(token.token_id),
        }
        for token in (position.chosen, *position.top)
    }


def logprob_value(token: TokenLogprob) -> float:
    return max(token.logprob, FLOOR)


def _token_object(token: TokenLogprob, context: EncodingContext) -> dict[str, Any]:
    return {
        "token": context.token(token.token_id),
        "logprob": logprob_value(token),
        "bytes": list(context.pieces[token.token_id]),
    }


def usage_object(choices: Mapping[int, Usage], n: int) -> dict[str, Any]:
    """Return the usage of a chat completion or completion. Prompts count once; completions are
    summed.

    ``choices`` is by index: choice ``i`` answers prompt ``i // n``.
    """
    parts = list(choices.values())
    prompts = {index // n: usage for index, usage in choices.items()}.values()
    prompt = sum([usage.prompt for usage in prompts])
    completion = sum([part.completion for part in parts])
    details = {"reasoning_tokens": sum([part.reasoning for part in parts])}
    if None not in [part.accepted for part in parts]:
        details["accepted_prediction_tokens"] = sum([part.accepted or 0 for part in parts])
        details["rejected_prediction_tokens"] = sum([part.rejected or 0 for part in parts])
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum([usage.cached for usage in prompts])},
        "completion_tokens_details": details,
    }


def timings_object(choices: Mapping[int, Finish]) -> dict[str, Any]:
    """Return speed and acceptance under llama.cpp's names, which many clients display.

    Empty for several choices. Formulas: docs/steps.md.
    """
    if len(choices) != 1:
        return {}
    (end,) = choices.values()
    usage, pace, totals = end.usage, end.pace, end.totals
    if pace is None:
        return {}
    num_read, num_decoded = usage.prompt - usage.cached, usage.completion - 1
    out: dict[str, Any] = {
        "cache_n": usage.cached,
        "prompt_n": num_read,
        "prompt_ms": round(1000 * pace.prompt_s, 3),
        "prompt_per_second": _divide(num_read, pace.prompt_s),
        "predicted_n": usage.completion,
        "predicted_ms": round(1000 * pace.decode_s, 3),
        "predicted_per_token_ms": _divide(1000 * pace.decode_s, num_decoded),
        "predicted_per_second": _divide(num_decoded, pace.decode_s),
    }
    if totals is not None and totals.proposed:
        out |= {
            "draft_n": totals.proposed,
            "draft_n_accepted": totals.accepted,
            "draft_acceptance_rate": _round(totals.acceptance_rate),
            "acceptance_length": _round(totals.acceptance_length),
        }
    return {"timings": out}


def _divide(dividend: float, divisor: float) -> float | None:
    return round(dividend / divisor, 3) if dividend > 0 and divisor > 0 else None


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def usage_tail(delta: UsageDelta) -> bytes:
    """Return the end of a chunk that carries its choice's usage so far, in vLLM's format."""
    return b',"usage":' + orjson.dumps(usage_object({0: delta.usage}, 1)) + b"}\n\n"
