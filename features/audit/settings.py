"""Settings of the audits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from eaglegate.server.errors import ConfigError
from eaglegate.server.feature_settings import FeatureSettings
from eaglegate.server.flags import Heading, setting


@dataclass(frozen=True, slots=True)
class AuditSettings(FeatureSettings):
    """Settings of the audits, which are off with a share of 0."""

    NAME: ClassVar = "audit"
    FEATURE: ClassVar = "eaglegate.features.audit.feature:AuditFeature"
    AUDIT: ClassVar = Heading("Audit of answers")
    audit_share: float = setting(
        0.0,
        "share of finished answers, from 0 to 1, that the target scores again without the draft; a "
        "violation turns off speculation for its workload, or is an alarm for its worker",
    )
    audit_hold: bool = setting(
        False, "send no new requests to a worker whose answer an audit finds violated"
    )
    audit_evidence: str | None = setting(
        None, "folder for files that can replay a violation, including token ids", metavar="DIR"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.audit_share <= 1:
            raise ConfigError(f"--audit-share must be from 0 to 1; given {self.audit_share}")
        if self.audit_evidence and not self.audit_share:
            raise ConfigError("--audit-evidence needs an --audit-share above 0")
        if self.audit_hold and not self.audit_share:
            raise ConfigError("--audit-hold needs an --audit-share above 0")

    @property
    def is_on(self) -> bool:
        return bool(self.audit_share)
