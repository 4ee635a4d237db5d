"""The engine's child processes: their start and their end.

An engine process is spawned. It is never forked from the gateway, as vLLM does on GPUs, because the
child would hold the gateway's listening socket, its connections and the descriptor through which
asyncio receives signals.

Engine processes block the stop signals (``engine/stop_signals.py``), so ``terminate`` sends
another.

vLLM's engine core does not notice that its front end was killed, and waits for requests forever. At
exit, Python searches all loaded objects for cycles, for longer than vLLM waits. Therefore the
children exit with their parent, and without that search.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from multiprocessing import context, popen_spawn_posix, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

from eaglegate.engine.orphan import die_with_parent
from eaglegate.engine.stop_signals import (
    END,
    block_stop_signals,
    children_block_stop_signals,
    end_on_request,
)

GIVE_UP_POLL_S = 0.1


def exit_with_parent() -> None:
    """End a process of ``multiprocessing`` together with its parent. Do nothing in other
    processes."""
    if multiprocessing.parent_process() is not None:
        atexit.register(gc.freeze)
        die_with_parent()


async def kill_loading(
    task: asyncio.Task[Any], other_processes: set[BaseProcess], shutdown_s: float
) -> None:
    """End a thread that loads an AsyncLLM by killing the engine process that it waits for."""
    while not task.done():
        for child in set(multiprocessing.active_children()) - other_processes:
            child.kill()
        await asyncio.wait({task}, timeout=GIVE_UP_POLL_S)
    if not task.exception():
        await asyncio.to_thread(task.result().shutdown, shutdown_s)


def create_context() -> context.SpawnContext:
    """Return the context with which vLLM creates its engine process."""
    spawn_context: Any = context.SpawnContext()
    spawn_context.Process = EngineProcess
    return spawn_context  # type: ignore[no-any-return]


@contextmanager
def separate_engines() -> Iterator[None]:
    """Make vLLM start its engine process as an ``EngineProcess`` on every platform."""
    from vllm.v1.engine import coordinator, utils

    originals = [(module, module.get_mp_context) for module in (utils, coordinator)]
    for module, original in originals:
        module.get_mp_context = partial(_replace_context, original)
    try:
        yield
    finally:
        for module, original in originals:
            module.get_mp_context = original


def _replace_context(original: Callable[[], Any]) -> Any:
    original()  # sets variables that the engine's own children need
    return create_context()


class EngineProcess(context.SpawnProcess):
    """Engine process that blocks the stop signals, and ends when the gateway asks it to or has
    exited."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        resource_tracker.ensure_running()  # its start unblocks signals
        with children_block_stop_signals():
            return popen_spawn_posix.Popen(process_obj)

    def terminate(self) -> None:
        self._popen._send_signal(END)  # type: ignore[attr-defined]

    def run(self) -> None:
        block_stop_signals()
        end_on_request()
        exit_with_parent()
        super().run()


@contextmanager
def replace_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Replace variables for processes that are started inside the context."""
    environment = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
