"""What this gateway serves, as far as a request can be wrong about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.observer import WORKLOADS
from server.apis.shared.notices import ignore
from server.errors import InvalidRequest, NotFound

MAX_DEPTH_PARAM = "num_speculative_tokens"


@dataclass(frozen=True, slots=True)
class Served:
    models: tuple[str, ...]
    """Names clients may use; the first is the one shown."""
    depth: int
    """K of the engine: the most draft tokens per step."""
    depth_per_request: bool = field(default=True, kw_only=True)
    """A request's own depth is honoured; else everybody gets K."""
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
    """A placeholder stands for images and files of earlier messages; else they are refused."""


def model_of(asked: str | None, served: Served) -> str:
    """The name to answer under: the one given, or without one that of the model there is."""
    name = asked or served.models[0]
    check_model(name, served)
    return name


def check_model(model: str, served: Served) -> None:
    if model not in served.models:
        raise NotFound(
            f"The model '{model}' does not exist here. This gateway serves: "
            f"{', '.join(served.models)}.",
            param="model",
            code="model_not_found",
        )


def depth(asked: int | None, xargs: Mapping[str, Any] | None, served: Served) -> int | None:
    """Draft tokens per step asked for by the request, 0..K, or None."""
    for name in xargs or ():
        if name != MAX_DEPTH_PARAM:
            ignore(f"vllm_xargs.{name}")
    value = asked if asked is not None else (xargs or {}).get(MAX_DEPTH_PARAM)
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value <= served.depth:
        raise InvalidRequest(
            f"'{MAX_DEPTH_PARAM}' must be a whole number from 0 to {served.depth}, the engine's "
            f"depth; given {value!r}.",
            param=MAX_DEPTH_PARAM,
        )
    if value != served.depth and not served.depth_per_request:
        raise InvalidRequest(
            f"'{MAX_DEPTH_PARAM}' cannot be chosen here: the workers draft {served.depth} tokens "
            f"for everybody; given {value}. Leave it out.",
            param=MAX_DEPTH_PARAM,
        )
    return value
