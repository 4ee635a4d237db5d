"""What a GPU benchmark reads from its servers."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from eaglegate.lab.benchmarks.gpu_servers import GATEWAY_READY, Server
from eaglegate.observability.facts import GatewayStarted
from eaglegate.observability.labels import TelemetrySettings
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.pages import render_metrics
from eaglegate.observability.telemetry import Telemetry


@pytest.fixture
def port() -> Iterator[int]:
    """Operator port of a gateway whose start had two parts."""
    telemetry = Telemetry(GROUPS, TelemetrySettings(models=("m",)), CollectorRegistry())
    telemetry.facts.publish(GatewayStarted({"imports": 3.04, "engine process": 12.0}))
    page = render_metrics(telemetry.registry)

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *arguments: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize(
    ("ready_path", "parts"),
    [(GATEWAY_READY, {"imports": 3.0, "engine process": 12.0}), ("/health", {})],
)
def test_parts_of_a_start_are_read_from_a_gateways_metrics(
    port: int, tmp_path: Path, ready_path: str, parts: dict[str, float]
) -> None:
    with subprocess.Popen(["true"]) as process:
        server = Server("a", 1, port, process, tmp_path / "log", ready_path, 0.0)
        assert server.read_start_parts() == parts
