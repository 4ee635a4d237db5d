"""The log of the engine's child processes: the cause of a failure in it, and a tail to show.

vLLM's parent process reports "see root cause above", but the cause is in a child's output. Children
inherit the standard streams, so these point to a pipe while children start. A thread passes every
line on to standard error and keeps the last lines for error reports.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from eaglegate.engine.logs import LineFormat, pass_line

PREFIX = re.compile(r"^(\([^)]*pid=\d+[^)]*\)\s*)?([A-Z]+ \d\d-\d\d [\d:]+ \[[^\]]*\]\s*)?")
"""Start of a vLLM line: ``(EngineCore pid=7) ERROR 11-20 10:00:00 [core.py:1] ``"""
EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)): (.+)")
FATAL_LINE = re.compile(r"fatal error|failed to start|hit an exception")
"""Lines that vLLM writes before the traceback that ends a process, but not for a refused
request."""
SEQUEL_LINE = re.compile(
    r"root cause above|initialization failed|Engine core proc|EngineDeadError|WorkerProc|cancelled"
)
"""Messages that only report another failure."""
IGNORED_EXCEPTIONS = ("Warning", "KeyboardInterrupt", "SystemExit")
PRIVATE_LINE = re.compile(
    r"prompt|token_ids|messages|Dumping|structured_output|logit_bias", re.IGNORECASE
)
"""Lines that may hold part of a request."""
NOISE_LINE = re.compile(r"^\[ *\d+\.\d s\]|it/s\]|Warning\b|^W\d{4} |^\[W\d{4} ")
"""Progress lines and warnings during a start."""
MAX_LINE_CHARS = 240
"""Most characters shown of one line."""


class ChildLog:
    """The last ``max_lines`` lines of children started inside ``capture``. ``echo`` writes them,
    too."""

    def __init__(self, max_lines: int = 400, echo: LineFormat | None = pass_line) -> None:
        self._echo = echo
        self._lines: deque[str] = deque(maxlen=max_lines)
        self._reader: threading.Thread | None = None

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Redirect the output of children started inside the context to this log, for their whole
        life."""
        read_fd, write_fd = os.pipe()
        stdout_fd, stderr_fd = os.dup(1), os.dup(2)
        sys.stdout.flush()
        sys.stderr.flush()
        self._reader = threading.Thread(
            target=self._read, args=(read_fd, os.dup(stderr_fd)), name="engine-log", daemon=True
        )
        self._reader.start()
        os.dup2(write_fd, 1)
        os.dup2(write_fd, 2)
        os.close(write_fd)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(stdout_fd, 1)
            os.dup2(stderr_fd, 2)
            os.close(stdout_fd)
            os.close(stderr_fd)

    def join(self, timeout_s: float) -> None:
        """Wait until the children have ended and their output was read, up to the timeout."""
        if self._reader is not None:
            self._reader.join(timeout_s)

    @property
    def lines(self) -> list[str]:
        return list(self._lines)

    def _read(self, read_fd: int, echo_fd: int) -> None:
        with os.fdopen(read_fd, "rb") as source, os.fdopen(echo_fd, "wb", buffering=0) as sink:
            for line in source:
                if self._echo is not None:
                    with suppress(OSError):  # children must never wait for a closed log
                        sink.write(self._echo(line))
                self._lines.append(line.decode("utf-8", "replace").rstrip("\n"))


def find_cause(lines: Sequence[str]) -> str:
    """Return the cause in a log full of tracebacks, such as ``ValueError: there is no module
    fc_norm``."""
    index = find_cause_line(lines)
    return "" if index is None else read_cause(lines[index])


def find_cause_line(lines: Sequence[str]) -> int | None:
    """Return the index of the first exception that is a cause, not a consequence."""
    start = next((index for index, line in enumerate(lines) if FATAL_LINE.search(line)), 0)
    for index in range(start, len(lines)):
        if read_cause(lines[index]) and not SEQUEL_LINE.search(lines[index]):
            return index
    return None


def read_cause(line: str) -> str:
    """Return the exception in a line without its module, such as ``ValueError: no fc_norm``."""
    match = EXCEPTION.match(PREFIX.sub("", line).strip())
    if match is None or match[1].endswith(IGNORED_EXCEPTIONS):
        return ""
    return f"{match[1].rpartition('.')[2]}: {match[2]}"


def redact_tail(lines: Sequence[str], limit: int) -> tuple[str, ...]:
    """Return the end of a log, bounded, without lines that may hold part of a request."""
    messages = (PREFIX.sub("", line).rstrip() for line in lines)
    tail = [
        line[:MAX_LINE_CHARS]
        for line in messages
        if line and not (PRIVATE_LINE.search(line) or NOISE_LINE.search(line))
    ]
    return tuple(tail[-limit:])


def redact_cause(cause: str) -> str:
    """Return the exception, bounded; only its type if the message may hold part of a request."""
    return cause.partition(":")[0] if PRIVATE_LINE.search(cause) else cause[:MAX_LINE_CHARS]
