"""Readers of workers' answers: typed values, size limits, and SSE decoding.

Each reader bounds its input and raises WorkerProtocolError for anything else, which counts as a
failure of the worker. A worker's messages are quoted only for the operator,
shortened and cleaned. ``refusals.py`` has the messages for clients.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from eaglegate.engine.errors import EngineDead
from eaglegate.engine.types import EngineRequest

QUOTED = 200
"""Number of characters of a worker's message that are quoted."""
UNPRINTABLE = re.compile(r"[^ -~\u00a0-\uffff]+|\s+")
ADDRESS = re.compile(
    r"\b\w{1,20}://\S+|(?<![\w.])/[\w./-]{2,}|\b[A-Za-z]:\\\S+|\\\\\w\S+|\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b"
)
"""URLs, paths and IP addresses of a worker's network."""
SECRET = re.compile(
    r"(?i)\b(bearer|basic)\s{1,9}[\w.~+/=-]{6,}|\b(sk|hf|ghp|xox[abp])[-_][\w-]{6,}"
    r"|\b(api[_-]?key|token|password|secret|authorization)[\"']?\s{0,9}[=:]\s{0,9}[\"']?[^\s\"',;}]{4,}"
)


class WorkerProtocolError(EngineDead):
    """The worker broke the protocol or exceeded a limit."""


def read_json(data: bytes, name: str) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        raise WorkerProtocolError(f"{name} is not JSON: {quote(data)}") from None


def read_object(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise WorkerProtocolError(f"{name} must be an object, is {name_type(value)}")
    return value


def read_optional_object(value: Any, name: str) -> Mapping[str, Any]:
    """Return the object; empty for null. Raises WorkerProtocolError."""
    return {} if value is None else read_object(value, name)


def read_list(value: Any, name: str, max_entries: int) -> Sequence[Any]:
    """Return the list; empty for null. Raises WorkerProtocolError."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise WorkerProtocolError(f"{name} must be a list, is {name_type(value)}")
    if len(value) > max_entries:
        raise WorkerProtocolError(
            f"{name} must have at most {max_entries} entries, has {len(value)}"
        )
    return value


def read_integer(value: Any, name: str, minimum: int, maximum: int) -> int:
    if type(value) is not int or not minimum <= value <= maximum:
        text = value if type(value) is int else name_type(value)
        raise WorkerProtocolError(
            f"{name} must be an integer from {minimum} to {maximum}, is {str(text)[:40]}"
        )
    return value


def read_integers(
    value: Any, name: str, minimum: int, stop: int, max_entries: int
) -> tuple[int, ...]:
    """Read at most ``max_entries`` integers, all from ``minimum`` up to ``stop`` exclusive."""
    numbers = read_list(value, name, max_entries)
    for number in numbers:
        if type(number) is not int or not minimum <= number < stop:
            read_integer(number, f"an entry of {name}", minimum, stop - 1)
    return tuple(numbers)


def read_number(value: Any, name: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise WorkerProtocolError(f"{name} must be a number, is {name_type(value)}")
    return float(value)


def read_string(value: Any, name: str, max_chars: int) -> str:
    if not isinstance(value, str) or len(value) > max_chars:
        description = f"{len(value)} long" if isinstance(value, str) else name_type(value)
        raise WorkerProtocolError(
            f"{name} must be a string of at most {max_chars} characters, is {description}"
        )
    return value


def name_type(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def quote(value: str | bytes, secrets: Sequence[str] = ()) -> str:
    """Return one short printable line, without addresses, ``secrets`` or text that looks like a
    secret."""
    text = value[: 8 * QUOTED].decode("utf-8", "replace") if isinstance(value, bytes) else value
    text = text[: 8 * QUOTED]
    for secret in secrets:
        text = text.replace(secret, "***")
    text = ADDRESS.sub("...", SECRET.sub("***", text))
    printable_text = UNPRINTABLE.sub(" ", text).strip()
    return f"{printable_text[:QUOTED]}..." if len(printable_text) > QUOTED else printable_text


def extract_message(body: bytes, secrets: Sequence[str] = ()) -> str:
    """Return the quoted message of an error body in the format of vLLM, OpenAI or FastAPI."""
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError:
        is_page = body.lstrip()[:1] == b"<"
        return "an HTML page" if is_page else quote(body, secrets) or "no reason given"
    if isinstance(payload, dict):
        payload = payload.get("error") or payload.get("detail") or payload.get("message")
    return extract_error_message(payload, secrets)


def extract_error_message(error: Any, secrets: Sequence[str] = ()) -> str:
    """Return the quoted message of an error. FastAPI's list of errors repeats the request, so only
    its messages are quoted."""
    if isinstance(error, list):
        messages = [entry.get("msg") for entry in error[:3] if isinstance(entry, dict)]
        error = "; ".join(str(message) for message in messages)
    text = error.get("message") if isinstance(error, dict) else error
    return quote(text, secrets) if isinstance(text, str) and text else "no reason given"


QUESTION = 4 << 20
"""Most bytes of a response without generation: models, tokens of the probe, metrics."""
REFUSAL = 64 << 10
"""Most bytes of an error response."""
BASE = 256 << 10
PER_TOKEN = 128
PER_LOGPROB = 256
PER_TOKEN_ID = 16
MOST = 256 << 20
MOST_EVENT = 32 << 20
FRAMES_BESIDE = 1024
"""Most events of a stream that carry no token."""
RETOKENISED = 4
"""Most tokens per token of the worker, when its text is tokenized again chunk by chunk."""
PADDING = 64


@dataclass(frozen=True, slots=True)
class ReplyLimits:
    event: int
    """Bytes of one event of a stream."""
    reply: int
    """Bytes of an answer that is not streamed."""
    frames: int
    """Events in one stream."""
    tokens: int
    """Tokens of the whole answer."""


def compute_limits(request: EngineRequest, *, text: bool = False) -> ReplyLimits:
    sampling, prompt = request.sampling, request.num_prompt
    max_tokens = sampling.max_tokens * (RETOKENISED if text else 1) + (PADDING if text else 0)
    entries = PER_LOGPROB * _count_entries(sampling.logprobs)
    event_bytes = BASE + max_tokens * ((PER_TOKEN if text else PER_TOKEN_ID) + entries)
    about_prompt = prompt * (PER_TOKEN + PER_LOGPROB * _count_entries(sampling.prompt_logprobs))
    reply_bytes = BASE + max_tokens * (PER_TOKEN + entries) + about_prompt
    return ReplyLimits(
        min(event_bytes, MOST_EVENT),
        min(reply_bytes, MOST),
        2 * max_tokens + FRAMES_BESIDE,
        max_tokens,
    )


def _count_entries(top: int | None) -> int:
    return 0 if top is None else top + 2


class SseDecoder:
    """Decoder of server-sent events of at most ``most`` bytes, comments before them included.

    ``feed`` returns the data of every complete event. Its time is linear in the bytes, however they
    are split.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._line = bytearray()
        """The beginning of an unfinished line."""
        self._data: list[bytes] = []
        self._size = 0
        """Bytes of the event's complete lines, and of other lines since the last event."""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of completed events. Raises WorkerProtocolError for one that is too
        long."""
        head, *lines = data.split(b"\n")
        self._line += head
        events: list[bytes] = []
        if lines:
            self._take_line(bytes(self._line), events)
            for line in lines[:-1]:
                self._take_line(line, events)
            self._line = bytearray(lines[-1])
        self._check_size(self._size + len(self._line))
        return events

    def _take_line(self, line: bytes, events: list[bytes]) -> None:
        line = line.rstrip(b"\r")
        if not line and self._data:
            events.append(b"\n".join(self._data))
            self._data, self._size = [], 0
            return
        self._size += len(line) + 1
        self._check_size(self._size)
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise WorkerProtocolError(
                f"an event of the stream is longer than {self._max_bytes} bytes"
            )
