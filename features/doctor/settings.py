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
    DOCTOR: ClassVar = Heading("Acceptance doctor")
    doctor: str = setting(
        OFF,
        "diagnose drops in acceptance (watch); cure is a former name of watch, which 0.4.0 will "
        "not accept",
        choices=(OFF, "watch", "cure"),
    )

    @property
    def is_on(self) -> bool:
        return self.doctor != OFF
