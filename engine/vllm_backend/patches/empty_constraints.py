"""Where a request with top-k has no drafts, as in its prefill, vLLM takes the maximum of an empty
list, and the engine dies."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.sample import rejection_sampler

from eaglegate.engine.vllm_backend.patches import Original, Wrap

THREAD = UNTIL = ""


def apply_sampling_constraints(
    original: Original, logits: Tensor, *args: Any, **kwargs: Any
) -> Any:
    return original(logits, *args, **kwargs) if len(logits) else logits


def patch(wrap: Wrap) -> None:
    wrap(rejection_sampler, "apply_sampling_constraints", apply_sampling_constraints)
