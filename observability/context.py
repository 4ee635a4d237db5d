"""The HTTP exchange the current task is serving, so that what is told on the way meets it."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from observability.observation import RequestObservation


@dataclass(slots=True)
class HttpExchange:
    """One HTTP request and its response, as they go by."""

    request_id: str
    method: str
    path: str
    client: str
    started: float
    status: int = 0
    """0 until the response begins."""
    complete: bool = False
    """The last byte of the response was handed over."""
    client_gone: bool = False
    ended: float = 0.0
    refused: str = ""
    """The error code it was turned away with."""
    observation: RequestObservation | None = None
    """Of the generation it asked for, once that was let in."""
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    """W3C trace context for whatever works for this exchange."""
    span: Any = None


current: ContextVar[HttpExchange | None] = ContextVar("exchange", default=None)


def attach(observation: RequestObservation) -> None:
    """Give the observation to the exchange that caused it, if one did."""
    exchange = current.get()
    if exchange is not None:
        exchange.observation = observation


def note_refusal(code: str) -> None:
    """Let the exchange that was turned away know why."""
    exchange = current.get()
    if exchange is not None:
        exchange.refused = code
