"""Log format of the gateway, of vLLM and of the engine's processes.

Text lines are for people. In JSON mode every line is one object with ``time``, ``level``,
``logger`` and ``message``, whether the gateway, a library or an engine process wrote it.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
CHILD = "vllm.process"
"""The logger name of lines that the engine's processes wrote."""
PREFIX = re.compile(
    rb"^(?:\((?P<process>[^)]*pid=\d+[^)]*)\)\s*)?"
    rb"(?:(?P<level>[A-Z]+) \d\d-\d\d [\d:]+ \[(?P<source>[^\]]*)\]\s*)?"
)
"""Start of a vLLM line: ``(EngineCore pid=7) ERROR 11-20 10:00:00 [core.py:1] ``"""
LEVELS = {b"DEBUG": "debug", b"WARNING": "warning", b"ERROR": "error", b"CRITICAL": "critical"}
LineFormat = Callable[[bytes], bytes]
"""Converts a line that a process wrote to a line of the log."""


class JsonFormatter(logging.Formatter):
    """Formatter that writes one JSON object per line; ``extra={"fields": {...}}`` adds members."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            **make_head(record.levelname.lower(), record.name, record.created),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return write_line(line)


def make_head(level: str, logger: str, timestamp: float | None = None) -> dict[str, Any]:
    """Return the members that every line begins with."""
    local_time = datetime.fromtimestamp(time.time() if timestamp is None else timestamp, UTC)
    return {"time": local_time.isoformat(), "level": level, "logger": logger}


def write_line(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False, default=str)


def make_formatter(kind: str) -> logging.Formatter:
    """Return the formatter for ``kind``, "text" or "json"."""
    return JsonFormatter() if kind == "json" else logging.Formatter(TEXT)


def open_root_log(kind: str, level: str, stream: TextIO) -> None:
    """Send the log of all libraries to ``stream``."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(make_formatter(kind))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def pass_line(line: bytes) -> bytes:
    """Return a process's line unchanged."""
    return line


def wrap_line(line: bytes) -> bytes:
    """Return a process's line as JSON; empty for a blank line."""
    if line.startswith(b'{"time"'):
        return line
    match = PREFIX.match(line)
    assert match is not None  # both of its parts are optional
    message = line[match.end() :].rstrip().decode("utf-8", "replace")
    if not message:
        return b""
    fields = {name: match[name] for name in ("process", "source") if match[name]}
    texts = {name: value.decode("utf-8", "replace") for name, value in fields.items()}
    head = make_head(LEVELS.get(match["level"] or b"", "info"), CHILD)
    return write_line({**head, "message": message, **texts}).encode() + b"\n"


class WrappedLines:
    """Text stream that passes whole lines through ``wrap_line`` to another stream.

    It also catches output that libraries print, because vLLM replaces its own handlers repeatedly.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._stream.write(wrap_line(line.encode("utf-8", "replace")).decode())
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def adopt_vllm(kind: str) -> None:
    """Make vLLM's own log handlers in this process write in the gateway's format."""
    if kind == "json":
        for handler in logging.getLogger("vllm").handlers:
            handler.setFormatter(JsonFormatter())
