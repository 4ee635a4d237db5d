"""Events that a parser makes of an answer's tokens: a closed union of small classes."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Phase(StrEnum):
    """Part of an answer that is being written."""

    REASONING = "reasoning"
    CONTENT = "content"
    TOOL_CALL = "tool_call"


class Outcome(StrEnum):
    """Outcome of a tool call."""

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
    """Repair of a call's arguments, made because only one meaning was possible."""

    ARGUMENTS_KEY = "arguments_key"
    """The arguments stood under another key, or beside the name."""
    CONTROL_CHARACTER = "control_character"
    """A line break or another control character stood in a string."""
    DOUBLE_ENCODED = "double_encoded"
    """The arguments were a JSON string that holds an object."""
    INVALID_ESCAPE = "invalid_escape"
    """A backslash stood before a character that JSON does not escape."""
    MISSING_BRACKET = "missing_bracket"
    """Closing brackets were missing at the end of the call."""
    NULL_ARGUMENTS = "null_arguments"
    """The arguments were ``null``: there are none."""
    QUOTED_VALUE = "quoted_value"
    """A value was in quotes that its type has not."""
    REPEATED_PARAMETER = "repeated_parameter"
    """A parameter was given twice; the first stands."""
    TRAILING_COMMA = "trailing_comma"
    """A comma stood before a closing bracket."""
    WRAPPER = "wrapper"
    """The arguments were inside one parameter that the tool does not have."""


class ReasoningDelta(Struct, frozen=True):
    text: str


class ContentDelta(Struct, frozen=True):
    text: str


class ToolCallStart(Struct, frozen=True, repr_omit_defaults=True):
    """Opens call ``index`` (0, 1, ... per answer); id and name appear here and nowhere else."""

    index: int
    id: str
    name: str
    custom: bool = False
    """A custom tool, whose argument is one text."""


class ToolCallDelta(Struct, frozen=True):
    """The next piece of the arguments' JSON, or of a custom tool's text; never empty."""

    index: int
    arguments: str


class ToolCallEnd(Struct, frozen=True, repr_omit_defaults=True):
    """Ends a call. ``written`` is what the model wrote where ``repairs`` have changed it."""

    index: int
    outcome: Outcome
    repairs: tuple[Repair, ...] = ()
    written: str | None = None


ParserEvent = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallDelta | ToolCallEnd


class FinishReason(StrEnum):
    """Why an engine stopped producing tokens for a request.

    An engine that aborts a request nobody left has ended: that is an error (EngineDead).
    """

    STOP = "stop"
    LENGTH = "length"
