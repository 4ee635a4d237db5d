"""Engines: token ids in, steps out. Knows no HTTP server and nothing of ``server``.

``base.py`` is the interface of an engine, ``types.py`` what goes through it, ``events.py`` what is
made of it and who is told. ``vllm_backend`` runs vLLM in this process, ``remote`` drives one
worker, ``fleet`` many: who they are, how they are, and which of them runs a request.
``preflight`` says what would stop a start.

``supervision`` is how requests survive the loss of their engine, one way for a local engine
(``supervisor.py``) and for a fleet: ``policy.py`` has the limits and what counts as a loss,
``recovery.py`` submits requests again, ``continuation.py`` joins the steps without a gap,
``pool.py`` is what both share.

``speculation`` has the formulas in ``accounting.py``, the depth of a request in ``policy.py``, the
depth of a step by its cost in ``planner.py``; ``inspection`` says whether a draft fits a target
before anything is loaded, ``drafts.py`` copies drafts and ``swap.py`` exchanges the running one.
``audit`` judges answers that the target scored again without the draft.

Called by ``server.backends``, where a new engine goes, and ``server.generation``. One for workers
is a module of ``remote`` and a row in its ``ENGINES``.

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
    "AllowSteering": ("steering", "AllowSteering"),
}
"""Names for a worker's command line: the module of ``vllm_backend`` and the attribute in it."""


def __getattr__(name: str) -> Any:
    if name not in FOR_WORKERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = FOR_WORKERS[name]
    return getattr(import_module(f"{__name__}.vllm_backend.{module}"), attribute)
