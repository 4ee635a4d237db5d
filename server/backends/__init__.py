"""Backends, which provide a gateway's tokens. The command line (``line.py``) chooses one.

``in_process.py`` runs vLLM in this process and its children; ``remote.py`` uses remote workers. A
backend gives ``server/cli/serve.py`` the engine, the renderer and the vocabulary. A new kind of
engine is one more module here, with a ``RenderingBackend`` that creates it, and a row in
``BACKENDS`` of ``server/cli/command_line.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

# For annotations only: reading a command line imports this package.
if TYPE_CHECKING:
    from collections.abc import Mapping

    from eaglegate.engine.fleet.fleet import Fleet
    from eaglegate.engine.speculation.drafts.swap import DraftManager
    from eaglegate.engine.supervision.policy import RecoveryObserver, SupervisionTimeouts
    from eaglegate.engine.supervision.pool import EnginePool
    from eaglegate.engine.types import EngineInfo
    from eaglegate.server.generation.trials import ConstraintProbe
    from eaglegate.text.parsing.vocabulary import Vocabulary
    from eaglegate.text.rendering.base import Renderer


class Backend(Protocol):
    """A backend, created before any engine. Its constructor runs every check that needs no
    engine.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """Names that clients may use for the model; the first one is displayed."""
        ...

    @property
    def adapters(self) -> Mapping[str, str]:
        """LoRA adapters that clients may name as ``model``, with their folders."""
        ...

    @property
    def renderer(self) -> Renderer: ...

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def reasoning_parser(self) -> str | None: ...

    @property
    def spec_metrics(self) -> str:
        """Speculation metrics in every answer: none, summary or detailed."""
        ...

    @property
    def probe(self) -> ConstraintProbe | None:
        """Compiles constraints before they reach the engine; None if the engine does so itself."""
        ...

    @property
    def drafts(self) -> DraftManager | None:
        """Swaps the engine's draft; None if there is none in this process."""
        ...

    @property
    def fleet(self) -> Fleet | None:
        """The fleet of workers, if the engine is one."""
        ...

    @property
    def start_s(self) -> Mapping[str, float]:
        """Seconds that the constructor took, by part of the start."""
        ...

    def create_engine(
        self, timeouts: SupervisionTimeouts, observer: RecoveryObserver
    ) -> EnginePool:
        """Create the engine without starting it. Call once."""
        ...

    def describe(self, info: EngineInfo) -> EngineInfo:
        """Return the engine's facts, completed with those that the backend knows."""
        ...

    async def aclose(self) -> None:
        """Stop whatever the backend itself has started."""
        ...
