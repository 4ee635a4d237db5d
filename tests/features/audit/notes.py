"""Notes of what an auditor reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from eaglegate.features.audit.records import AuditRecord


@dataclass
class Notes:
    """The records of audits, and the reasons why answers were not audited."""

    records: list[AuditRecord] = field(default_factory=list, kw_only=True)
    drops: list[str] = field(default_factory=list, kw_only=True)
