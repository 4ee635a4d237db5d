"""Events of a request: the parser's and those of its accounts, and the observers of both.

``Observer`` is the interface through which the server reports. It knows no metrics, logs or traces.
One ``Observation`` per request, in this order:

    observation = observer.begin(facts)        # once the request is a Job and was let in
    observe = observation.choice(sequence_id)  # for every choice
    observe(event)                             # every event, before the next step is asked for
    observation.end(Ending.COMPLETED)          # exactly once, in a finally

``observer.record_refusal`` reports a request that never became a Job. No method raises or waits.
A step comes, then the events made of it, then the next step: an observer that also sees the steps
knows which step made which event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct

from eaglegate.engine.speculation.totals import Totals
from eaglegate.engine.types import Arm, DecodeStep, PositionLogprobs
from eaglegate.text.events import ParserEvent


class PromptEcho(Struct, frozen=True):
    """The prompt of a choice, in its first batch, for jobs that want it back.

    ``logprobs`` has one entry per token when asked for; None where nothing precedes the token.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs | None, ...] | None = None


class TokensDelta(Struct, frozen=True):
    """The token ids of one step, for jobs that want them; before the step's other events."""

    token_ids: tuple[int, ...]


class StepKind(StrEnum):
    """A step's way to make its tokens."""

    PREFILL = "prefill"
    """The first token comes from the prompt's own pass through the target."""
    VERIFY = "verify"
    """The target verified draft tokens."""
    PLAIN = "plain"
    """The target made one token without a draft."""
    UNKNOWN = "unknown"
    """The engine gives no account of the step."""


class TracedStep(Struct, frozen=True):
    """One engine step of a choice.

    The first ``account.accepted`` of ``token_ids`` are draft tokens of positions 1, 2, ...; the
    rest is the target's own.
    """

    index: int
    """0 for the first step of the choice."""
    kind: StepKind
    token_ids: tuple[int, ...]
    seconds: float
    """Since the step before; of the first, since the engine was given the request."""
    account: DecodeStep | None = None
    """None for prefill and unknown steps."""
    drafts: tuple[int, ...] = ()
    """The verified draft tokens; empty where the engine does not know them."""


class StepsDelta(Struct, frozen=True):
    """The engine steps behind a batch, for jobs that want them; before its other events."""

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
    """Ends one choice. ``reason``: stop, length, tool_calls or abort; ``stop`` is what matched.

    ``decode`` is the choice's account, step by step; empty where the engine reports none.
    ``totals`` is its sum.
    """

    reason: str
    usage: Usage
    stop: str | int | None = None
    decode: tuple[DecodeStep, ...] = ()
    totals: Totals | None = None
    pace: Pace | None = None


Event = ParserEvent | PromptEcho | StepsDelta | TokensDelta | LogprobsDelta | UsageDelta | Finish


class EventSink(Protocol):
    """Takes the events of an answer: ``engine.types.StepSink`` behind the parser.

    Each push has the number of the choice, and the events of one engine step, never none.
    """

    def is_open(self) -> bool:
        """Whether the client keeps up."""
        ...

    def push(self, choice: int, events: list[Event]) -> None: ...

    async def drain(self) -> None:
        """Wait until the client has been sent what was pushed. Several choices may wait at once."""
        ...


EventCallback = Callable[[Event], None]


class Ending(StrEnum):
    """Ending of a request that had begun."""

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


@dataclass(slots=True)
class RequestTimes:
    """Seconds that one request has spent in parts of the gateway so far."""

    rendering: float = 0.0
    """Making the prompt of its messages and tools."""
    compiling: float = 0.0
    """Trying its grammar out before the engine sees it."""
    reading: float = 0.0
    """Turning steps into events, and reporting them."""
    writing: float = 0.0
    """Encoding events, writing them, and waiting for a client that reads slowly."""


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
    """Client's name for the session; None when it names none."""
    arm: Arm | None = None
    """Side of the running canary that serves the request."""
    messages: Sequence[Mapping[str, Any]] = ()
    """Messages as the chat template gets them. They must never be logged."""
    tools: Sequence[Mapping[str, Any]] = ()
    times: RequestTimes = field(default_factory=RequestTimes)


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
    """Observer that records nothing, for tests and for serving without telemetry."""

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
