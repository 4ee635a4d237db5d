"""Server-sent events: frames, keep-alive comments, the end of a stream."""

from __future__ import annotations

from typing import Any, Final

import orjson

CONTENT_TYPE: Final = b"text/event-stream; charset=utf-8"
HEADERS: Final = (
    (b"content-type", CONTENT_TYPE),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"


def frame(data: Any) -> bytes:
    """One unnamed event with JSON data."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


def named_frame(event: str, data: Any) -> bytes:
    """One event with a name and JSON data."""
    return b"event: " + event.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"
