"""Typed readers for what workers say. Workers are strangers: each reader bounds what it takes, and
raises WorkerFault for anything else, which is the worker's failure and nobody else's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from engine.errors import EngineDead

QUOTED = 200
"""Characters quoted of what a worker says."""
UNPRINTABLE = re.compile(r"[^ -~\u00a0-\uffff]+|\s+")
ADDRESS = re.compile(r"\w+://\S+|(?<![\w.])/[\w./-]{2,}|\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b")
"""URLs, paths and IP addresses: a worker's surroundings are nobody's business."""


class WorkerProtocolError(EngineDead):
    """The worker broke the protocol, or its bounds."""


def read_json(data: bytes, what: str) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        raise WorkerProtocolError(f"{what} is not JSON: {quote(data)}") from None


def read_object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise WorkerProtocolError(f"{what} must be an object, is {name_type(value)}")
    return value


def read_optional_object(value: Any, what: str) -> Mapping[str, Any]:
    """Empty for null."""
    return {} if value is None else read_object(value, what)


def read_list(value: Any, what: str, most: int) -> Sequence[Any]:
    """Empty for null."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise WorkerProtocolError(f"{what} must be a list, is {name_type(value)}")
    if len(value) > most:
        raise WorkerProtocolError(f"{what} must have at most {most} entries, has {len(value)}")
    return value


def read_integer(value: Any, what: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        given = value if type(value) is int else name_type(value)
        raise WorkerProtocolError(
            f"{what} must be an integer from {least} to {most}, is {str(given)[:40]}"
        )
    return value


def read_integers(value: Any, what: str, least: int, below: int, most: int) -> tuple[int, ...]:
    """At most ``most`` of them, all from ``least`` up to, but not, ``below``."""
    found = read_list(value, what, most)
    for number in found:
        if type(number) is not int or not least <= number < below:
            read_integer(number, f"an entry of {what}", least, below - 1)
    return tuple(found)


def read_number(value: Any, what: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise WorkerProtocolError(f"{what} must be a number, is {name_type(value)}")
    return float(value)


def read_string(value: Any, what: str, most: int) -> str:
    if not isinstance(value, str) or len(value) > most:
        given = f"{len(value)} long" if isinstance(value, str) else name_type(value)
        raise WorkerProtocolError(
            f"{what} must be a string of at most {most} characters, is {given}"
        )
    return value


def name_type(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def quote(said: str | bytes) -> str:
    """One short printable line of it, without addresses."""
    text = said[: 8 * QUOTED].decode("utf-8", "replace") if isinstance(said, bytes) else said
    plain = UNPRINTABLE.sub(" ", ADDRESS.sub("...", text[: 8 * QUOTED])).strip()
    return f"{plain[:QUOTED]}..." if len(plain) > QUOTED else plain


def extract_message(body: bytes) -> str:
    """Out of an answer that is not 200, as vLLM, OpenAI or FastAPI write it; quoted."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        return "an HTML page" if body.lstrip()[:1] == b"<" else quote(body) or "no reason given"
    if isinstance(said, dict):
        said = said.get("error") or said.get("detail") or said.get("message")
    return extract_error_message(said)


def extract_error_message(error: Any) -> str:
    """FastAPI's list of errors repeats what was sent: only its messages are quoted."""
    if isinstance(error, list):
        found = [entry.get("msg") for entry in error[:3] if isinstance(entry, dict)]
        error = "; ".join(str(message) for message in found)
    found_text = error.get("message") if isinstance(error, dict) else error
    return quote(found_text) if isinstance(found_text, str) and found_text else "no reason given"
