"""Paced streams of a gateway."""

from __future__ import annotations

from dataclasses import replace

from eaglegate.features.pacing.cadence import Cadence
from eaglegate.features.pacing.settings import PacingSettings
from eaglegate.server.cli.feature import ActiveFeature, Core


class PacingFeature(ActiveFeature):
    """Sends every stream at one pace."""

    def __init__(self, core: Core, settings: PacingSettings) -> None:
        pacing = Cadence(settings.stream_cadence)
        core.gateway.timing = replace(core.gateway.timing, pacing=pacing)
