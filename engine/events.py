"""What the parser makes of engine steps: a closed union of small classes.

None of them ever changes. Those that come with every token are not declared frozen: making a frozen
one takes three times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from engine.speculation.totals import Totals
from engine.types import DecodeStep, PositionLogprobs


class Phase(StrEnum):
    """Which part of an answer is being written."""

    REASONING = "reasoning"
    CONTENT = "content"
    TOOL_CALL = "tool_call"


class Outcome(StrEnum):
    """How a tool call ended."""

    VALID = "valid"
    """Parses and satisfies the tool's JSON schema."""
    SCHEMA_MISMATCH = "schema_mismatch"
    """Parses as a JSON object, does not satisfy the schema."""
    MALFORMED = "malformed"
    """The arguments are no JSON object, or a value in them was not closed; delivered as written."""
    TRUNCATED = "truncated"
    """Generation ended inside the call."""
    UNKNOWN_TOOL = "unknown_tool"
    """No tool of that name was offered; delivered all the same."""
    UNCHECKED = "unchecked"
    """Parses as a JSON object; the schema cannot be applied, or not in bounded time."""


class Repair(StrEnum):
    """What was mended in the arguments of a call, because only one meaning was possible."""

    ARGUMENTS_KEY = "arguments_key"
    """They stood under another key, or beside the name."""
    DOUBLE_ENCODED = "double_encoded"
    """They were a JSON string that holds an object."""
    NULL_ARGUMENTS = "null_arguments"
    """They were ``null``: there are none."""
    QUOTED_VALUE = "quoted_value"
    """A value was in quotes that its type has not."""
    REPEATED_PARAMETER = "repeated_parameter"
    """A parameter was given twice; the first stands."""
    TRAILING_COMMA = "trailing_comma"
    """A comma stood before a closing bracket."""
    WRAPPER = "wrapper"
    """They were inside one parameter that the tool does not have."""


@dataclass(slots=True, unsafe_hash=True)
class ReasoningDelta:
    text: str


@dataclass(slots=True, unsafe_hash=True)
class ContentDelta:
    text: str


@dataclass(slots=True, unsafe_hash=True)
class ToolCallStart:
    """Opens call ``index`` (0, 1, ... per answer); id and name appear here and nowhere else."""

    index: int
    id: str
    name: str
    custom: bool = field(default=False, repr=False)
    """A custom tool, whose argument is one text."""


@dataclass(slots=True, unsafe_hash=True)
class ToolCallDelta:
    """The next piece of the arguments' JSON, or of a custom tool's text; never empty."""

    index: int
    arguments: str


@dataclass(slots=True, unsafe_hash=True)
class ToolCallEnd:
    """Ends a call. ``written`` is what the model wrote where ``repairs`` have changed it."""

    index: int
    outcome: Outcome
    repairs: tuple[Repair, ...] = ()
    written: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class PromptEcho:
    """The prompt of a choice, in its first batch, for jobs that want it back.

    ``logprobs`` has one entry per token when asked for; None where nothing precedes the token.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class TokensDelta:
    """The token ids of one step, for jobs that want them; before the step's other events."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogprobsDelta:
    """Log probabilities of the tokens of one step, in order; before the step's other events."""

    positions: tuple[PositionLogprobs, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one choice. ``accepted``/``rejected`` are draft tokens, None when unknown."""

    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0
    accepted: int | None = None
    rejected: int | None = None


@dataclass(frozen=True, slots=True)
class UsageDelta:
    """Token counts of a choice so far, first of a batch, for jobs that want them."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class Finish:
    """Ends one choice. ``reason``: stop, length, tool_calls or abort; ``stop`` is what matched.

    ``decode`` is the choice's account, step by step; empty where the engine reports none.
    ``totals`` is its sum.
    """

    reason: str
    usage: Usage
    stop: str | int | None = None
    decode: tuple[DecodeStep, ...] = ()
    totals: Totals | None = None


ParserEvent = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallDelta | ToolCallEnd
Event = ParserEvent | PromptEcho | TokensDelta | LogprobsDelta | UsageDelta | Finish


Batch = tuple[int, list[Event]]
"""The choice, and the events of one engine step; never an empty list."""


class BatchSink:
    """Takes batches at once, without waking the reader of ``events``, once that reader opens it."""

    __slots__ = ("_is_open", "push")

    def __init__(self) -> None:
        self._is_open: Callable[[], bool] = bool
        self.push: Callable[[int, list[Event]], None] = _refuse

    def is_open(self) -> bool:
        return self._is_open()

    def open(self, is_open: Callable[[], bool], push: Callable[[int, list[Event]], None]) -> None:
        """``push`` is called only where ``is_open`` has just been true."""
        self._is_open, self.push = is_open, push


def _refuse(_choice: int, _events: list[Event]) -> None:
    raise RuntimeError("the sink is closed")
