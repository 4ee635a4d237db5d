"""The fixtures of tests/server, for features that are served."""

from tests.server.conftest import lab, url

__all__ = ["lab", "url"]
