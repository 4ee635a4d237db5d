"""The lookups of a scheduler, by its model runner."""

from __future__ import annotations

from typing import Any

from eaglegate.features.lookups.engine.contract import read_lookup
from eaglegate.features.lookups.engine.first_runner import Lookups
from eaglegate.features.lookups.engine.second_runner import SecondLookups


def make_plugin(scheduler: Any) -> Lookups | None:
    """Make the lookups of a scheduler; None without ``--lookup``."""
    settings = read_lookup(scheduler.vllm_config.additional_config)
    if settings is None:
        return None
    return (SecondLookups if scheduler.use_v2_model_runner else Lookups)(scheduler, settings[0])
