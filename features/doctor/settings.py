"""Settings of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from eaglegate.server.feature_settings import FeatureSettings
from eaglegate.server.flags import Heading, setting

OFF = "off"


@dataclass(frozen=True, slots=True)
class DoctorSettings(FeatureSettings):
    """Settings of the doctor, which is off by default."""

    NAME: ClassVar = "doctor"
    FEATURE: ClassVar = "eaglegate.features.doctor.feature:DoctorFeature"
    tracks_prefixes: ClassVar = True
    DOCTOR: ClassVar = Heading("Acceptance doctor")
    doctor: str = setting(
        OFF,
        "diagnose drops in acceptance (watch), and also drop cached blocks, reload the draft or "
        "restart the engine if that helps (cure)",
        choices=(OFF, "watch", "cure"),
    )

    @property
    def is_on(self) -> bool:
        return self.doctor != OFF
