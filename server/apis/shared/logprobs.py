"""Log probabilities as chat completions and responses write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine.types import PositionLogprobs, TokenLogprob
from server.apis.shared.rendering import Rendering

FLOOR = -9999.0
"""What OpenAI writes for a probability of 0: JSON has no minus infinity."""


def positions(given: Iterable[PositionLogprobs], rendering: Rendering) -> list[dict[str, Any]]:
    """One object per token, with its alternatives."""
    return [
        _token(position.chosen, rendering)
        | {"top_logprobs": [_token(token, rendering) for token in position.top]}
        for position in given
    ]


def of_prompt(
    given: Iterable[PositionLogprobs | None] | None, rendering: Rendering
) -> list[dict[str, Any] | None]:
    """As vLLM writes them: by token id, null where nothing comes before."""
    return [
        None if position is None else _by_token_id(position, rendering) for position in given or ()
    ]


def _by_token_id(position: PositionLogprobs, rendering: Rendering) -> dict[str, Any]:
    return {
        str(token.token_id): {
            "logprob": value(token),
            "rank": token.rank,
            "decoded_token": rendering.token(token.token_id),
        }
        for token in (position.chosen, *position.top)
    }


def value(token: TokenLogprob) -> float:
    return max(token.logprob, FLOOR)


def _token(token: TokenLogprob, rendering: Rendering) -> dict[str, Any]:
    return {
        "token": rendering.token(token.token_id),
        "logprob": value(token),
        "bytes": list(rendering.pieces[token.token_id]),
    }
