"""Engines: token ids in, steps out. This folder knows no HTTP server and nothing of ``server``.

``base.py`` defines the interface of an engine and the capabilities that some engines have,
``wrapper.py`` is the base of engines around others, ``types.py`` has requests and steps,
``totals.py`` sums of steps, and ``events.py`` the events made of steps and their observers.
``vllm_backend`` runs vLLM in this process, ``remote`` drives one worker, and ``fleet`` discovers
workers, checks their health and routes requests to them. ``preflight`` finds the problems that
would stop a start.

``supervision`` lets requests survive the loss of their engine, in the same way for a local engine
(``supervisor.py``) and for a fleet: ``policy.py`` has the limits and the causes of a loss,
``recovery.py`` submits requests again, ``continuation.py`` joins the steps without a gap, and
``pool.py`` has the code that both share.

``speculation`` has four rooms. ``accounts`` has the formulas, and the target's scores of an answer.
``policy`` decides the depth of a request, and ``planner`` that of a step by its cost. ``drafts``
knows drafting methods, inspects whether a draft fits a target, copies drafts, and exchanges the
running one.

The callers are ``server.backends``, where a new engine goes, and ``server.generation``. An engine
for workers is a module of ``remote`` and a row in its ``ENGINES``.

Operators give vLLM these names on the command line of a worker (docs/workers.md):
``eaglegate.engine.Scheduler``, ``eaglegate.engine.PlanningScheduler``,
``eaglegate.engine.DepthWorker`` and ``eaglegate.engine.AllowSteering``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

FOR_WORKERS = {
    "Scheduler": ("scheduler", "server_scheduler"),
    "PlanningScheduler": ("scheduler", "planning_scheduler"),
    "DepthWorker": ("worker", "DepthWorker"),
    "AllowSteering": ("refused_fields", "AllowSteering"),
}
"""Names for a worker's command line: the module of ``vllm_backend`` and the attribute in it."""


def __getattr__(name: str) -> Any:
    if name not in FOR_WORKERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = FOR_WORKERS[name]
    return getattr(import_module(f"{__name__}.vllm_backend.{module}"), attribute)
