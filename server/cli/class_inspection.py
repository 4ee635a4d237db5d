"""Inspection of the model's classes by vLLM, while the gateway still imports vLLM.

vLLM inspects the classes of a target and its draft in two processes, one after the other. Each
imports vLLM again: 20 seconds on two CPU cores, 40 with a cold disk. The results stay in vLLM's
cache. At the first start, one process that starts with the gateway fills the cache, by making
vLLM's configuration as the gateway will. If it fails, vLLM inspects the classes and reports the
errors as before.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from eaglegate.engine.orphan import STATUS

LIMIT_S = 120.0
"""Seconds to wait once the gateway needs the results. A cold disk takes half as long."""


def start_inspection(argv: Sequence[str]) -> subprocess.Popen[bytes] | None:
    """Start a process that fills vLLM's cache for a command line of ``serve``.

    Returns None if the cache has entries, or if no process can be started.
    """
    if any(find_cache().glob("*.json")):
        return None
    with suppress(OSError):
        return subprocess.Popen(
            (sys.executable, "-P", "-m", __name__, *argv),
            stdin=subprocess.PIPE,  # its end tells the process that the gateway has exited
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    return None


def await_inspection(process: subprocess.Popen[bytes]) -> None:
    """Wait until the cache is filled, or cannot be."""
    with process:
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()


def find_cache() -> Path:
    """Return the folder of vLLM's results, as ``vllm.envs`` finds it."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (
        Path(os.environ.get("VLLM_CACHE_ROOT") or Path(cache, "vllm")).expanduser() / "modelinfos"
    )


def _exit_with_parent() -> None:
    sys.stdin.read()
    os._exit(STATUS)


def fill_cache(argv: list[str]) -> None:
    """Make vLLM's configuration for a command line of ``serve``."""
    from eaglegate.server.backends.line import read_engine_arguments
    from eaglegate.server.cli.command_line import read_command_line

    line = read_command_line("serve", argv, lambda _: None)

    from eaglegate.engine.vllm_backend.arguments import inspect_in_process, make_engine_config

    inspect_in_process()
    settings = line.settings
    make_engine_config(read_engine_arguments(line.namespace, settings.depth, settings.lookup))


if __name__ == "__main__":
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    fill_cache(sys.argv[1:])
