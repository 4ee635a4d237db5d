"""Settings of explanations: there are none, so every gateway explains its requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from eaglegate.server.feature_settings import FeatureSettings


@dataclass(frozen=True, slots=True)
class ExplanationSettings(FeatureSettings):
    NAME: ClassVar = "explanations"
    FEATURE: ClassVar = "eaglegate.features.explanations.feature:ExplanationFeature"
