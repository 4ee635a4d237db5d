"""Observer: the interface through which the server reports. It knows no metrics, logs or traces.

One ``Observation`` per request, in this order:

    observation = observer.begin(facts)        # once the request is a Job and was let in
    observe = observation.choice(sequence_id)  # for every choice
    observe(event)                             # every event, before the next step is asked for
    observation.end(Ending.COMPLETED)          # exactly once, in a finally

``observer.record_refusal`` reports a request that never became a Job. No method raises or waits.
The step an engine yields, then the events made of it, then the next step: because one task does
all three for a sequence, an observer that also sees the steps knows which step made which event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from engine.events import Event
from engine.types import Arm

EventCallback = Callable[[Event], None]


class Ending(StrEnum):
    """How a request that had begun came to its end."""

    COMPLETED = "completed"
    """Every choice reached its Finish and the answer was handed over."""
    CLIENT_GONE = "client_gone"
    """The client closed the connection."""
    SLOW_READER = "slow_reader"
    """The client was cut off because it did not read."""
    TIMEOUT = "timeout"
    """A deadline of the gateway passed."""
    REJECTED = "rejected"
    """The engine could not run what was asked: the client's to mend."""
    ENGINE = "engine"
    """The engine had no room, failed or died."""
    ERROR = "error"
    """A fault of our own."""


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """One request as it enters the engine. ``model`` is the served name, never what was typed."""

    id: str
    """The request id clients and logs know."""
    api: str
    """chat, completions, responses, messages"""
    model: str
    lane: str
    workload: str
    template: str
    """``server.generation.job.fingerprint`` of system prompt and tool schemas; may be empty."""
    stream: bool
    prompt_tokens: int
    """Tokens of one prompt (the longest, when a request holds several)."""
    sequences: tuple[str, ...]
    """``EngineRequest.id`` of every choice."""
    arrived: float
    """``time.perf_counter()`` when the request came in."""
    admitted: float
    """``time.perf_counter()`` when admission let it through."""
    key: str | None = None
    """The public name of the API key."""
    session: str | None = None
    """What the client calls the session; None when it names none."""
    arm: Arm | None = None
    """Its side of the canary that runs."""
    messages: Sequence[Mapping[str, Any]] = ()
    """As the chat template is given them; never to be logged."""
    tools: Sequence[Mapping[str, Any]] = ()


class Observation(Protocol):
    """One request under observation."""

    def choice(self, sequence: str) -> EventCallback:
        """A callback for the events of the choice whose ``EngineRequest.id`` is ``sequence``."""
        ...

    def end(self, ending: Ending) -> None:
        """The request is over. A second call changes nothing."""
        ...


class Observer(Protocol):
    """Looks on; one per process."""

    def begin(self, facts: RequestFacts) -> Observation: ...

    def record_refusal(self, api: str, code: str) -> None:
        """A request was turned away; ``code`` is the gateway error's own (a bounded set)."""
        ...

    def record_ignored_fields(self, api: str, names: Sequence[str]) -> None:
        """A request is answered without these fields; the names are the client's own."""
        ...

    def record_storage_failure(self) -> None:
        """An answer was handed over and could not be stored, though it was to be."""
        ...


class NullObservation:
    """Sees nothing."""

    def choice(self, sequence: str) -> EventCallback:  # noqa: ARG002
        return _nothing

    def end(self, ending: Ending) -> None:
        pass


class NullObserver:
    """For tests and for serving without telemetry."""

    def begin(self, facts: RequestFacts) -> Observation:  # noqa: ARG002
        return NullObservation()

    def record_refusal(self, api: str, code: str) -> None:
        pass

    def record_ignored_fields(self, api: str, names: Sequence[str]) -> None:
        pass

    def record_storage_failure(self) -> None:
        pass


def _nothing(_: Event) -> None:
    pass
