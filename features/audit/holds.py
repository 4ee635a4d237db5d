"""Workloads that have lost speculation because audits found violations.

A client chooses what it asks, and may name the workload. A violation is therefore held against its
own key only, until answers of ``KEYS`` keys are violated in the workload. Requests without a named
key are one key, ``""``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

KEYS = 2
"""Keys with violated answers from which a workload is held for every key."""
KNOWN_DRAFTS = 8
"""Most drafts whose holds are remembered, the serving draft included."""


@dataclass(frozen=True, slots=True)
class AuditHold:
    """Reason why a key's requests of a workload are served without a draft. ``at`` is Unix time in
    seconds."""

    workload: str
    reason: str
    draft: str
    at: float
    evidence: str = ""
    """The evidence file; empty if none was written."""
    key: str = ""
    """Public name of the API key; empty for requests without a named key."""


Held = dict[str, dict[str, AuditHold]]
"""Holds by workload and key."""


class AuditHolds:
    """Holds on workloads, by draft. The speculation policy reads those of the serving draft."""

    def __init__(self) -> None:
        self._draft = ""
        self._known: OrderedDict[str, Held] = OrderedDict({"": {}})
        """Holds by draft; the serving draft is the last one."""

    def __iter__(self) -> Iterator[str]:
        """Yield the workloads that some key may not speculate in."""
        return iter(self._known[self._draft])

    @property
    def holds(self) -> Mapping[str, AuditHold]:
        """The holds of the serving draft, by workload, and by key where other keys speculate."""
        names_to_holds = {}
        for workload, keys in self._known[self._draft].items():
            for hold in keys.values():
                names_to_holds[name_hold(workload, "" if len(keys) >= KEYS else hold.key)] = hold
        return names_to_holds

    def covers(self, workload: str, key: str, draft: str | None = None) -> bool:
        """Return True if a key's requests are served without ``draft``, by default the serving
        draft."""
        keys = self._known.get(self._draft if draft is None else draft, {}).get(workload, {})
        return key in keys or len(keys) >= KEYS

    def add(self, hold: AuditHold, draft: str | None = None) -> str:
        """Hold a key's requests at depth 0 while ``draft`` serves, by default the serving draft.
        Return the name of what is held."""
        keys = self._known[self._draft if draft is None else draft].setdefault(hold.workload, {})
        keys.setdefault(hold.key, hold)
        return name_hold(hold.workload, "" if len(keys) >= KEYS else hold.key)

    def knows(self, draft: str) -> bool:
        return draft in self._known

    def change_draft(self, draft: str) -> tuple[str, ...]:
        """Apply the holds of the draft that serves from now on; return their workloads."""
        self._draft = draft
        self._known.setdefault(draft, {})
        self._known.move_to_end(draft)
        while len(self._known) > KNOWN_DRAFTS:
            self._known.popitem(last=False)
        return tuple(self)

    def release(self, workload: str) -> bool:
        """Release a workload for every draft and key. Return False if it was not held."""
        removals = [workloads.pop(workload, None) for workloads in self._known.values()]
        return any(removals)


def name_hold(workload: str, key: str) -> str:
    """Return the name of a hold on a workload, for operators. ``key`` is empty if it concerns every
    key."""
    return f"{workload} of key {key}" if key else workload
