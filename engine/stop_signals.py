"""Stop signals: helper processes leave them to the gateway that started them.

Ctrl-C, ``systemctl stop`` and a container's init signal every process of a group or a container.
The gateway answers by draining, and its streams need the engine until they have ended. So the
engine and the other helpers block these signals. They end when the gateway asks them to (``END``,
or the end of their standard input), and when the gateway has exited (``engine/orphan.py``).
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
    """Make processes that this thread starts inside the context block the stop signals from
    birth."""
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def end_on_request() -> None:
    """Handle ``END`` like SIGTERM, with the SIGTERM handler installed at that time; vLLM sets its
    own later."""
    signal.signal(END, _end)


def _end(_: int, frame: FrameType | None) -> None:
    """End without collecting garbage, because the exit of the process frees the memory anyway.
    vLLM would unfreeze its heap and collect it three times."""
    gc.freeze()
    gc.unfreeze = _stay_frozen
    handler = signal.getsignal(signal.SIGTERM)
    if not callable(handler):
        os._exit(128 + signal.SIGTERM)
    handler(signal.SIGTERM, frame)


def _stay_frozen() -> None:
    """Leave all objects frozen."""
