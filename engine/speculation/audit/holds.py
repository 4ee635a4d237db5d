"""Workloads that have lost speculation because an audit found a violation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AuditHold:
    """Reason why a workload is served without a draft. ``at`` is Unix time in seconds."""

    workload: str
    reason: str
    draft: str
    at: float
    evidence: str = ""
    """The evidence file; empty if none was written."""


class AuditHolds:
    """Holds on workloads. The speculation policy reads them for every request."""

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
        """Hold a workload at depth 0. Return False if it is already held."""
        if hold.workload in self._holds:
            return False
        self._holds[hold.workload] = hold
        return True

    def release(self, workload: str | None = None) -> tuple[str, ...]:
        """Release one workload, or all, and return the names of those that were held."""
        names = tuple(self._holds) if workload is None else (workload,)
        return tuple(name for name in names if self._holds.pop(name, None) is not None)
