"""The engine's child processes: how they end, and what they log.

vLLM's engine core does not notice that its front end was killed and waits for requests for ever;
and on its way out Python searches all it has loaded for cycles, for longer than vLLM waits. So the
children exit with their parent, and at once.

vLLM's parent process reports "see root cause above"; the cause is in a child's output. Children
inherit the standard streams, so these point to a pipe while children start. A thread passes every
line on to standard error and keeps the last ones for error reports.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import multiprocessing
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

from engine.orphan import die_with_parent

GIVE_UP_POLL_S = 0.1
PREFIX = re.compile(r"^(\([^)]*pid=\d+[^)]*\)\s*)?([A-Z]+ \d\d-\d\d [\d:]+ \[[^\]]*\]\s*)?")
"""``(EngineCore pid=7) ERROR 11-20 10:00:00 [core.py:1] ``"""
EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)): (.+)")
FATAL = re.compile(r"fatal error|failed to start|hit an exception")
"""What vLLM writes above the traceback that ends a process; a refused request has none."""
SEQUEL = re.compile(
    r"root cause above|initialization failed|Engine core proc|EngineDeadError|WorkerProc|cancelled"
)
"""Messages that only report that something else has failed."""
IGNORED = ("Warning", "KeyboardInterrupt", "SystemExit")
PRIVATE = re.compile(
    r"prompt|token_ids|messages|Dumping|structured_output|logit_bias", re.IGNORECASE
)
"""Lines that may hold a part of a request."""
NOISE = re.compile(r"^\[ *\d+\.\d s\]|it/s\]|Warning\b|^W\d{4} |^\[W\d{4} ")
"""Progress and warnings of a start."""
LONGEST = 240
"""Characters shown of one line."""


def exit_with_parent() -> None:
    """For processes started by ``multiprocessing``; does nothing in others."""
    if multiprocessing.parent_process() is not None:
        atexit.register(gc.freeze)
        die_with_parent()


class ChildLog:
    """The last ``keep`` lines of children started inside ``capture``; ``echo`` shows them too."""

    def __init__(self, keep: int = 400, echo: bool = True) -> None:
        self._echo = echo
        self._lines: deque[str] = deque(maxlen=keep)
        self._reader: threading.Thread | None = None

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Children started inside write to this log, for as long as they live."""
        read, write = os.pipe()
        out, err = os.dup(1), os.dup(2)
        sys.stdout.flush()
        sys.stderr.flush()
        self._reader = threading.Thread(
            target=self._read, args=(read, os.dup(err)), name="engine-log", daemon=True
        )
        self._reader.start()
        os.dup2(write, 1)
        os.dup2(write, 2)
        os.close(write)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(out, 1)
            os.dup2(err, 2)
            os.close(out)
            os.close(err)

    def join(self, timeout_s: float) -> None:
        """Wait until the children have ended and all they wrote is here, or time is up."""
        if self._reader is not None:
            self._reader.join(timeout_s)

    def tail(self, lines: int = 40) -> str:
        return "\n".join(list(self._lines)[-lines:])

    def redacted_tail(self, lines: int = 20) -> tuple[str, ...]:
        """The end of the log, bounded, without lines that may hold a part of a request."""
        return redact_tail(list(self._lines), lines)

    def find_cause(self) -> str:
        """The first exception in the log that is a cause and not a sequel; else empty."""
        return find_cause(list(self._lines))

    def _read(self, read: int, forward: int) -> None:
        with os.fdopen(read, "rb") as source, os.fdopen(forward, "wb", buffering=0) as sink:
            for line in source:
                if self._echo:
                    sink.write(line)
                self._lines.append(line.decode("utf-8", "replace").rstrip("\n"))


def find_cause(lines: Sequence[str]) -> str:
    """``ValueError: there is no module named fc_norm`` out of a log full of tracebacks."""
    marks = (at for at, line in enumerate(lines) if FATAL.search(line))
    for line in lines[next(marks, 0) :]:
        found = EXCEPTION.match(PREFIX.sub("", line).strip())
        if found and not found[1].endswith(IGNORED) and not SEQUEL.search(line):
            return f"{found[1].rpartition('.')[2]}: {found[2]}"
    return ""


def redact_tail(lines: Sequence[str], most: int) -> tuple[str, ...]:
    stripped = (PREFIX.sub("", line).rstrip() for line in lines)
    fit = [line[:LONGEST] for line in stripped if line and not _is_redacted(line)]
    return tuple(fit[-most:])


def _is_redacted(line: str) -> bool:
    return PRIVATE.search(line) is not None or NOISE.search(line) is not None


def redact_cause(cause: str) -> str:
    """The exception, bounded; its type alone where the message may hold a part of a request."""
    return cause.partition(":")[0] if PRIVATE.search(cause) else cause[:LONGEST]


async def kill_loading(
    loading: asyncio.Task[Any], others: set[BaseProcess], shutdown_s: float
) -> None:
    """End a thread that loads an AsyncLLM: it ends when the engine process does."""
    while not loading.done():
        for child in set(multiprocessing.active_children()) - others:
            child.kill()
        await asyncio.wait({loading}, timeout=GIVE_UP_POLL_S)
    if not loading.exception():
        await asyncio.to_thread(loading.result().shutdown, shutdown_s)
