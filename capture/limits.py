"""Modes and bounds of a capture, for settings: a gateway without a capture loads this alone."""

from __future__ import annotations

from dataclasses import dataclass

FULL, HASHES = MODES = ("full", "hashes")
PARTS = 16
"""A file holds at most this part of all bytes and of the age, so that the oldest can go alone."""
LARGEST_PART = 64 << 20


@dataclass(frozen=True, slots=True)
class CaptureLimits:
    """``max_bytes`` of all files together; files older than ``max_age_s`` are deleted."""

    max_bytes: int = 1 << 30
    max_age_s: float = 7 * 86400.0

    @property
    def part_bytes(self) -> int:
        return max(1, min(LARGEST_PART, self.max_bytes // PARTS))
