"""Workloads that have lost speculation because an audit found a violation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AuditHold:
    """Why a workload is served without a draft. ``at``: Unix time in seconds."""

    workload: str
    reason: str
    draft: str
    at: float
    evidence: str = ""
    """The file that shows it again; empty where none was written."""


class AuditHolds:
    """Read by the speculation policy, at every request."""

    def __init__(self) -> None:
        self._holds: dict[str, AuditHold] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._holds)

    def __contains__(self, workload: object) -> bool:
        return workload in self._holds

    @property
    def holds(self) -> Mapping[str, AuditHold]:
        return self._holds

    def add(self, hold: AuditHold) -> bool:
        """Hold a workload at depth 0; False where it is held already."""
        if hold.workload in self._holds:
            return False
        self._holds[hold.workload] = hold
        return True

    def release(self, workload: str | None = None) -> tuple[str, ...]:
        """Let a workload speculate again, or all of them; returns those that were held."""
        names = tuple(self._holds) if workload is None else (workload,)
        return tuple(name for name in names if self._holds.pop(name, None) is not None)
