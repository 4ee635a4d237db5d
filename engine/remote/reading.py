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


class WorkerFault(EngineDead):
    """The worker broke the protocol, or its bounds."""


def json_of(data: bytes, what: str) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        raise WorkerFault(f"{what} is not JSON: {quote(data)}") from None


def object_of(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise WorkerFault(f"{what} must be an object, is {kind_of(value)}")
    return value


def optional_object(value: Any, what: str) -> Mapping[str, Any]:
    """Empty for null."""
    return {} if value is None else object_of(value, what)


def list_of(value: Any, what: str, most: int) -> Sequence[Any]:
    """Empty for null."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise WorkerFault(f"{what} must be a list, is {kind_of(value)}")
    if len(value) > most:
        raise WorkerFault(f"{what} must have at most {most} entries, has {len(value)}")
    return value


def integer(value: Any, what: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        given = value if type(value) is int else kind_of(value)
        raise WorkerFault(f"{what} must be an integer from {least} to {most}, is {str(given)[:40]}")
    return value


def integers(value: Any, what: str, least: int, below: int, most: int) -> tuple[int, ...]:
    """At most ``most`` of them, all from ``least`` up to, but not, ``below``."""
    found = list_of(value, what, most)
    for number in found:
        if type(number) is not int or not least <= number < below:
            integer(number, f"an entry of {what}", least, below - 1)
    return tuple(found)


def finite(value: Any, what: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise WorkerFault(f"{what} must be a number, is {kind_of(value)}")
    return float(value)


def string(value: Any, what: str, most: int) -> str:
    if not isinstance(value, str) or len(value) > most:
        given = f"{len(value)} long" if isinstance(value, str) else kind_of(value)
        raise WorkerFault(f"{what} must be a string of at most {most} characters, is {given}")
    return value


def kind_of(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def quote(said: str | bytes) -> str:
    """One short printable line of it, without addresses."""
    text = said[: 8 * QUOTED].decode("utf-8", "replace") if isinstance(said, bytes) else said
    plain = UNPRINTABLE.sub(" ", ADDRESS.sub("...", text[: 8 * QUOTED])).strip()
    return f"{plain[:QUOTED]}..." if len(plain) > QUOTED else plain


def message_of(body: bytes) -> str:
    """Out of an answer that is not 200, as vLLM, OpenAI or FastAPI write it; quoted."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        return "an HTML page" if body.lstrip()[:1] == b"<" else quote(body) or "no reason given"
    if isinstance(said, dict):
        said = said.get("error") or said.get("detail") or said.get("message")
    return message_of_error(said)


def message_of_error(error: Any) -> str:
    """FastAPI's list of errors repeats what was sent: only its messages are quoted."""
    if isinstance(error, list):
        found = [entry.get("msg") for entry in error[:3] if isinstance(entry, dict)]
        error = "; ".join(str(message) for message in found)
    found_text = error.get("message") if isinstance(error, dict) else error
    return quote(found_text) if isinstance(found_text, str) and found_text else "no reason given"
