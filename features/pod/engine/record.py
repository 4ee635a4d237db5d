"""Record of a pod's speculation, in memory that the engine's processes share with vLLM's front end.

Each data-parallel rank has a slot of numbers and alone writes it; the front end reads them at every
scrape. So no message of vLLM's carries them, and a scrape costs the engine nothing. A number is
written at once; two numbers of a slot may be of two steps.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path
from struct import Struct
from typing import NamedTuple

MAX_RANKS = 256


class PodNumbers(NamedTuple):
    """Numbers of a rank: sums since its start, then means of the last half minute."""

    steps: float = 0.0
    """Engine steps in which a request decoded. 0 for a rank that has not begun."""
    decode_steps: float = 0.0
    """Steps of each request that decoded."""
    verify_steps: float = 0.0
    """Decode steps that verified drafts."""
    draft_tokens: float = 0.0
    accepted_tokens: float = 0.0
    off: float = 0.0
    """Decode steps without drafts, by reason (``UndraftedReason``)."""
    planned: float = 0.0
    undrafted: float = 0.0
    acceptance_length: float = 0.0
    """Tokens of a verify step."""
    drafted_per_step: float = 0.0
    """Draft tokens of a verify step."""
    fallback_ratio: float = 0.0
    """Share of decode steps without drafts."""
    depth: float = 0.0
    """Drafts that a step makes for each request."""
    step_seconds: float = 0.0
    """Seconds of a decode step, where its content is certain."""
    token_rate: float = 0.0
    """Tokens per second of a decoding request."""


SUMS = PodNumbers._fields[:8]
"""Names of the sums."""
SLOT = Struct(f"{len(PodNumbers._fields)}d")
SIZE = MAX_RANKS * SLOT.size


class PodRecord:
    """The record of a pod. Raises OSError if the file cannot be opened."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with Path(path).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), SIZE)

    @classmethod
    def create(cls) -> tuple[PodRecord, str]:
        """Create a record, and return it with its path."""
        number, name = tempfile.mkstemp(prefix="eaglegate-pod-")
        with os.fdopen(number, "r+b") as file:
            file.truncate(SIZE)
        return cls(name), name

    def write(self, rank: int, numbers: PodNumbers) -> None:
        SLOT.pack_into(self._memory, rank % MAX_RANKS * SLOT.size, *numbers)

    def read(self) -> dict[int, PodNumbers]:
        """Return the numbers of the ranks that have begun."""
        slots = (
            PodNumbers(*SLOT.unpack_from(self._memory, r * SLOT.size)) for r in range(MAX_RANKS)
        )
        return {rank: numbers for rank, numbers in enumerate(slots) if numbers.steps}
