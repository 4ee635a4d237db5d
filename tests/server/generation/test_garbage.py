"""An answered request leaves no cycle of ours: it is freed at once, its prompt too.

A cycle would keep whole conversations until the garbage collector comes by, and have it come often.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest
from prometheus_client import CollectorRegistry

from eaglegate.observability.engine import InstrumentedEngine
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.middleware import TelemetryMiddleware
from eaglegate.observability.telemetry import Telemetry, TelemetrySettings
from tests.server.conftest import Lab, on_a_port

OURS = ("server.", "engine.", "observability.")


@contextmanager
def kept_garbage() -> Iterator[list[object]]:
    """The objects made inside the block that only the collector could free."""
    gc.collect()
    gc.disable()
    found: list[object] = []
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_leaves_no_cycles(lab: Lab, stream: bool) -> None:
    telemetry = Telemetry(GROUPS, TelemetrySettings(models=("demo",)), CollectorRegistry())
    lab.gateway.observer = telemetry
    lab.gateway.open(replace(lab.path(), engine=InstrumentedEngine(lab.engine, telemetry)))
    lab.says("A story of two houses.", cuts=(3, 6, 9, 12))
    body = {"model": "demo", "stream": stream, "messages": [{"role": "user", "content": "Tell me"}]}
    app = TelemetryMiddleware(lab.app, lambda _: None)
    with on_a_port(app) as url, httpx.Client(base_url=url) as client:
        for _ in range(2):
            assert client.post("/v1/chat/completions", json=body).status_code == 200
        with kept_garbage() as garbage:
            for _ in range(3):
                assert client.post("/v1/chat/completions", json=body).status_code == 200
            client.get("/v1/models")  # the connection lets go of the answer before
            lab.engine.requests.clear()
    kinds = [type(one).__module__ + "." + type(one).__qualname__ for one in garbage]
    assert [kind for kind in kinds if kind.startswith(OURS)] == []
