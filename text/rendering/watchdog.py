"""Watchdog that interrupts a render in this process if it takes too long.

A template is Python code by the time it runs, and Python can raise an exception in another thread.
The watchdog raises one while the render still runs. A render that ends at that moment catches the
exception itself, so that it never reaches other code.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

RENDER_S = 1.0
"""Time limit of a render in this process. A usual one takes less than 0.001 s."""
AT_ONCE_S = 0.2
"""Time limit of a render on the event loop, which serves nobody else meanwhile."""
POLL_S = 0.1


Result = TypeVar("Result")


class RenderTooSlow(BaseException):
    """Raised inside a render. It is a BaseException so that no ``except Exception`` catches it."""


class _Watched:
    __slots__ = ("is_interrupted", "thread", "until")

    def __init__(self, limit_s: float) -> None:
        self.thread = threading.get_ident()
        self.until = time.monotonic() + limit_s
        self.is_interrupted = False


class RenderWatchdog:
    """One thread that watches all renders and sleeps while there are none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: set[_Watched] = set()
        self._busy = threading.Event()
        self._thread: threading.Thread | None = None

    def run(self, render: Callable[[], Result], limit_s: float) -> Result:
        """Run ``render``. Raises RenderTooSlow if it takes longer than ``limit_s``."""
        entry = _Watched(limit_s)
        self._watched.add(entry)
        if not self._busy.is_set():
            self._wake()
        try:
            return render()
        finally:
            self._watched.discard(entry)
            if entry.is_interrupted:
                self._take_interrupt()

    def _take_interrupt(self) -> None:
        """Wait for an interrupt that has not been raised yet, and catch it here."""
        with suppress(RenderTooSlow):
            with self._lock:
                pass
            time.sleep(0.01)

    def _wake(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._start()
            self._busy.set()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="render-watchdog", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self._busy.wait()
            time.sleep(POLL_S)
            with self._lock:
                self._interrupt_late()
                self._busy.clear()
            if self._watched:
                self._busy.set()

    def _interrupt_late(self) -> None:
        """Interrupt late renders. Its checks mirror ``run``, so that no interrupt is lost."""
        now = time.monotonic()
        for render in list(self._watched):
            if now > render.until and not render.is_interrupted:
                render.is_interrupted = True
                if render in self._watched:
                    _raise_in(render.thread)
                    self._watched.discard(render)


def _raise_in(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(RenderTooSlow)
    )
