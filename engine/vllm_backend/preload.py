"""Imports of an engine process on a CPU, so that a forked engine has nothing left to import.

Only the fork server of ``child_process.EnginePreload`` imports this module. A module that cannot be
imported fails again in the engine, whose log has the reason.
"""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from importlib import import_module

from eaglegate.engine.orphan import kill_with_parent
from eaglegate.engine.stop_signals import block_stop_signals

MODULES = (
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "eaglegate.engine.vllm_backend.scheduler",
    "eaglegate.engine.vllm_backend.worker",
)


def import_engine() -> None:
    gc.disable()  # imported modules stay
    with suppress(Exception):
        for name in MODULES:
            import_module(name)
    gc.freeze()  # a collection in the engine would copy all shared pages
    gc.enable()


def discard_output() -> None:
    """Discard the fork server's output. An engine gets its gateway's streams when it is forked."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)


block_stop_signals()
kill_with_parent()
discard_output()
import_engine()
