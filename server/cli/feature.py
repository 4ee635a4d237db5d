"""The frame of features: what each may use of the gateway, and what it may add to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eaglegate.engine.base import Engine
from eaglegate.engine.speculation.policy.policy import SpeculationPolicy
from eaglegate.engine.supervision.pool import EnginePool
from eaglegate.engine.types import EngineInfo
from eaglegate.server.access.admission import Admission
from eaglegate.server.apis.shared.gateway import Gateway
from eaglegate.server.backends import Backend
from eaglegate.server.cli.feature_table import load
from eaglegate.server.feature_settings import FeatureSettings
from eaglegate.server.settings import Settings

if TYPE_CHECKING:
    from eaglegate.observability.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Core:
    """The gateway, as a feature sees it before the engine starts."""

    settings: Settings
    backend: Backend
    engine: EnginePool
    telemetry: Telemetry
    policy: SpeculationPolicy
    admission: Admission
    gateway: Gateway
    progress: Callable[[str], None]
    """Prints a line for the operator while the gateway starts."""
    operator_url: str
    """Address of the operator paths."""

    def has_room(self) -> bool:
        """Return True if an engine runs, no request waits, and at most a quarter of the places are
        taken.
        """
        admission = self.admission
        has_places = 4 * admission.running <= admission.bounds.running
        return self.engine.is_live and not admission.queued and has_places

    def is_idle(self) -> bool:
        """Return True if an engine runs, and no request."""
        return self.engine.is_live and not self.admission.running


class ActiveFeature:
    """A feature that is on. Every default does nothing.

    Its class is made with a ``Core`` and the feature's settings, and may raise ConfigError. It then
    subscribes to ``core.telemetry.facts`` and adds metrics with ``core.telemetry.add_group``.
    """

    keeps_bodies: bool = False
    """True if it reads the bodies of requests."""

    def wrap(self, engine: Engine) -> Engine:
        """Return the engine for requests."""
        return engine

    def describe(self) -> Mapping[str, object]:
        """Return the feature's parts of ``/debug/speculation``, by name."""
        return {}

    def list_headlines(self) -> Iterable[str]:
        """Return the feature's state in a few words each, for the head of the live page."""
        return ()

    def list_problems(self) -> Iterable[str]:
        """Return the problems of this moment, as sentences for an operator."""
        return ()

    def start(self, info: EngineInfo) -> None:
        """Begin. The engine is ready, and no request has been admitted."""

    async def run(self) -> None:
        """Run beside the requests until cancelled. Called before the engine starts."""

    async def aclose(self) -> None:
        """Finish, after the last request."""


def build_features(core: Core, settings: Iterable[FeatureSettings]) -> list[ActiveFeature]:
    """Build the features that are on, and add their descriptions to telemetry. Raises
    ConfigError."""
    features: list[ActiveFeature] = []
    for feature_settings in settings:
        feature: ActiveFeature = load(feature_settings.FEATURE)(core, feature_settings)
        core.telemetry.parts.append(feature)
        core.gateway.features[feature_settings.NAME] = feature
        features.append(feature)
    return features
