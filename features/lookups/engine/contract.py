"""What the scheduler and the worker tell each other of lookups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eaglegate.engine.vllm_contract import DRAFT_K

LOOKUP = "eaglegate_lookup"
"""Key in vLLM's ``additional_config``: the longest lookup, N. The draft's own K is beside it."""
MIN_MATCHES = "min_matches"
"""Attribute of a SchedulerOutput: by request, the shortest match that becomes a lookup."""
PROPOSALS = "verified_proposals"
"""Attribute of a ModelRunnerOutput: a row per request, 1 if its verified tokens are a lookup's, and
the tokens that the draft model proposed beside it, or -1."""


def read_lookup(additional_config: Any) -> tuple[int, int] | None:
    """Return (longest lookup, the draft's own K) of vLLM's ``additional_config``; None without
    lookups."""
    is_mapping = isinstance(additional_config, Mapping)
    width = additional_config.get(LOOKUP) if is_mapping else None
    return None if width is None else (int(width), int(additional_config[DRAFT_K]))
