"""How the engine's processes end: with their front end, and at once.

vLLM's engine core does not notice that its front end was killed and waits for requests for ever;
and on its way out Python searches all it has loaded for cycles, for longer than vLLM waits.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing

from engine.orphan import die_with_parent


def exit_with_parent() -> None:
    """For processes started by ``multiprocessing``; does nothing in others."""
    if multiprocessing.parent_process() is not None:
        atexit.register(gc.freeze)
        die_with_parent()
