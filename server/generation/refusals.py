"""Explanation of engine errors by the request fields that caused them."""

from __future__ import annotations

from collections.abc import Iterator

from eaglegate.engine.errors import EngineError, EngineFailed, RequestQuarantined, RequestRejected
from eaglegate.engine.types import EngineRequest, Sampling


def explain(
    error: RequestRejected | EngineFailed, request: EngineRequest, param: str
) -> EngineError:
    """Return an error that names the fields at fault, if they are known.

    ``param`` is the field that the grammar comes from.
    """
    if isinstance(error, RequestRejected):
        return _name_format(error, request, param)
    if isinstance(error, RequestQuarantined) or request.constraint is None:
        return error
    bans = list(_list_bans(request.sampling))
    if not bans:
        return error
    names = ", ".join(f"'{name}'" for name in bans)
    return RequestRejected(
        f"The answer must match '{param}', but {names} excluded every token that does. Give fewer "
        "of these fields, or values that are compatible.",
        param=bans[0],
    )


def _name_format(error: RequestRejected, request: EngineRequest, param: str) -> RequestRejected:
    """Add the field's name to the engine's error about a grammar that does not compile."""
    if request.constraint is None or error.param is not None:
        return error
    message = f"The requested output format cannot be compiled into a grammar: {error}"
    return RequestRejected(message, param=param)


def _list_bans(sampling: Sampling) -> Iterator[str]:
    """Yield fields that can rule out every token that the grammar allows.

    The engine then picks a token that the grammar rejects, and fails.
    """
    if sampling.allowed_token_ids:
        yield "allowed_token_ids"
    if sampling.bad_words:
        yield "bad_words"
    if sampling.logit_bias:
        yield "logit_bias"
    if sampling.min_tokens:
        yield "min_tokens"
    if sampling.repetition_penalty != 1.0:
        yield "repetition_penalty"
