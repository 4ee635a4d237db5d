"""A draft that shares the target's embedding gets the wrapper of its adapters, which counts the
target's tokens.

On a CPU the engine died as soon as a batch mixed adapters. The draft gets the embedding without
adapters, as in the second model runner.
"""

from __future__ import annotations

from typing import Any

from vllm.lora.layers import BaseLayerWithLoRA
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

from eaglegate.engine.vllm_backend.patches import Original, Wrap

THREAD = UNTIL = ""


def load_model(
    original: Original, drafter: SpecDecodeBaseProposer, *args: Any, **kwargs: Any
) -> Any:
    result = original(drafter, *args, **kwargs)
    inner_model: Any = getattr(drafter.model, "model", None)
    embedding = getattr(inner_model, "embed_tokens", None)
    if isinstance(embedding, BaseLayerWithLoRA):
        inner_model.embed_tokens = embedding.base_layer
    return result


def patch(wrap: Wrap) -> None:
    wrap(SpecDecodeBaseProposer, "load_model", load_model)
