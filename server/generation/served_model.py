"""ServedModel: what requests may ask of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eaglegate.engine.types import WORKLOADS, ImageInput


@dataclass(frozen=True, slots=True)
class ServedModel:
    models: tuple[str, ...]
    """Names that clients may use; the first is the default."""
    depth: int
    """The engine's K: the maximum number of draft tokens per step."""
    depth_per_request: bool = field(default=True, kw_only=True)
    """True if requests may set their own depth; otherwise every request gets K."""
    tools: bool
    """True if a tool-call parser is configured."""
    template_kwargs: Mapping[str, Any]
    trusts_templates: bool = field(default=False, kw_only=True)
    """True if requests may bring a chat template."""
    workloads: tuple[str, ...] = WORKLOADS
    """Workloads that a client may name in ``x-eaglegate-workload``."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """The model's own sampling defaults."""
    spec_metrics: str = "none"
    """Default speculation metrics of a response: none, summary or detailed."""
    reasoning_fields: tuple[str, ...] = ("reasoning", "reasoning_content")
    """Names under which chat completions deliver reasoning."""
    adapters: frozenset[str] = frozenset()
    """Names in ``models`` that are LoRA adapters."""
    vocab_size: int | None = None
    thinking_budget: bool | None = None
    """True if the engine can end reasoning after a number of tokens; None if that is unknown."""
    replaces_media: bool = True
    """True if a placeholder replaces images and files of earlier messages that the model cannot
    read; False if they are refused.
    """
    images: ImageInput | None = None
    """How the model takes images; None if it reads text only."""
