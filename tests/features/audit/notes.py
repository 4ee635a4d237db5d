"""An observer of audits that remembers."""

from __future__ import annotations

from dataclasses import dataclass, field

from eaglegate.features.audit.records import AuditRecord


@dataclass
class Notes:
    """An ``AuditObserver``."""

    records: list[AuditRecord] = field(default_factory=list, kw_only=True)
    drops: list[str] = field(default_factory=list, kw_only=True)

    def record_audit(self, record: AuditRecord) -> None:
        self.records.append(record)

    def record_audit_drop(self, reason: str) -> None:
        self.drops.append(reason)
