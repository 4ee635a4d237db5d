"""The capture format: JSON lines that AIPerf reads as ``mooncake_trace``, one request each.

At the top level stand AIPerf's own fields: ``timestamp`` (milliseconds since the capture began),
``output_length``, and exactly one of ``messages`` (with ``tools``), ``text_input`` and
``input_length`` (with ``hash_ids`` of 512-token blocks). All that is ours is under ``eaglegate``.
Traces without our key, such as Mooncake's, are read too. ``files.py`` reads and writes files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

VERSION = 1
OURS = "eaglegate"
"""The one key at the top level that is not AIPerf's."""
BLOCK = 16
"""Tokens per hash in ``CapturedPrompt.blocks``, as vLLM's prefix cache counts them."""
TRACE_BLOCK = 512
"""Tokens per hash in the ``hash_ids`` that AIPerf and Mooncake read."""


class CaptureError(ValueError):
    """A capture that cannot be read; the message says what to do."""


class DamagedRecord(CaptureError):
    """One line that is no record; those around it may be."""


class CapturedStep(NamedTuple):
    """One decode step (``eaglegate.engine.types.DecodeStep``); zeros at the end are not written."""

    drafted: int
    accepted: int
    delivered: int
    cut: int = 0


@dataclass(frozen=True, slots=True)
class CapturedPrompt:
    """The prompt as the engine was given it."""

    tokens: int
    token_ids: tuple[int, ...] | None = None
    """None in mode ``hashes``, and where a redaction rule found something in the record."""
    blocks: tuple[int, ...] | None = None
    """Salted hashes of the prompt up to the end of each 16-token block, in mode ``hashes``."""


@dataclass(frozen=True, slots=True)
class CapturedChoice:
    """One choice of the answer. Tokens that ``steps`` do not deliver came from prefill."""

    prompt: int = 0
    """Index into ``CaptureRecord.prompts``."""
    tokens: int = 0
    token_ids: tuple[int, ...] | None = None
    """None in mode ``hashes``, and where a redaction rule found something in the record."""
    steps: tuple[CapturedStep, ...] = ()
    phases: tuple[tuple[str, int], ...] = ()
    """Runs of tokens by phase, in order: ``(("reasoning", 34), ("content", 20))``."""
    finish: str | None = None
    """None when the answer did not reach its end."""
    tools: tuple[str, ...] = ()
    """Outcomes of its tool calls (``eaglegate.engine.events.Outcome``)."""
    cached: int = 0
    """Prompt tokens served from the prefix cache."""
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class CaptureRecord:
    """One request. What a foreign trace does not say keeps its default."""

    timestamp: float | None = None
    """Milliseconds since the capture began."""
    session_id: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    """Messages as a client of chat completions sent them. For other APIs, as the chat
    template got them.
    """
    tools: tuple[Mapping[str, Any], ...] | None = None
    text_input: str | None = None
    input_length: int | None = None
    output_length: int | None = None
    hash_ids: tuple[int, ...] | None = None
    delay: float | None = None
    session: str = ""
    """Salted hash; requests with the same value belong together. ``session_id``, the same, is
    there only beside ``messages``: AIPerf adds earlier turns to those of a session otherwise."""
    id: str = ""
    arrived: float | None = None
    """Unix time in seconds."""
    mode: str = "full"
    """full or hashes"""
    api: str = "chat"
    """chat, completions, responses or messages"""
    path: str = "/v1/chat/completions"
    body: Mapping[str, Any] | None = None
    """The request's body; None in mode ``hashes``. ``request_body`` adds what stands above."""
    model: str = ""
    key: str | None = None
    """The public name of the API key."""
    stream: bool = False
    workload: str = ""
    context: str = ""
    """Bucket of the prompt's length, as in the metrics."""
    template: str = ""
    lane: str = ""
    depth: int | None = None
    """Draft tokens per step that the request was given; None: the engine's own."""
    method: str = ""
    """Method of speculation: none, eagle3, eagle3.1, ..."""
    draft: str = ""
    """``fingerprint_draft`` of the draft, joined by + where a swap fell into the request; its name
    where there are no files, as with workers."""
    ending: str = ""
    """``eaglegate.engine.events.Ending``"""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """The fields of ``eaglegate.engine.types.Sampling`` that are not neutral."""
    constraint: str = ""
    """The kind of the grammar that held the output, if one did."""
    prompts: tuple[CapturedPrompt, ...] = ()
    choices: tuple[CapturedChoice, ...] = ()
    queued_ms: float | None = None
    ttft_ms: float | None = None
    duration_ms: float | None = None
    redacted: bool = False
    """A redaction rule replaced something."""

    @property
    def tokens(self) -> int:
        """Output tokens of all choices."""
        return sum(choice.tokens for choice in self.choices) or self.output_length or 0

    @property
    def cluster(self) -> str:
        """Independent unit of statistics that the record belongs to."""
        return self.session or self.session_id or self.id

    @property
    def greedy(self) -> bool:
        return bool(self.sampling.get("temperature", 1.0) == 0)

    def request_body(self) -> dict[str, Any]:
        """A body to send to ``path`` again. Raises CaptureError where none was captured."""
        if self.body is None and self.messages is None and self.text_input is None:
            raise CaptureError("the record holds no body and no messages (--capture-mode hashes)")
        body = dict(self.body or {})
        shared: dict[str, Any] = {}
        if self.api == "chat" and self.messages is not None:
            shared["messages"] = list(self.messages)
            if self.tools:
                shared["tools"] = list(self.tools)
        elif self.text_input is not None:
            shared["prompt"] = self.text_input
        return shared | body

    def trajectories(self) -> Iterator[tuple[tuple[int, ...], CapturedChoice]]:
        """Prompt and choice of every answer whose token ids were captured."""
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
_CUT, _WITHOUT_CUT = itemgetter(3), itemgetter(0, 1, 2)


def format_record(record: CaptureRecord) -> bytes:
    """One line, without its end. Defaults are left out."""
    ours = {name: v for name, default in _OWN_DEFAULTS if (v := getattr(record, name)) != default}
    ours["prompts"] = [_strip(_read_slots(prompt)) for prompt in record.prompts]
    ours["choices"] = [_strip(_choice_fields(choice)) for choice in record.choices]
    line = {name: v for name in _AIPERF if (v := getattr(record, name)) is not None}
    line[OURS] = {"version": VERSION, **ours}
    return orjson.dumps(line)


def _read_slots(part: CapturedPrompt | CapturedChoice) -> dict[str, Any]:
    return {name: getattr(part, name) for name in part.__slots__}


def _choice_fields(choice: CapturedChoice) -> dict[str, Any]:
    values = _read_slots(choice)
    if any(map(_CUT, choice.steps)):
        values["steps"] = [tuple(step) if step[3] else step[:3] for step in choice.steps]
    else:
        values["steps"] = [*map(_WITHOUT_CUT, choice.steps)]
    return values


def _strip(values: dict[str, Any]) -> dict[str, Any]:
    return {name: v for name, v in values.items() if v is not None and v != () and v != []}


def check_version(row: Mapping[str, Any]) -> None:
    """Raises CaptureError for a line of a later version of the format."""
    if row.get("version", VERSION) > VERSION:
        raise CaptureError(
            f"format version {row['version']} is newer than this reader's ({VERSION}): "
            "update eaglegate"
        )


def parse_record(line: bytes) -> CaptureRecord:
    """Raises DamagedRecord, or CaptureError for a record of a later version of the format."""
    try:
        row = orjson.loads(line)
        if not isinstance(row, dict):
            raise TypeError("not an object")
        ours = row.get(OURS, {})
        check_version(ours)
        record = CaptureRecord(
            **{name: _freeze(row[name]) for name in _AIPERF if name in row},
            **{name: ours[name] for name in _OWN if name in ours},
            prompts=tuple(_parse_prompt(prompt) for prompt in ours.get("prompts", ())),
            choices=tuple(_parse_choice(choice) for choice in ours.get("choices", ())),
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
    known = {name: _freeze(row[name]) for name in CapturedPrompt.__slots__ if name in row}
    return CapturedPrompt(**known)


def _parse_choice(row: Mapping[str, Any]) -> CapturedChoice:
    known = {name: _freeze(row[name]) for name in CapturedChoice.__slots__ if name in row}
    known["steps"] = tuple(CapturedStep(*step) for step in row.get("steps", ()))
    known["phases"] = tuple((str(name), int(count)) for name, count in row.get("phases", ()))
    return CapturedChoice(**known)


def coarsen(blocks: Sequence[int], tokens: int) -> tuple[int, ...]:
    """``hash_ids`` of 512-token blocks out of those of 16 tokens; the last may be partial."""
    each = TRACE_BLOCK // BLOCK
    whole = blocks[each - 1 : tokens // BLOCK : each]
    return (*whole, blocks[-1]) if tokens % TRACE_BLOCK else tuple(whole)


def strip_ours(record: CaptureRecord) -> CaptureRecord:
    """Keep only the fields that AIPerf reads."""
    kept = {name: getattr(record, name) for name in _AIPERF}
    return replace(_DEFAULTS, **kept)
