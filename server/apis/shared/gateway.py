"""The gateway's state, shared by all routes of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from eaglegate.engine.base import SupportsPlanning
from eaglegate.engine.events import Observer
from eaglegate.engine.fleet.types import WorkerStatus
from eaglegate.engine.speculation.drafts.swap import DraftManager
from eaglegate.engine.supervision.draft_blame import DraftHold
from eaglegate.engine.supervision.policy import AppliedDepth, EngineLoss
from eaglegate.server.access.budget import RequestBudget
from eaglegate.server.access.cross_origin import CrossOriginPolicy
from eaglegate.server.access.keys import KeyRing
from eaglegate.server.access.memory import MemoryMonitor
from eaglegate.server.apis.shared.encryption import ReasoningCipher
from eaglegate.server.errors import Unavailable
from eaglegate.server.generation.pipeline import Pipeline
from eaglegate.server.http.response import StreamTiming
from eaglegate.server.settings import Settings
from eaglegate.server.store.sql import SqlResponseStore

SENT_POLL_S = 0.05
"""Seconds between two checks for answers that are still being sent."""


@dataclass(frozen=True, slots=True)
class Controls:
    """Operator actions on a running gateway, provided by the composition root."""

    reload: Callable[[], Awaitable[dict[str, Any]]]
    """Reload keys and limits, and return the values in force. Raises ConfigError."""
    bound_depth: Callable[[int], Awaitable[AppliedDepth]]
    """Set the maximum depth of every request, including running ones."""
    drafts: DraftManager | None = None
    """Swaps the engine's draft; None if no engine in this process has one."""
    planner: SupportsPlanning | None = None
    """The engine, if it can plan the depth of its steps."""
    release_drafts: Callable[[], tuple[DraftHold, ...]] = tuple
    """Release the depths that were blocked because their drafts crashed engines, and return
    them.
    """


@dataclass(slots=True)
class Gateway:
    """The gateway's state, created at startup. ``pipeline`` is None until the engine is ready."""

    models: tuple[str, ...]
    created: int
    settings: Settings = field(default_factory=Settings)
    """Settings at startup. A reload can change the request and body timeouts."""
    timing: StreamTiming = field(default_factory=StreamTiming)
    keys: KeyRing = field(default_factory=KeyRing)
    admin_port: int | None = None
    """Port of the operator paths, if it differs from the API's port."""
    cross_origin: CrossOriginPolicy = field(default_factory=CrossOriginPolicy)
    budget: RequestBudget = field(default_factory=RequestBudget)
    observer: Observer = field(default_factory=Observer)
    memory: MemoryMonitor = field(default_factory=lambda: MemoryMonitor([]))
    store: SqlResponseStore | None = None
    """Store of responses; None if responses are not stored."""
    cipher: ReasoningCipher = field(default_factory=ReasoningCipher.ephemeral)
    """Encrypts the reasoning that clients store."""
    controls: Controls | None = None
    features: dict[str, Any] = field(default_factory=dict)
    """Features that are on, by name; their routes read them."""
    workers: Callable[[], Iterable[WorkerStatus]] = tuple
    """The workers of a fleet; empty for a local engine."""
    losses: Callable[[], Iterable[EngineLoss]] = tuple
    """Recent losses of engines or workers."""
    in_flight: int = 0
    """Number of in-flight requests that may use memory."""
    pipeline: Pipeline | None = None
    state: str = "starting"
    """State of the gateway: starting, ready or stopping."""

    def require(self) -> Pipeline:
        """Return the pipeline. Raises Unavailable with Retry-After if the engine is not ready."""
        if self.pipeline is None or self.state != "ready":
            raise Unavailable(
                f"The engine is {self.state}; see /ready.",
                code=f"engine_{self.state}",
                retry_after_s=5,
            )
        return self.pipeline

    def open(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.budget.longest_prompt = pipeline.info.max_model_len
        self.budget.check_memory = self.memory.check_room
        self.state = "ready"

    def stop(self) -> None:
        self.state = "stopping"

    async def wait_until_sent(self) -> None:
        """Wait until no answer is being sent to a client."""
        while self.in_flight:  # noqa: ASYNC110
            await asyncio.sleep(SENT_POLL_S)
