"""Workloads that have lost speculation because an audit found a violation."""

from __future__ import annotations

from collections import OrderedDict
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


KNOWN_DRAFTS = 8
"""Most drafts whose holds are remembered, the serving draft included."""


class AuditHolds:
    """Holds on workloads, by draft. The speculation policy reads those of the serving draft."""

    def __init__(self) -> None:
        self._draft = ""
        self._known: OrderedDict[str, dict[str, AuditHold]] = OrderedDict({"": {}})
        """Holds by draft and workload; the serving draft is the last one."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.holds)

    def __contains__(self, workload: object) -> bool:
        return workload in self.holds

    @property
    def holds(self) -> Mapping[str, AuditHold]:
        """The holds of the serving draft, by workload."""
        return self._known[self._draft]

    def add(self, hold: AuditHold, draft: str | None = None) -> bool:
        """Hold a workload at depth 0 while ``draft`` serves, by default the serving draft. Return
        False if it is already held.
        """
        held = self._known[self._draft if draft is None else draft]
        return held.setdefault(hold.workload, hold) is hold

    def knows(self, draft: str) -> bool:
        return draft in self._known

    def has(self, draft: str, workload: str) -> bool:
        """Return True if a workload is held while ``draft`` serves."""
        return workload in self._known.get(draft, ())

    def change_draft(self, draft: str) -> tuple[str, ...]:
        """Apply the holds of the draft that serves from now on; return their workloads."""
        self._draft = draft
        self._known.setdefault(draft, {})
        self._known.move_to_end(draft)
        while len(self._known) > KNOWN_DRAFTS:
            self._known.popitem(last=False)
        return tuple(self.holds)

    def release(self, workload: str) -> bool:
        """Release a workload for every draft. Return False if it was not held."""
        found = [held.pop(workload, None) for held in self._known.values()]
        return any(found)
