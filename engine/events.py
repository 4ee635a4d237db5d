"""Events of a request, from the parser and from its accounts, and the observers of both.

``Observer`` is the interface through which the server reports. It knows no metrics, logs or traces.
One ``Observation`` per request, in this order:

    observation = observer.begin(facts)        # after the request became a Job and was admitted
    observe = observation.choice(sequence_id)  # for every choice
    observe(event)                             # every event, before the next step is asked for
    observation.end(Ending.COMPLETED)          # exactly once, in a finally

``observer.record_refusal`` reports a request that never became a Job. No method raises or waits.
Each step is followed by the events made of it, then by the next step, so an observer that also sees
the steps knows which step made which event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct

from eaglegate.engine.totals import Totals
from eaglegate.engine.types import Arm, DecodeStep, PositionLogprobs
from eaglegate.text.events import ParserEvent


class PromptEcho(Struct, frozen=True):
    """The prompt of a choice, in its first batch, for jobs that want it back.

    ``logprobs`` has one entry per token when asked for; None where nothing precedes the token.
    ``cached`` tokens were in the engine's prefix cache. ``num_tokens`` counts the tokens of images
    as well, of which each has one placeholder in ``token_ids``.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs | None, ...] | None = None
    cached: int = 0
    num_tokens: int = 0


class TokensDelta(Struct, frozen=True):
    """The token ids of one step, for jobs that want them; before the step's other events."""

    token_ids: tuple[int, ...]


class StepKind(StrEnum):
    """The way in which a step made its tokens."""

    PREFILL = "prefill"
    """The first token comes from the prompt's own pass through the target."""
    VERIFY = "verify"
    """The target verified draft tokens."""
    PLAIN = "plain"
    """The target made one token without a draft."""
    UNKNOWN = "unknown"
    """The engine does not report how it made the step."""


class TracedStep(Struct, frozen=True):
    """One engine step of a choice.

    The first ``account.accepted`` of ``token_ids`` are draft tokens of positions 1, 2, ...; the
    target made the rest.
    """

    index: int
    """0 for the first step of the choice."""
    kind: StepKind
    token_ids: tuple[int, ...]
    seconds: float
    """Time since the previous step; for the first step, since the engine received the request."""
    account: DecodeStep | None = None
    """None for prefill and unknown steps."""
    drafts: tuple[int, ...] = ()
    """The verified draft tokens; empty where the engine does not know them."""
    rates: tuple[float, ...] = ()
    """See ``StepTrace``, as ``token_price``."""
    token_price: float = 0.0


class StepsDelta(Struct, frozen=True):
    """The engine steps of a batch, for jobs that want them; before the batch's other events."""

    steps: tuple[TracedStep, ...]


class LogprobsDelta(Struct, frozen=True):
    """Log probabilities of the tokens of one step, in order; before the step's other events."""

    positions: tuple[PositionLogprobs, ...]


class Usage(Struct, frozen=True):
    """Token counts of one choice. ``accepted``/``rejected`` are draft tokens, None when unknown."""

    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0
    accepted: int | None = None
    rejected: int | None = None
    recomputed: int = 0
    """Prompt tokens in the prefix cache that were computed again because of the draft."""


class UsageDelta(Struct, frozen=True):
    """Token counts of a choice so far, first of a batch, for jobs that want them."""

    usage: Usage


class Pace(Struct, frozen=True):
    """Speed of one choice, by the gateway's clock."""

    prompt_s: float
    """Seconds from giving the request to the engine to its first token, the engine's queue
    included."""
    decode_s: float
    """Seconds from the first token to the last."""


class Finish(Struct, frozen=True):
    """End of one choice. ``reason`` is stop, length, tool_calls or abort; ``stop`` is the stop
    string or token that matched.

    ``decode`` lists the choice's decode steps; empty if the engine reports none. ``totals`` is
    their sum.
    """

    reason: str
    usage: Usage
    stop: str | int | None = None
    decode: tuple[DecodeStep, ...] = ()
    totals: Totals | None = None
    pace: Pace | None = None


Event = ParserEvent | PromptEcho | StepsDelta | TokensDelta | LogprobsDelta | UsageDelta | Finish


class EventSink(Protocol):
    """Receiver of an answer's events: an ``engine.types.StepSink`` after the parser.

    Each push has the number of the choice, and one or more events of one engine step.
    """

    def is_open(self) -> bool:
        """Return True if the client keeps up."""
        ...

    def push(self, choice: int, events: list[Event]) -> None: ...

    async def drain(self) -> None:
        """Wait until all pushed events were sent to the client. Several choices may wait at
        once."""
        ...


EventCallback = Callable[[Event], None]


class Ending(StrEnum):
    """Ending of a request that had begun."""

    COMPLETED = "completed"
    """Every choice reached its Finish, and the answer was handed over."""
    CLIENT_GONE = "client_gone"
    """The client closed the connection."""
    SLOW_READER = "slow_reader"
    """The client was cut off because it did not read."""
    TIMEOUT = "timeout"
    """A deadline of the gateway passed."""
    REJECTED = "rejected"
    """The engine could not run the request, and the client has to correct it."""
    ENGINE = "engine"
    """The engine had no room, failed or died."""
    ERROR = "error"
    """A fault of the gateway."""


@dataclass(slots=True)
class RequestTimes:
    """Seconds that one request has spent in parts of the gateway so far."""

    rendering: float = 0.0
    """Rendering its messages and tools to a prompt."""
    compiling: float = 0.0
    """Compiling its grammar before the engine sees it."""
    reading: float = 0.0
    """Turning steps into events, and reporting them."""
    writing: float = 0.0
    """Encoding events, writing them, and waiting for a client that reads slowly."""


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """Facts about a request as it enters the engine. ``model`` is the served name, never the
    client's spelling."""

    id: str
    """The request id in responses and logs."""
    api: str
    """The name of the server's API that the client used."""
    model: str
    lane: str
    workload: str
    template: str
    """A fingerprint of the system prompt and tool schemas; may be empty."""
    stream: bool
    prompt_tokens: int
    """Tokens of the prompt with its images; of the longest one if the request has several."""
    sequences: tuple[str, ...]
    """``EngineRequest.id`` of every choice."""
    arrived: float
    """``time.perf_counter()`` when the request was received."""
    admitted: float
    """``time.perf_counter()`` when the request was admitted."""
    key: str | None = None
    """The public name of the API key."""
    session: str | None = None
    """The client's name for the session; None if it gave none."""
    arm: Arm | None = None
    """Side of the running canary that serves the request."""
    chose_timeout: bool = False
    """True if the request's deadline is the client's own, shorter than the gateway's."""
    messages: Sequence[Mapping[str, Any]] = ()
    """Messages as the chat template gets them. They must never be logged."""
    tools: Sequence[Mapping[str, Any]] = ()
    times: RequestTimes = field(default_factory=RequestTimes)
    images: int = 0
    """Images of the prompt; of the one with the most if the request has several."""


class Observation:
    """One request under observation. This base records nothing."""

    __slots__ = ()

    def choice(self, sequence: str) -> EventCallback:  # noqa: ARG002
        """Return a callback for the events of the choice whose ``EngineRequest.id`` is
        ``sequence``."""
        return _nothing

    def end(self, ending: Ending) -> None:
        """Record that the request ended. A second call changes nothing."""


class Observer:
    """Receiver of reports about requests, one per process. This base records nothing, for tests and
    for serving without telemetry."""

    def begin(self, facts: RequestFacts) -> Observation:  # noqa: ARG002
        return Observation()

    def record_refusal(self, api: str, code: str, key: str | None = None) -> None:
        """Record that a request was refused; ``code`` is the gateway error's own, from a bounded
        set, and ``key`` the name of its API key, if it has a valid one."""

    def record_ignored_fields(self, api: str, names: Sequence[str]) -> None:
        """Record that a request is answered without these fields. The client chose their names."""

    def record_storage_failure(self) -> None:
        """Record that an answer was delivered but could not be stored as it should have been."""


def _nothing(_: Event) -> None:
    pass
