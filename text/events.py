"""Events that a parser produces from an answer's tokens: a closed union of small classes."""

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
    """Parses as a JSON object but does not satisfy the schema."""
    MALFORMED = "malformed"
    """The arguments are not a JSON object, or a value was not closed. Delivered as written."""
    TRUNCATED = "truncated"
    """Generation ended inside the call."""
    UNKNOWN_TOOL = "unknown_tool"
    """No tool of that name was offered. The call is delivered anyway."""
    UNCHECKED = "unchecked"
    """Parses as a JSON object, but the schema cannot be applied, or not in bounded time."""


class Repair(StrEnum):
    """Repair of a call's arguments, made because only one meaning was possible."""

    ARGUMENTS_KEY = "arguments_key"
    """The arguments were under another key, or next to the name."""
    CONTROL_CHARACTER = "control_character"
    """A string contained a line break or another control character."""
    DOUBLE_ENCODED = "double_encoded"
    """The arguments were a JSON string that holds an object."""
    INVALID_ESCAPE = "invalid_escape"
    """A backslash preceded a character that JSON does not escape."""
    MISSING_BRACKET = "missing_bracket"
    """Closing brackets were missing at the end of the call."""
    NULL_ARGUMENTS = "null_arguments"
    """The arguments were ``null``, which means no arguments."""
    QUOTED_VALUE = "quoted_value"
    """A value was quoted although its type takes no quotes."""
    REPEATED_PARAMETER = "repeated_parameter"
    """A parameter was given twice. The first value counts."""
    TRAILING_COMMA = "trailing_comma"
    """A comma preceded a closing bracket."""
    WRAPPER = "wrapper"
    """The arguments were inside one parameter that the tool does not have."""


class ReasoningDelta(Struct, frozen=True):
    text: str


class ContentDelta(Struct, frozen=True):
    text: str


class ToolCallStart(Struct, frozen=True, repr_omit_defaults=True):
    """Start of call ``index`` (0, 1, ... per answer). Only this event has the id and the name."""

    index: int
    id: str
    name: str
    custom: bool = False
    """True for a custom tool, whose only argument is plain text."""


class ToolCallDelta(Struct, frozen=True):
    """The next piece of the arguments' JSON, or of a custom tool's text; never empty."""

    index: int
    arguments: str


class ToolCallEnd(Struct, frozen=True, repr_omit_defaults=True):
    """End of a call. ``written`` is the model's own text if ``repairs`` changed it."""

    index: int
    outcome: Outcome
    repairs: tuple[Repair, ...] = ()
    written: str | None = None


ParserEvent = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallDelta | ToolCallEnd


class FinishReason(StrEnum):
    """Why an engine stopped producing tokens for a request.

    An abort that no client caused means that the engine has died: that is an error (EngineDead).
    """

    STOP = "stop"
    LENGTH = "length"
