"""The capture format: JSON lines that AIPerf reads as ``mooncake_trace``, one per request.

The top-level fields are AIPerf's: ``timestamp`` (milliseconds since the capture began),
``output_length``, and exactly one of ``messages`` (with ``tools``), ``text_input`` and
``input_length`` (with ``hash_ids`` of 512-token blocks). All other fields are under ``eaglegate``.
Traces without that key, such as Mooncake's, are readable too. ``files.py`` reads and writes the
files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

VERSION = 1
OURS = "eaglegate"
"""The only top-level key that is not AIPerf's."""
BLOCK = 16
"""Tokens per hash in ``CapturedPrompt.blocks``, the block size of vLLM's prefix cache."""
TRACE_BLOCK = 512
"""Tokens per hash in the ``hash_ids`` that AIPerf and Mooncake read."""


class CaptureError(ValueError):
    """A capture cannot be read. The message says what to do."""


class DamagedRecord(CaptureError):
    """A line is not a valid record. The lines around it may still be valid."""


class CapturedStep(NamedTuple):
    """One decode step (``eaglegate.engine.types.DecodeStep``). Trailing zeros are not written."""

    drafted: int
    accepted: int
    delivered: int
    cut: int = 0
    lookup: int = 0
    """1 if the drafted tokens came from a lookup."""


@dataclass(frozen=True, slots=True)
class CapturedPrompt:
    """A prompt as the engine received it."""

    tokens: int
    token_ids: tuple[int, ...] | None = None
    """None in mode ``hashes``, or if a redaction rule matched anywhere in the record. None with
    images as well: without them the same ids are another prompt."""
    blocks: tuple[int, ...] | None = None
    """Salted hashes of the prompt up to the end of each 16-token block, in mode ``hashes``. None
    with images."""
    images: tuple[str, ...] = ()
    """SHA-256 of each image, salted in mode ``hashes``."""


@dataclass(frozen=True, slots=True)
class CapturedChoice:
    """One choice of the answer. Tokens that are in no step came from prefill."""

    prompt: int = 0
    """Index into ``CaptureRecord.prompts``."""
    tokens: int = 0
    token_ids: tuple[int, ...] | None = None
    """None in mode ``hashes``, or if a redaction rule matched anywhere in the record."""
    steps: tuple[CapturedStep, ...] = ()
    phases: tuple[tuple[str, int], ...] = ()
    """Runs of tokens by phase, in order: ``(("reasoning", 34), ("content", 20))``."""
    finish: str | None = None
    """Finish reason; None if the answer was not completed."""
    tools: tuple[str, ...] = ()
    """Outcomes of the choice's tool calls (``eaglegate.engine.events.Outcome``)."""
    cached: int = 0
    """Prompt tokens served from the prefix cache."""
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class CaptureRecord:
    """One captured request. Fields that a foreign trace lacks keep their defaults."""

    timestamp: float | None = None
    """Milliseconds since the capture began."""
    session_id: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    """Messages as the client sent them to chat completions. For other APIs, messages as passed to
    the chat template.
    """
    tools: tuple[Mapping[str, Any], ...] | None = None
    text_input: str | None = None
    input_length: int | None = None
    output_length: int | None = None
    hash_ids: tuple[int, ...] | None = None
    delay: float | None = None
    session: str = ""
    """Salted hash of the session. ``session_id`` has the same value but is only set with
    ``messages``: AIPerf would otherwise add the session's earlier turns.
    """
    id: str = ""
    arrived: float | None = None
    """Unix time in seconds."""
    mode: str = "full"
    """Mode of the capture: full or hashes."""
    api: str = "chat"
    """API of the request: chat, completions, responses or messages."""
    path: str = "/v1/chat/completions"
    body: Mapping[str, Any] | None = None
    """The request's body without the fields above; None in mode ``hashes``. ``request_body``
    returns the complete body.
    """
    model: str = ""
    key: str | None = None
    """The public name of the API key."""
    stream: bool = False
    workload: str = ""
    context: str = ""
    """Bucket of the prompt's length, with the same names as in the metrics."""
    template: str = ""
    lane: str = ""
    depth: int | None = None
    """Draft tokens per step that the request was given; None for the engine's default."""
    method: str = ""
    """Method of speculation: none, eagle3, eagle3.1, ..."""
    draft: str = ""
    """``fingerprint_draft`` of the draft, or the draft's name if it has no local files, as on
    workers. Fingerprints are joined by + if a swap happened during the request.
    """
    ending: str = ""
    """How the request ended (``eaglegate.engine.events.Ending``)."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """The fields of ``eaglegate.engine.types.Sampling`` that are not neutral."""
    constraint: str = ""
    """Kind of the grammar that constrained the output; empty without one."""
    prompts: tuple[CapturedPrompt, ...] = ()
    choices: tuple[CapturedChoice, ...] = ()
    queued_ms: float | None = None
    ttft_ms: float | None = None
    duration_ms: float | None = None
    redacted: bool = False
    """True if a redaction rule replaced something."""

    @property
    def tokens(self) -> int:
        """Number of output tokens of all choices."""
        return sum(choice.tokens for choice in self.choices) or self.output_length or 0

    @property
    def cluster(self) -> str:
        """The independent statistical unit that the record belongs to."""
        return self.session or self.session_id or self.id

    @property
    def greedy(self) -> bool:
        return bool(self.sampling.get("temperature", 1.0) == 0)

    def request_body(self) -> dict[str, Any]:
        """Return a body that can be sent to ``path`` again. Raises CaptureError if none was
        captured.
        """
        if self.body is None and self.messages is None and self.text_input is None:
            raise CaptureError("the record holds no body and no messages (--capture-mode hashes)")
        body = dict(self.body or {})
        shared_fields: dict[str, Any] = {}
        if self.api == "chat" and self.messages is not None:
            shared_fields["messages"] = list(self.messages)
            if self.tools:
                shared_fields["tools"] = list(self.tools)
        elif self.text_input is not None:
            shared_fields["prompt"] = self.text_input
        return shared_fields | body

    def trajectories(self) -> Iterator[tuple[tuple[int, ...], CapturedChoice]]:
        """Yield the prompt and choice of every answer whose token ids were captured."""
        for choice in self.choices:
            prompt = self.prompts[choice.prompt].token_ids
            if prompt is not None and choice.token_ids:
                yield prompt, choice


_AIPERF = (
    "timestamp", "session_id", "messages", "tools", "text_input", "input_length", "output_length",
    "hash_ids", "delay",
)  # fmt: skip
_OWN = tuple(
    item.name for item in fields(CaptureRecord) if item.name not in (*_AIPERF, "prompts", "choices")
)
_DEFAULTS = CaptureRecord()
_OWN_DEFAULTS = tuple((name, getattr(_DEFAULTS, name)) for name in _OWN)
_CUT, _LOOKUP, _WITHOUT_CUT = itemgetter(3), itemgetter(4), itemgetter(0, 1, 2)


def format_record(record: CaptureRecord) -> bytes:
    """Return the record as one line, without the line break. Defaults are left out."""
    extension = {
        name: v for name, default in _OWN_DEFAULTS if (v := getattr(record, name)) != default
    }
    extension["prompts"] = [_strip(_read_slots(prompt)) for prompt in record.prompts]
    extension["choices"] = [_strip(_choice_fields(choice)) for choice in record.choices]
    line = {name: v for name in _AIPERF if (v := getattr(record, name)) is not None}
    line[OURS] = {"version": VERSION, **extension}
    return orjson.dumps(line)


def _read_slots(part: CapturedPrompt | CapturedChoice) -> dict[str, Any]:
    return {name: getattr(part, name) for name in part.__slots__}


def _choice_fields(choice: CapturedChoice) -> dict[str, Any]:
    values = _read_slots(choice)
    if any(map(_CUT, choice.steps)) or any(map(_LOOKUP, choice.steps)):
        values["steps"] = [
            tuple(step) if step[4] else step[:4] if step[3] else step[:3] for step in choice.steps
        ]
    else:
        values["steps"] = [*map(_WITHOUT_CUT, choice.steps)]
    return values


def _strip(values: dict[str, Any]) -> dict[str, Any]:
    return {name: v for name, v in values.items() if v is not None and v != () and v != []}


def check_version(row: Mapping[str, Any]) -> None:
    """Raise CaptureError for a newer version of the format."""
    if row.get("version", VERSION) > VERSION:
        raise CaptureError(
            f"format version {row['version']} is newer than this reader's ({VERSION}): "
            "update eaglegate"
        )


def parse_record(line: bytes) -> CaptureRecord:
    """Parse one line. Raises DamagedRecord, or CaptureError for a newer version of the format."""
    try:
        row = orjson.loads(line)
        if not isinstance(row, dict):
            raise TypeError("not an object")
        extension = row.get(OURS, {})
        check_version(extension)
        record = CaptureRecord(
            **{name: _freeze(row[name]) for name in _AIPERF if name in row},
            **{name: extension[name] for name in _OWN if name in extension},
            prompts=tuple(_parse_prompt(prompt) for prompt in extension.get("prompts", ())),
            choices=tuple(_parse_choice(choice) for choice in extension.get("choices", ())),
        )
    except CaptureError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedRecord(f"not a capture record: {error}") from None
    if record.messages is None and record.text_input is None and record.input_length is None:
        raise DamagedRecord("not a capture record: it has no messages, text_input or input_length")
    return record


def _freeze(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _parse_prompt(row: Mapping[str, Any]) -> CapturedPrompt:
    values = {name: _freeze(row[name]) for name in CapturedPrompt.__slots__ if name in row}
    return CapturedPrompt(**values)


def _parse_choice(row: Mapping[str, Any]) -> CapturedChoice:
    values = {name: _freeze(row[name]) for name in CapturedChoice.__slots__ if name in row}
    values["steps"] = tuple(CapturedStep(*step) for step in row.get("steps", ()))
    values["phases"] = tuple((str(name), int(count)) for name, count in row.get("phases", ()))
    return CapturedChoice(**values)


def coarsen(blocks: Sequence[int], tokens: int) -> tuple[int, ...]:
    """Return the ``hash_ids`` of 512-token blocks from hashes of 16-token blocks; the last block
    may be partial.
    """
    ratio = TRACE_BLOCK // BLOCK
    full_blocks = blocks[ratio - 1 : tokens // BLOCK : ratio]
    return (*full_blocks, blocks[-1]) if tokens % TRACE_BLOCK else tuple(full_blocks)


def strip_ours(record: CaptureRecord) -> CaptureRecord:
    """Keep only the fields that AIPerf reads."""
    values = {name: getattr(record, name) for name in _AIPERF}
    return replace(_DEFAULTS, **values)
