"""What the routes share: made in the composition root, one per process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from engine.base import AppliedDepth
from engine.fleet.status import WorkerStatus
from engine.observer import NullObserver, Observer
from engine.supervision.losses import EngineLoss
from server.access.budget import Budget
from server.access.caller import caller
from server.access.keys import KeyRing
from server.access.memory import MemoryWatch
from server.apis.responses.background import BackgroundRuns
from server.apis.responses.encryption import ReasoningCipher
from server.errors import Unavailable
from server.generation.pipeline import Pipeline
from server.http.cross_origin import CrossOrigin
from server.http.response import Timing
from server.store.base import ResponseStore


@dataclass(frozen=True, slots=True)
class Controls:
    """What an operator may do to a running gateway; the composition root knows how."""

    reload: Callable[[], Awaitable[dict[str, Any]]]
    """Read keys and limits again; returns what is in force. Raises ConfigError."""
    bound_depth: Callable[[int], Awaitable[AppliedDepth]]
    """Bound the depth of every request, running ones too."""


@dataclass(slots=True)
class Gateway:
    """``path`` appears when the engine is ready and goes when it is not."""

    models: tuple[str, ...]
    created: int
    max_body_bytes: int = 8 << 20
    timing: Timing = field(default_factory=Timing)
    keys: KeyRing = field(default_factory=KeyRing)
    admin_port: int | None = None
    """Where operator paths are served, if not on the port of the API."""
    cross_origin: CrossOrigin = field(default_factory=CrossOrigin)
    root_path: str = ""
    """The prefix of the path that a proxy puts before ours, whether it takes it off or not."""
    tokenizer_info: bool = False
    """Whether ``/tokenizer_info`` shows the tokenizer's configuration and the chat template."""
    request_timeout_s: float = 0.0
    """The longest a request may take; 0 for as long as it needs."""
    body_timeout_s: float = 30.0
    budget: Budget = field(default_factory=Budget)
    session_header: str = "x-session-id"
    """Requests with the same value here had better meet the same worker."""
    unknown_fields: str = "ignore"
    """ignore or refuse: what becomes of fields nobody knows."""
    observer: Observer = field(default_factory=NullObserver)
    memory: MemoryWatch = field(default_factory=lambda: MemoryWatch([]))
    store: ResponseStore | None = None
    """None stores no responses."""
    cipher: ReasoningCipher = field(default_factory=ReasoningCipher.ephemeral)
    """For reasoning that clients keep."""
    runs: BackgroundRuns = field(default_factory=BackgroundRuns)
    controls: Controls | None = None
    workers: Callable[[], Iterable[WorkerStatus]] = tuple
    """Those of a fleet, if the engine is one."""
    losses: Callable[[], Iterable[EngineLoss]] = tuple
    """How the last engines or workers were lost."""
    under_way: int = 0
    """Requests that may take memory and are not over."""
    path: Pipeline | None = None
    state: str = "starting"
    """starting, ready or stopping."""

    def owner(self) -> str:
        """Whose responses the request at hand may see: those made with the same key."""
        key = caller.get().key
        return "" if key is None else key.owner

    def require(self) -> Pipeline:
        """The way through, or a refusal that says when to come back."""
        if self.path is None or self.state != "ready":
            raise Unavailable(
                f"The engine is {self.state}; see /ready.",
                code=f"engine_{self.state}",
                retry_after_s=5,
            )
        return self.path

    def open(self, path: Pipeline) -> None:
        self.path = path
        self.state = "ready"

    def stop(self) -> None:
        self.state = "stopping"
