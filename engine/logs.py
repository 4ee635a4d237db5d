"""One log for all: how lines are written, those of vLLM and of the engine's processes included.

As text, a line is for people. As JSON, each line is one object with ``time``, ``level``, ``logger``
and ``message``, whoever wrote it: this gateway, a library, or a process of the engine.
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
"""The logger that lines of the engine's processes are said to come from."""
PREFIX = re.compile(
    rb"^(?:\((?P<process>[^)]*pid=\d+[^)]*)\)\s*)?"
    rb"(?:(?P<level>[A-Z]+) \d\d-\d\d [\d:]+ \[(?P<source>[^\]]*)\]\s*)?"
)
"""``(EngineCore pid=7) ERROR 11-20 10:00:00 [core.py:1] ``"""
LEVELS = {b"DEBUG": "debug", b"WARNING": "warning", b"ERROR": "error", b"CRITICAL": "critical"}
LineFormat = Callable[[bytes], bytes]
"""Makes a line of the log out of one that a process wrote."""


class JsonFormatter(logging.Formatter):
    """One object a line; ``extra={"fields": {...}}`` adds members."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            **make_head(record.levelname.lower(), record.name, record.created),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return write_line(line)


def make_head(level: str, logger: str, at: float | None = None) -> dict[str, Any]:
    """The members that every line begins with."""
    when = datetime.fromtimestamp(time.time() if at is None else at, UTC)
    return {"time": when.isoformat(), "level": level, "logger": logger}


def write_line(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False, default=str)


def make_formatter(kind: str) -> logging.Formatter:
    """``kind``: text or json."""
    return JsonFormatter() if kind == "json" else logging.Formatter(TEXT)


def open_root_log(kind: str, level: str, stream: TextIO) -> None:
    """Send what all libraries log to ``stream``."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(make_formatter(kind))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def pass_line(line: bytes) -> bytes:
    """A process's line as it is."""
    return line


def wrap_line(line: bytes) -> bytes:
    """A process's line as JSON; empty for a blank one."""
    if line.startswith(b'{"time"'):
        return line
    found = PREFIX.match(line)
    assert found is not None  # both of its parts are optional
    message = line[found.end() :].rstrip().decode("utf-8", "replace")
    if not message:
        return b""
    named = {name: found[name] for name in ("process", "source") if found[name]}
    said = {name: value.decode("utf-8", "replace") for name, value in named.items()}
    head = make_head(LEVELS.get(found["level"] or b"", "info"), CHILD)
    return write_line({**head, "message": message, **said}).encode() + b"\n"


class WrappedLines:
    """A text stream whose whole lines are written to another one as ``wrap_line`` has them.

    What libraries print is part of the log, too: vLLM configures its own handlers again and again.
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
    """Have vLLM's own log handlers in this process write as all others do."""
    if kind == "json":
        for handler in logging.getLogger("vllm").handlers:
            handler.setFormatter(JsonFormatter())
