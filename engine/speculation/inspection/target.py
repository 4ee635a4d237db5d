"""The facts of a target that a draft has to fit, from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """``config`` is the text model's part of config.json. A fact it lacks is None."""

    config: Mapping[str, Any]
    path: str = ""

    @property
    def hidden_size(self) -> int | None:
        return get_int(self.config, "hidden_size")

    @property
    def num_layers(self) -> int | None:
        return get_int(self.config, "num_hidden_layers")

    @property
    def vocab_size(self) -> int | None:
        return get_int(self.config, "vocab_size")

    @property
    def max_positions(self) -> int | None:
        return get_int(self.config, "max_position_embeddings")


def read_target(config: Mapping[str, Any], path: str = "") -> TargetConfig:
    return TargetConfig(find_text_config(config), path)


def find_text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Multimodal models keep the text model's facts one or two levels down."""
    for name in TEXT_PARTS:
        part = config.get(name)
        if isinstance(part, Mapping):
            return find_text_config(part)
    return config


def get_int(config: Mapping[str, Any], key: str) -> int | None:
    """A whole number, or None for anything else (true is no number)."""
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
