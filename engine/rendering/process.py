"""Where prompts are written: at once if that is sure to be quick, else where it can be ended."""

from __future__ import annotations

import selectors
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import orjson

from engine.rendering import child
from engine.rendering.limits import RenderLimits
from engine.rendering.template import ChatTemplate
from engine.rendering.writing import TemplateInput

SMALL_BYTES = 32 << 10
"""A conversation of so much is written in this process, by a template of the operator's."""
LARGE_BYTES = 1 << 20
"""A process that wrote so much is not kept: it would keep the memory."""
PROCESSES = 2
PATIENCE_S = 30.0
POLL_S = 0.05
ROOT = Path(__file__).parents[2]
TOO_LONG = f"the template took more than {child.CPU_S:g} s"


class TemplateRunner:
    """Thread-safe; at most ``PROCESSES`` prompts are written at a time outside of this process."""

    def __init__(self) -> None:
        self._turns = threading.BoundedSemaphore(PROCESSES)
        self._idle: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def write(
        self, writing: TemplateInput, template: ChatTemplate | None, limits: RenderLimits
    ) -> str:
        """``template`` is the operator's, None for a request's own.

        Raises ValueError where the template refuses, RenderingEnded when nobody waits any more.
        """
        job = writing.packed
        if template is not None and len(job) <= SMALL_BYTES:
            return writing.write(template)
        while not self._turns.acquire(timeout=POLL_S):
            limits.check(0)
        try:
            return self._outside(job, limits)
        finally:
            self._turns.release()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            _kill(process)

    def _outside(self, job: bytes, limits: RenderLimits) -> str:
        process = self._process()
        kept = False
        try:
            kind, text = _ask(process, job, limits)
            kept = len(job) + len(text) < LARGE_BYTES
        finally:
            if not kept:
                _kill(process)
        if kept:
            with self._lock:
                self._idle.append(process)
        if kind == "refused":
            raise ValueError(text)
        return text

    def _process(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return subprocess.Popen(
            (sys.executable, "-m", child.__name__),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )


def _ask(process: subprocess.Popen[bytes], job: bytes, limits: RenderLimits) -> tuple[str, str]:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        child.write_message(process.stdin, job)  # type: ignore[arg-type]
    until = time.monotonic() + PATIENCE_S
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while not ready.select(POLL_S):
            limits.check(0)
            if time.monotonic() > until:
                raise ValueError(TOO_LONG)
    told = child.read_message(process.stdout)  # type: ignore[arg-type]
    if not told:
        raise ValueError(TOO_LONG)
    kind, text = orjson.loads(told)
    return kind, text


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            if pipe is not None:
                pipe.close()
