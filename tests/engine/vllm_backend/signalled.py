"""Run by the child processes of ``test_stop_signals.py``, which import this and not vLLM."""

from __future__ import annotations

import gc
import signal
import sys
from typing import Any


def wait_for_line(alive: Any) -> None:
    """Handle signals as an engine does, with handlers that are not ours."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    alive.send("up")
    alive.recv()


def unfreeze_at_the_end(alive: Any) -> None:
    """Report the number of frozen objects of a process that unfreezes them to end, as vLLM's do."""

    def end(*_: Any) -> None:
        gc.unfreeze()
        alive.send(gc.get_freeze_count())
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    alive.send("up")
    alive.recv()
