"""What a worker's refusal means: for the request, for the gateway's settings, or for the worker.

Clients read our words. A worker's own are quoted to them, short and cleaned, only where they are
about what the client itself has sent; everything a worker says goes to the log.
"""

from __future__ import annotations

import logging
import re

from engine.errors import EngineError, EngineFailed, RequestRejected

log = logging.getLogger(__name__)

ABOUT_REQUEST = (400, 413, 422)
"""Other statuses from 300 to 499 are about how the gateway asks, not about what it asks for."""
ABOUT_KEY = (401, 403, 407)
CONSTRAINT = re.compile(
    r"grammar|regex|json.?schema|structured|guided|xgrammar|lark", re.IGNORECASE
)
LENGTH = re.compile(r"context length|max_model_len|maximum.{0,20}length|too long", re.IGNORECASE)


def map_refusal(worker: str, status: int, message: str) -> EngineError:
    """What a status from 300 to 499 becomes; ``message`` is a quotation."""
    log.warning("worker %s refused a request (%d): %s", worker, status, message)
    if status in ABOUT_REQUEST:
        return RequestRejected(_words(status, message))
    if status in ABOUT_KEY:
        return EngineFailed("A worker refuses this gateway's key. The gateway's log has details.")
    return EngineFailed(
        "A worker does not serve what this gateway asks for. The gateway's log has details."
    )


def map_failure(worker: str, status: object, message: str) -> EngineFailed:
    """A worker that lives failed on a request."""
    log.warning("worker %s failed on a request (%s): %s", worker, status, message)
    return EngineFailed("The worker failed on this request. The gateway's log has details.")


def _words(status: int, message: str) -> str:
    if CONSTRAINT.search(message):
        return f"The output format was refused by the worker that would generate it: {message!r}"
    if LENGTH.search(message):
        return f"The request is too long for the worker that would run it: {message!r}"
    if status == 413:
        return "The request is too large for the worker that would run it."
    return "A worker refused this request as invalid. The gateway's log has details."
