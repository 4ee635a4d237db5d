"""Settings of paced streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from eaglegate.server.errors import ConfigError
from eaglegate.server.feature_settings import FeatureSettings
from eaglegate.server.flags import Heading, setting


@dataclass(frozen=True, slots=True)
class PacingSettings(FeatureSettings):
    """Settings of paced streams, which are off with a cadence of 0."""

    NAME: ClassVar = "pacing"
    FEATURE: ClassVar = "eaglegate.features.pacing.feature:PacingFeature"
    REQUESTS: ClassVar = Heading("Requests and streams")
    stream_cadence: float = setting(
        0.0,
        "milliseconds between the blocks of a stream, all of one size, so that neither sizes nor "
        "gaps show which drafts were accepted; 0, the default, sends frames as they are produced",
        metavar="MS",
    )

    def __post_init__(self) -> None:
        if self.stream_cadence and not 1 <= self.stream_cadence <= 1000:
            raise ConfigError(
                "--stream-cadence must be 1 to 1000 milliseconds, or 0 for none; given "
                f"{self.stream_cadence:g}"
            )

    @property
    def is_on(self) -> bool:
        return bool(self.stream_cadence)
