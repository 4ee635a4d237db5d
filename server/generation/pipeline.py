"""Pipeline: the engine with its renderer, parsers, policy and admission."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.base import Engine
from engine.observer import WORKLOADS
from engine.speculation.policy import SpeculationPolicy
from engine.types import EngineInfo
from server.access.admission import Admission
from server.generation.parser_factory import ParserFactory
from server.generation.prompt import Renderer
from server.generation.trials import ConstraintTrials


@dataclass(frozen=True, slots=True)
class ServedModel:
    models: tuple[str, ...]
    """Names that clients may use; the first is the default."""
    depth: int
    """K of the engine: the most draft tokens per step."""
    depth_per_request: bool = field(default=True, kw_only=True)
    """Requests may set their own depth; else every request gets K."""
    tools: bool
    """A tool-call parser is configured."""
    template_kwargs: Mapping[str, Any]
    trusts_templates: bool = field(default=False, kw_only=True)
    """Requests may bring a chat template."""
    workloads: tuple[str, ...] = WORKLOADS
    """Slices a client may name in ``x-eaglegate-workload``."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """The model's own sampling defaults."""
    spec_metrics: str = "none"
    """Speculation in every response: none, summary or detailed; a request may ask otherwise."""
    reasoning_fields: tuple[str, ...] = ("reasoning", "reasoning_content")
    """Names under which chat completions deliver reasoning."""
    adapters: frozenset[str] = frozenset()
    """Which of ``models`` are LoRA adapters."""
    vocab_size: int | None = None
    thinking_budget: bool | None = None
    """The engine can end a reasoning after so many tokens; None where that is unknown."""
    replaces_media: bool = True
    """A placeholder replaces images and files of earlier messages; else they are refused."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The parts a request passes through: made when the engine is ready."""

    engine: Engine
    info: EngineInfo
    renderer: Renderer
    parsers: ParserFactory
    served: ServedModel
    policy: SpeculationPolicy
    admission: Admission = field(default_factory=Admission)
    trials: ConstraintTrials | None = None
    """Compiles constraints before the engine sees them; None skips this."""
