"""Many workers as one engine: who they are, how they are, and which of them runs a request."""

from engine.fleet.fleet import Fleet
from engine.fleet.types import FleetSettings, RoutingSettings

__all__ = ["Fleet", "FleetSettings", "RoutingSettings"]
