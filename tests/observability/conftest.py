from __future__ import annotations

import pytest

from eaglegate.observability.telemetry import Telemetry
from tests.observability.scene import make_telemetry


@pytest.fixture
def telemetry() -> Telemetry:
    return make_telemetry()
