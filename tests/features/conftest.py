"""The fixtures of other rooms, for features that are served."""

from tests.observability.conftest import telemetry
from tests.server.conftest import lab, reuse_applications, url

__all__ = ["lab", "reuse_applications", "telemetry", "url"]
