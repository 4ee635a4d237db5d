"""Lookups of a gateway. All of their work is in the engine."""

from __future__ import annotations

from eaglegate.features.lookups.settings import LookupSettings
from eaglegate.server.cli.feature import ActiveFeature, Core
from eaglegate.server.errors import ConfigError


class LookupFeature(ActiveFeature):
    """Lookups in the engine of this process."""

    def __init__(self, core: Core, settings: LookupSettings) -> None:  # noqa: ARG002
        if core.backend.fleet is not None:
            raise ConfigError(
                "--lookup looks up in the engine of this process, and workers have none; leave it "
                "out"
            )
