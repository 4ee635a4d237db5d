"""Settings of the improvement loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from eaglegate.server.feature_settings import FeatureSettings
from eaglegate.server.flags import Heading, setting


@dataclass(frozen=True, slots=True)
class ImproveSettings(FeatureSettings):
    """Settings of the loop, which is off without a file."""

    NAME: ClassVar = "improve"
    FEATURE: ClassVar = "eaglegate.features.improve.feature:ImproveFeature"
    IMPROVEMENT: ClassVar = Heading("Improvement of the draft")
    improve: str | None = setting(
        None, "configuration of a loop that tunes the draft on captured traffic", metavar="FILE"
    )

    @property
    def is_on(self) -> bool:
        return self.improve is not None
