"""Stop signals: helper processes leave them to the gateway that started them.

Ctrl-C, ``systemctl stop`` and a container's init signal every process of a group or a container.
The gateway answers by draining, and its streams need the engine until they have ended. So the
engine and the other helpers block these signals. They end when the gateway asks them to (``END``,
or the end of their standard input), and when it is gone (``engine/orphan.py``).
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
END = signal.SIGUSR2
"""Sent by the gateway in place of SIGTERM."""


def block_stop_signals() -> None:
    """Block the stop signals in a helper process. Its threads and children inherit the block, so
    call it before any thread starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)


@contextmanager
def children_block_stop_signals() -> Iterator[None]:
    """Processes started inside, by this thread, block the stop signals from their first moment."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_on_request() -> None:
    """Treat ``END`` as SIGTERM: by the handler of the time, which vLLM installs later."""
    signal.signal(END, _end)


def _end(_: int, frame: FrameType | None) -> None:
    """End without collecting garbage, which the end of the process frees anyway.

    vLLM unfreezes its heap to collect it three times. In a forked engine each time copies the
    memory that it shares with the fork server: the engine took over 5 s to end, and was killed.
    """
    gc.freeze()
    gc.unfreeze = _stay_frozen
    handler = signal.getsignal(signal.SIGTERM)
    if not callable(handler):
        os._exit(128 + signal.SIGTERM)
    handler(signal.SIGTERM, frame)


def _stay_frozen() -> None:
    """Leave all objects frozen."""
