"""Settings of canaries: there are none, so every gateway can run them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from eaglegate.server.feature_settings import FeatureSettings


@dataclass(frozen=True, slots=True)
class CanarySettings(FeatureSettings):
    NAME: ClassVar = "canary"
    FEATURE: ClassVar = "eaglegate.features.canary.feature:CanaryFeature"
