"""The components that a request passes through."""

from __future__ import annotations

from dataclasses import dataclass, field

from eaglegate.engine.base import Engine
from eaglegate.engine.speculation.policy.policy import SpeculationPolicy
from eaglegate.engine.types import EngineInfo
from eaglegate.server.access.admission import Admission
from eaglegate.server.access.isolation import CacheIsolation
from eaglegate.server.access.prompt_turns import PromptTurns
from eaglegate.server.generation.grammar import ParserFactory
from eaglegate.server.generation.images import PromptImages
from eaglegate.server.generation.served_model import ServedModel
from eaglegate.server.generation.trials import ConstraintTrials
from eaglegate.text.rendering.base import Renderer


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The engine with its renderer, parsers, policy and admission, available once the engine is
    ready.
    """

    engine: Engine
    info: EngineInfo
    renderer: Renderer
    parsers: ParserFactory
    served_model: ServedModel
    policy: SpeculationPolicy
    admission: Admission = field(default_factory=Admission)
    prompts: PromptTurns = field(default_factory=PromptTurns)
    """Turns of the admitted sequences to have their prompts read."""
    scored_prompts: PromptTurns = field(default_factory=PromptTurns)
    """The same for prompts whose log probabilities are wanted. A worker sends such an answer whole,
    so that its turn lasts as long as the answer."""
    isolation: CacheIsolation = field(default_factory=CacheIsolation)
    trials: ConstraintTrials | None = None
    """Compiles constraints before the engine sees them; None skips this."""
    images: PromptImages | None = None
    """Reads images; None if the model reads text only."""
