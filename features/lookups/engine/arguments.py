"""Lookups in vLLM's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eaglegate.engine.vllm_backend.class_names import OWN_SCHEDULERS
from eaglegate.engine.vllm_contract import DRAFT_K
from eaglegate.features.lookups.engine.contract import LOOKUP


def add_lookups(choices: Mapping[str, Any], width: int) -> dict[str, Any]:
    """Add lookups of up to ``width`` tokens to the fields of AsyncEngineArgs. Raises ValueError.

    vLLM's K becomes the longest lookup, and the draft's own K stands in ``additional_config``.
    """
    speculation: dict[str, Any] = dict(choices.get("speculative_config") or {})
    depth = speculation.get("num_speculative_tokens")
    if not depth:
        raise ValueError(
            "--lookup works beside a draft: give --speculative-config with num_speculative_tokens, "
            "or use method ngram for lookups alone"
        )
    if (scheduler := choices.get("scheduler_cls")) not in OWN_SCHEDULERS:
        raise ValueError(
            f"--lookup needs the gateway's own scheduler; leave out --scheduler-cls {scheduler}"
        )
    speculation["num_speculative_tokens"] = max(depth, width)
    additional = {**(choices.get("additional_config") or {}), LOOKUP: width, DRAFT_K: depth}
    return {**choices, "speculative_config": speculation, "additional_config": additional}
