"""What the gateway knows of the model by itself: the worker's copy has the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


class Codec(Protocol):
    """The model's tokenizer. Thread-safe."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model's files without its weights."""

    name: str
    codec: Codec
    vocab_size: int
    max_model_len: int | None = None
    """What its config says; None where it says nothing. The worker may allow less."""
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    """Its generation config, by the names of ``engine.types.Sampling``."""
