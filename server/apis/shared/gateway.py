"""Gateway: the state that all routes share, one per process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from eaglegate.canary.canary import CanaryRunner
from eaglegate.engine.base import AppliedDepth, SupportsPlanning
from eaglegate.engine.events import NullObserver, Observer
from eaglegate.engine.fleet.types import WorkerStatus
from eaglegate.engine.speculation.audit.auditor import Auditor
from eaglegate.engine.speculation.doctor.doctor import Doctor
from eaglegate.engine.speculation.swap import DraftManager
from eaglegate.engine.supervision.draft_blame import DraftHold
from eaglegate.engine.supervision.policy import EngineLoss
from eaglegate.server.access.budget import RequestBudget
from eaglegate.server.access.caller import current_caller
from eaglegate.server.access.keys import KeyRing
from eaglegate.server.access.memory import MemoryMonitor
from eaglegate.server.apis.responses.encryption import ReasoningCipher
from eaglegate.server.errors import Unavailable
from eaglegate.server.generation.pipeline import Pipeline
from eaglegate.server.http.cross_origin import CrossOriginPolicy
from eaglegate.server.http.response import StreamTiming
from eaglegate.server.settings import Settings
from eaglegate.server.store.sql import SqlResponseStore


@dataclass(frozen=True, slots=True)
class Controls:
    """Actions of an operator on a running gateway; the composition root provides them."""

    reload: Callable[[], Awaitable[dict[str, Any]]]
    """Read keys and limits again; returns what is in force. Raises ConfigError."""
    bound_depth: Callable[[int], Awaitable[AppliedDepth]]
    """Bound the depth of every request, running ones too."""
    drafts: DraftManager | None = None
    """Exchanges the engine's draft; None where no engine of this process has one."""
    canaries: CanaryRunner | None = None
    """Tries drafts on live traffic, likewise."""
    planner: SupportsPlanning | None = None
    """The engine, where it can plan the depth of its steps."""
    release_drafts: Callable[[], tuple[DraftHold, ...]] = tuple
    """Use the depths again that are held off because they killed engines; returns them."""
    auditor: Auditor | None = None
    """Audits answers; None without ``--audit-share``."""
    doctor: Doctor | None = None
    """Treats acceptance that fell; None without ``--doctor``."""


@dataclass(slots=True)
class Gateway:
    """Created at startup; ``path`` is None until the engine is ready."""

    models: tuple[str, ...]
    created: int
    settings: Settings = field(default_factory=Settings)
    """Settings of the start. A reload changes the timeouts of requests and bodies."""
    timing: StreamTiming = field(default_factory=StreamTiming)
    keys: KeyRing = field(default_factory=KeyRing)
    admin_port: int | None = None
    """Port of the operator's paths, if not that of the API."""
    cross_origin: CrossOriginPolicy = field(default_factory=CrossOriginPolicy)
    budget: RequestBudget = field(default_factory=RequestBudget)
    observer: Observer = field(default_factory=NullObserver)
    memory: MemoryMonitor = field(default_factory=lambda: MemoryMonitor([]))
    store: SqlResponseStore | None = None
    """None stores no responses."""
    cipher: ReasoningCipher = field(default_factory=ReasoningCipher.ephemeral)
    """Encrypts the reasoning that clients store."""
    controls: Controls | None = None
    workers: Callable[[], Iterable[WorkerStatus]] = tuple
    """The workers of a fleet; empty for a local engine."""
    losses: Callable[[], Iterable[EngineLoss]] = tuple
    """The last losses of engines or workers."""
    in_flight: int = 0
    """Number of in-flight requests that may take memory."""
    pipeline: Pipeline | None = None
    state: str = "starting"
    """starting, ready or stopping."""

    @property
    def unknown_fields(self) -> str:
        """Policy for unknown fields: ignore or refuse."""
        return self.settings.unknown_fields

    def owner(self) -> str:
        """The owner whose responses the current request may see: its key."""
        key = current_caller.get().key
        return "" if key is None else key.owner

    def require(self) -> Pipeline:
        """The pipeline. Raises Unavailable with Retry-After if the engine is not ready."""
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
        self.state = "ready"

    def stop(self) -> None:
        self.state = "stopping"
