"""Facts: the things that happen once per request, engine, draft or worker.

A fact is published once and received by everything that subscribed to its class: metric groups,
the day's history, features. Steps and events are too frequent for that; they are direct calls.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from eaglegate.engine.events import RequestFacts
from eaglegate.engine.speculation.drafts.versions import DraftSwap
from eaglegate.engine.supervision.draft_blame import DraftHold
from eaglegate.engine.types import EngineInfo

if TYPE_CHECKING:
    from eaglegate.observability.middleware import HttpExchange
    from eaglegate.observability.observation import RequestObservation, RequestRecord

log = logging.getLogger(__name__)

Fact = TypeVar("Fact", bound=Struct)
LOG_EVERY_S = 60.0
"""Seconds between two log lines about the errors of one subscriber."""


class FactBus:
    """Passes facts to subscribers, on the event loop, in the order of their subscriptions.

    Whoever publishes serves a request or an engine, so an error of a subscriber does not reach it.
    """

    def __init__(self) -> None:
        self._subscribers: defaultdict[type[Struct], list[Callable[[Any], None]]]
        self._subscribers = defaultdict(list)
        self.failures: Counter[str] = Counter()
        """Facts that a subscriber failed to receive, by its name."""
        self._logged_at: dict[str, float] = {}

    def subscribe(self, kind: type[Fact], receive: Callable[[Fact], None]) -> Callable[[], None]:
        """Call ``receive`` with every fact of this class; return a function that ends it."""
        subscribers = self._subscribers[kind]
        subscribers.append(receive)
        return lambda: subscribers.remove(receive)

    def publish(self, fact: Struct) -> None:
        for receive in tuple(self._subscribers.get(type(fact), ())):
            try:
                receive(fact)
            except Exception:
                self._note_failure(receive)

    def _note_failure(self, receive: Callable[[Any], None]) -> None:
        name = f"{receive.__module__}.{getattr(receive, '__qualname__', type(receive).__name__)}"
        self.failures[name] += 1
        now = time.monotonic()
        if now >= self._logged_at.get(name, now - LOG_EVERY_S) + LOG_EVERY_S:
            self._logged_at[name] = now
            log.exception(
                "%s failed to receive a fact, for the %d. time", name, self.failures[name]
            )


class RequestRefused(Struct, frozen=True):
    """A request or a connection was refused before the engine saw it. Heads that
    ``server/http/connection.py`` refuses are not published.
    """

    where: str
    """An API's name, or a path."""
    code: str
    key: str | None = None
    """Name of its API key, if it has a valid one."""


class FieldsIgnored(Struct, frozen=True):
    """A request is answered without some of its fields. The client chose their names."""

    where: str
    """The API's path."""
    names: Sequence[str]


class StorageFailed(Struct, frozen=True):
    """An answer could not be stored as it should have been."""


class RequestBegan(Struct, frozen=True):
    """A request was admitted, and the engine has not seen it yet."""

    observation: RequestObservation
    facts: RequestFacts


class RequestEnded(Struct, frozen=True):
    """A request that had begun has ended. Its last progress was recorded before."""

    observation: RequestObservation
    record: RequestRecord


class ExchangeEnded(Struct, frozen=True):
    """The response to an HTTP request is complete, or its client has left."""

    exchange: HttpExchange


class RequestInterrupted(Struct, frozen=True):
    """A request lost its engine."""

    outcome: str
    """The way in which it continued."""
    request: str


class AnswerAudited(Struct, frozen=True):
    """The target has scored one choice of a finished request without the draft."""

    sequence: str
    """``EngineRequest.id`` of the choice."""
    outcome: str
    """lossless, near_tie or violated"""
    result: Mapping[str, Any]
    """The whole result, without any text: choosing, draft, depth, detail, at, took_s, tokens."""


class TemplateForgotten(Struct, frozen=True):
    """A template lost its name, so its series are dropped."""

    template: str


class KeyForgotten(Struct, frozen=True):
    """An API key is no longer counted by name, so its series are dropped."""

    key: str


class DraftForgotten(Struct, frozen=True):
    """A draft has not served for long, so its series are dropped."""

    draft: str


class DraftSwapped(Struct, frozen=True):
    """The engine serves with another draft."""

    swap: DraftSwap


class ParserChosen(Struct, frozen=True):
    """A parser reads the tool calls or the reasoning of answers."""

    purpose: str
    parser: str


class GatewayStarted(Struct, frozen=True):
    """The gateway is ready; ``seconds`` are the parts of its start."""

    seconds: Mapping[str, float]


class EngineStarted(Struct, frozen=True):
    """An engine is ready, for the first time or again."""

    engine: str
    info: EngineInfo
    seconds: float


class EngineChecked(Struct, frozen=True):
    """An engine answered a health check, or was closed."""

    engine: str
    live: bool


class EngineLost(Struct, frozen=True):
    """An engine died, hung or could not be started again."""

    engine: str
    cause: str


class DraftCrashed(Struct, frozen=True):
    """Drafts killed an engine."""

    engine: str
    method: str
    depth: int


class DepthHeld(Struct, frozen=True):
    """A depth is held because it killed engines, or released if ``is_held`` is False."""

    engine: str
    hold: DraftHold
    is_held: bool
