"""A worker's own counters of speculation, out of the text vLLM's server exposes."""

from __future__ import annotations

import re
from collections import Counter

from engine.remote.reading import WorkerProtocolError
from engine.speculation.accounting import Totals

SAMPLE = re.compile(
    r"^vllm:spec_decode_num_(drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)"
    r"(?:_total)?(?:\{(.{0,2000})\})? (\S{1,32})$",
    re.MULTILINE,
)
POSITION = re.compile(r'position="(\d{1,4})"')
MOST_POSITIONS = 64


def parse_totals(exposition: str) -> Totals | None:
    """Summed over the worker's engines; None when it does not speculate. Raises WorkerFault."""
    sums: Counter[str] = Counter()
    positions: Counter[int] = Counter()
    for name, labels, value in SAMPLE.findall(exposition):
        if name == "accepted_tokens_per_pos":
            position = POSITION.search(labels)
            if position is not None and int(position[1]) < MOST_POSITIONS:
                positions[int(position[1])] += _count(value)
        else:
            sums[name] += _count(value)
    if "drafts" not in sums:
        return None
    return Totals(
        verify_steps=sums["drafts"],
        proposed=sums["draft_tokens"],
        accepted=sums["accepted_tokens"],
        accepted_at=tuple(positions[at] for at in range(max(positions, default=-1) + 1)),
    )


def _count(value: str) -> int:
    """Raises WorkerFault."""
    try:
        return int(float(value))
    except (ValueError, OverflowError):
        raise WorkerProtocolError(f"a counter of the worker is {value}") from None
