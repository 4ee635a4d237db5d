"""The order of requests that wait for vLLM's scheduler."""

from __future__ import annotations

from collections.abc import Callable

from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request


def sort_waiting(scheduler: Scheduler, rank: Callable[[Request], int]) -> None:
    """Put waiting requests of a lower rank first. A priority queue keeps its own order."""
    waiting = scheduler.waiting
    if len(waiting) < 2 or not isinstance(waiting, FCFSRequestQueue):
        return
    requests = sorted(waiting, key=rank)
    waiting.clear()
    waiting.extend(requests)
