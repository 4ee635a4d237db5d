"""Errors common to all engines, and ``redact`` for the text that they carry.

EngineError
 +-- RequestRejected     the request itself cannot be run; nothing else is affected
 +-- EngineOverloaded    no capacity now; the same request may succeed later
 +-- EngineFailed        this request failed, the engine keeps running
 |    +-- RequestQuarantined  this request crashes engines; it is not run again
 +-- EngineDead          the engine is gone, and every request in it
 |    +-- EngineUnreachable   no connection: the engine never received this request
 +-- EngineStartError    the engine could not be started

DraftRefused and DraftSwapBusy belong to an exchange of the running draft.
"""

from __future__ import annotations

import re


class EngineError(Exception):
    """Base of all engine errors; ``str(error)`` is fit for a client."""


class RequestRejected(EngineError):
    """The request cannot be run. Raised before the first step; ``param`` names the field at fault,
    if known."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class EngineOverloaded(EngineError):
    """The engine's own limits are reached. ``retry_after_s`` is its own advice, if it gave any."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineFailed(EngineError):
    """Generation failed for this request alone."""


class WorkerMisconfigured(EngineFailed):
    """The worker does not serve this gateway at all, for example because of its key."""


class RequestQuarantined(EngineFailed):
    """The engine died on this request, and died again when it ran it alone."""


class EngineDead(EngineError):
    """The engine process died or was closed. Output that was delivered before remains valid."""

    ran: bool | None = None
    """True if the engine was running this request when it died; None if unknown."""


class EngineUnreachable(EngineDead):
    """No connection to the engine; it cannot have run this request."""


class EngineStartError(EngineError):
    """Start-up failed. The message is one sentence with the cause; ``detail`` is the evidence."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class DraftRefused(ValueError):
    """This draft cannot take the running draft's place; the message says why."""


class DraftSwapBusy(Exception):
    """Another swap is running."""


USERINFO = re.compile(r"//\S*@")
"""Greedy, because a password may contain a slash or another @ that should have been encoded."""


def redact(text: str) -> str:
    """Remove the credentials of every URL in the text."""
    return USERINFO.sub("//***@", text)
