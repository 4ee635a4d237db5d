"""Errors and log lines for refusals by workers.

A worker's own text never reaches a client, because it may hold the gateway's key, host names and
paths. A client is told only facts from a fixed set about the request's grammar or length.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from eaglegate.engine.errors import EngineError, EngineFailed, RequestRejected, WorkerMisconfigured

log = logging.getLogger(__name__)

HINT = "The worker's log has the reason under this id"
STRUCTURED_HINT = (
    "It was a structured answer. The worker's log has the reason under this id; if it says that "
    "the grammar rejected tokens, `eaglegate check` names the worker's flag that is wrong"
)
ABOUT_REQUEST = (400, 413, 422)
"""Statuses caused by the request; others from 300 to 499 are caused by the gateway's settings."""
ABOUT_KEY = (401, 403, 407)
CONSTRAINT = re.compile(
    r"grammar|regex|json.?schema|structured|guided|xgrammar|lark", re.IGNORECASE
)
LENGTH = re.compile(r"context length|max_model_len|maximum.{0,20}length|too long", re.IGNORECASE)
LONGEST = re.compile(
    r"(?:maximum context length is|max_model_len(?: is| of|=|:)?) {0,2}(\d{1,9})\b", re.IGNORECASE
)
BUDGET = "thinking_token_budget"
"""A request field that a worker without ``--reasoning-parser`` refuses."""
KEYWORD = re.compile(
    r"""["'`](\$ref|\$defs|additionalProperties|allOf|anyOf|const|contains|dependentRequired|"""
    r"dependentSchemas|else|enum|exclusiveMaximum|exclusiveMinimum|format|if|items|maxContains|"
    r"maxItems|maxLength|maxProperties|maximum|minContains|minItems|minLength|minProperties|"
    r"minimum|multipleOf|not|oneOf|pattern|patternProperties|prefixItems|properties|propertyNames|"
    r"""required|then|type|unevaluatedItems|unevaluatedProperties|uniqueItems)["'`]"""
)
"""A keyword of JSON Schema in quotes."""
CONSTRUCT = re.compile(
    r"look-?ahead|look-?behind|look-?around|back-?reference|recursion|word boundary", re.IGNORECASE
)
"""Constructs that a compiler of patterns or grammars may not support."""


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """A failed request, as the log describes it."""

    worker: str
    id: str
    structured: bool = False
    """True if the answer had to match a grammar."""


def map_refusal(request: AskedRequest, status: int, message: str) -> EngineError:
    """Return the error for a status from 300 to 499. ``message`` is a quotation that only the log
    gets."""
    log.warning(
        "worker %s refused a request (%d): %s [request %s]",
        request.worker,
        status,
        message,
        request.id,
    )
    if status in ABOUT_REQUEST:
        return RequestRejected(describe_refusal(status, message))
    if status in ABOUT_KEY:
        return WorkerMisconfigured(
            "A worker refuses this gateway's key. The gateway's log has details."
        )
    return WorkerMisconfigured(
        "A worker does not serve what this gateway asks for. The gateway's log has details."
    )


def map_failure(request: AskedRequest, status: object, message: str) -> EngineFailed:
    """Return the error for a request on which a healthy worker failed."""
    log.warning(
        "worker %s failed on a request (%s): %s [request %s]. %s",
        request.worker, status, message, request.id,
        STRUCTURED_HINT if request.structured else HINT,
    )  # fmt: skip
    return EngineFailed("The worker failed on this request. The gateway's log has details.")


def describe_refusal(status: int, message: str) -> str:
    if CONSTRAINT.search(message):
        return (
            "The worker that would generate the answer refused its output format"
            f"{_name_construct(message)}. Simplify the schema, pattern or grammar; the gateway's "
            "log has details."
        )
    if LENGTH.search(message):
        match = LONGEST.search(message)
        limit = f", which takes at most {match[1]} tokens" if match else ""
        return (
            f"The request is too long for the worker that would run it{limit}. Shorten the prompt "
            "or ask for fewer tokens."
        )
    if BUDGET in message:
        return (
            f"{BUDGET!r} cannot be enforced: the worker that would run the request does not know "
            "how the model's reasoning ends. Leave it out."
        )
    if status == 413:
        return "The request is too large for the worker that would run it."
    return "A worker refused this request as invalid. The gateway's log has details."


def _name_construct(message: str) -> str:
    if match := KEYWORD.search(message):
        return f" over the keyword {match[1]!r}"
    if match := CONSTRUCT.search(message):
        return f" over a {match[0].lower()}"
    return ""
