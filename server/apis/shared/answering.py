"""What the routes that generate have in common: read, run, respond."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from starlette.responses import Response

from server.access.caller import Caller, caller
from server.apis.shared.gateway import Gateway
from server.apis.shared.rendering import Rendering
from server.errors import Forbidden
from server.generation.generate import Path, events
from server.generation.job import Job
from server.http.response import ErrorBody, Fold, FoldedResponse, StreamedResponse, StreamEncoder

WORKLOAD_HEADER = "x-eaglegate-workload"
"""Names the slice of the metrics a request counts in; only configured names do."""


@dataclass(frozen=True, slots=True)
class Wire:
    """How one API writes answers."""

    stream: Callable[[Job, Rendering], StreamEncoder]
    fold: Callable[[Job, Rendering], Fold]
    error_body: ErrorBody


def rendering(path: Path) -> Rendering:
    pieces = path.parsers.vocabulary.pieces
    return Rendering(pieces, path.info.speculation.depth, path.served.reasoning_fields)


def permitted(job: Job, who: Caller) -> Job:
    """The job as the caller's. Raises Forbidden where their key does not reach."""
    key = who.key
    if key is None:
        return replace(job, caller=who)
    if not key.may_use(job.model):
        raise Forbidden(
            f"The API key '{key.name}' may not use the model '{job.model}'.",
            param="model",
            code="model_not_allowed",
        )
    return replace(job, caller=who, key=key.name)


def answer(job: Job, path: Path, gateway: Gateway, wire: Wire, arrived: float) -> Response:
    """The response that runs ``job`` when it is sent. Raises Forbidden."""
    job = permitted(job, caller.get())
    source = events(job, path, gateway.observer, arrived)
    shown = replace(rendering(path), token_names=job.token_names)
    if job.stream:
        return StreamedResponse(source, wire.stream(job, shown), wire.error_body, gateway.timing)
    return FoldedResponse(source, wire.fold(job, shown), wire.error_body)
