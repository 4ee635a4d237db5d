"""Backends: where a gateway's tokens come from; the command line chooses one.

``in_process.py`` runs vLLM in this process and its children; ``remote.py`` drives remote workers.
A backend gives ``server/cli/serve.py`` the engine, the renderer and the vocabulary. A new kind of
engine is one more module here, with a ``RenderingBackend`` that makes it, and a row in ``BACKENDS``
of ``server/cli/command_line.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from eaglegate.engine.base import Renderer, ResilientEngine
from eaglegate.engine.speculation.swap import DraftManager
from eaglegate.engine.supervision.policy import RecoveryObserver, SupervisionTimeouts
from eaglegate.engine.types import EngineInfo
from eaglegate.server.generation.trials import ConstraintProbe
from eaglegate.text.parsing.parser import ParserFallback
from eaglegate.text.parsing.vocabulary import Vocabulary

if TYPE_CHECKING:
    from eaglegate.engine.fleet.fleet import Fleet


class Backend(Protocol):
    """Created before any engine; its constructor runs every check that needs none."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names clients may use for the model; the first one is shown."""
        ...

    @property
    def adapters(self) -> Mapping[str, str]:
        """LoRA adapters that clients may name as ``model``, and their folders."""
        ...

    @property
    def renderer(self) -> Renderer: ...

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def reasoning_parser(self) -> str | None: ...

    @property
    def fallback(self) -> ParserFallback | None:
        """Reads answers whose format has no parser here; None where all have one."""
        ...

    @property
    def spec_metrics(self) -> str:
        """The speculation metrics in every answer: none, summary or detailed."""
        ...

    @property
    def probe(self) -> ConstraintProbe | None:
        """Tries constraints before they reach the engine; None where the engine does so itself."""
        ...

    @property
    def drafts(self) -> DraftManager | None:
        """Exchanges the draft of the engine; None where there is none in this process."""
        ...

    @property
    def fleet(self) -> Fleet | None:
        """The engine, where it is a fleet of workers."""
        ...

    def create_engine(
        self, timeouts: SupervisionTimeouts, observer: RecoveryObserver
    ) -> ResilientEngine:
        """Create the engine to serve with, not started yet. Call once."""
        ...

    def describe(self, info: EngineInfo) -> EngineInfo:
        """The engine's facts, completed by what the backend knows."""
        ...

    async def aclose(self) -> None:
        """Stop what the backend itself has started."""
        ...
