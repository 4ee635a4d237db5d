"""Exit with the parent: an engine process must not outlive the gateway that started it."""

from __future__ import annotations

import multiprocessing
import os
import threading

STATUS = 70
WATCHER = "die-with-parent"


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
