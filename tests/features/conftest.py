"""The fixtures of other rooms, for features that are served."""

from tests.observability.conftest import telemetry
from tests.server.conftest import lab, url

__all__ = ["lab", "telemetry", "url"]
