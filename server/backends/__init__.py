"""Backends: where a gateway's tokens come from. ``open_backend`` chooses one by the command line.

``in_process.py`` runs vLLM in this process and its children; ``remote.py`` drives remote workers.
A backend gives ``server/cli/serve.py`` the engine, the renderer and the vocabulary. A new kind of
engine is one more module here with a class that fits ``Backend``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from engine.base import ResilientEngine
from engine.fleet.status import WorkerStatus
from engine.supervision.policy import RecoveryObserver, SupervisionTimeouts
from engine.types import EngineInfo
from server.cli.command_line import CommandLine
from server.generation.parser_factory import Vocabulary
from server.generation.prompt import Renderer
from server.generation.trials import ConstraintProbe


class Backend(Protocol):
    """Made before any engine; making it does all that can refuse to start without one."""

    @property
    def names(self) -> tuple[str, ...]:
        """What clients may call the model; the first name is the one shown."""
        ...

    @property
    def adapters(self) -> Mapping[str, str]:
        """LoRA adapters clients may name as ``model``, and their folders."""
        ...

    @property
    def renderer(self) -> Renderer: ...

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def reasoning_parser(self) -> str | None: ...

    @property
    def spec_metrics(self) -> str:
        """How much of its speculation every answer carries: none, summary or detailed."""
        ...

    @property
    def probe(self) -> ConstraintProbe | None:
        """What tries constraints out; None where the engine does that itself."""
        ...

    def lasting(self, patience: SupervisionTimeouts, watcher: RecoveryObserver) -> ResilientEngine:
        """The engine to serve with, not started yet. Call once."""
        ...

    def workers(self) -> Iterable[WorkerStatus]:
        """Those of a fleet; none where there is no fleet."""
        ...

    def described(self, info: EngineInfo) -> EngineInfo:
        """The engine's facts, with what is known besides."""
        ...

    async def aclose(self) -> None:
        """End what the backend itself has started."""
        ...


def open_backend(line: CommandLine, progress: Callable[[str], None]) -> Backend:
    """Raises ConfigError or EngineStartError."""
    if line.remote:
        from server.backends.remote import RemoteBackend

        return RemoteBackend(line, progress)
    from server.backends.in_process import InProcessBackend

    return InProcessBackend(line, progress)
