"""Modes and limits of a capture. A gateway without a capture loads only this module."""

from __future__ import annotations

from dataclasses import dataclass

FULL, HASHES = MODES = ("full", "hashes")
PARTS = 16
"""A file holds at most ``1 / PARTS`` of all bytes and of the maximum age, so that the oldest part
can be deleted alone.
"""
LARGEST_PART = 64 << 20


@dataclass(frozen=True, slots=True)
class CaptureLimits:
    """Limits of a capture: ``max_bytes`` for all files together, ``max_age_s`` for each file."""

    max_bytes: int = 1 << 30
    max_age_s: float = 7 * 86400.0

    @property
    def part_bytes(self) -> int:
        return max(1, min(LARGEST_PART, self.max_bytes // PARTS))
