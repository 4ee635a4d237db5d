"""Exit with the parent: an engine process must not outlive the gateway that started it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from contextlib import suppress

STATUS = 70
WATCHER = "die-with-parent"
SET_DEATH_SIGNAL = 1
"""``PR_SET_PDEATHSIG`` of Linux."""


def die_with_parent() -> None:
    """Exit when the parent has exited. Does nothing outside a process of ``multiprocessing``.

    Several modules of an engine process call this; one watcher is enough.
    """
    parent = multiprocessing.parent_process()
    if parent is None or any(thread.name == WATCHER for thread in threading.enumerate()):
        return

    def wait() -> None:
        parent.join()
        os._exit(STATUS)

    threading.Thread(target=wait, name=WATCHER, daemon=True).start()


def kill_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends. Linux only."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
