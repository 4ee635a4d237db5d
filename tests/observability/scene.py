"""The telemetry of a gateway that serves the model ``m``, and requests that it observes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eaglegate.engine.events import Ending, RequestFacts
from eaglegate.engine.types import DecodeStep, Step
from eaglegate.observability.labels import TelemetrySettings
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.observation import RequestObservation
from eaglegate.observability.pages import render_metrics
from eaglegate.observability.telemetry import Telemetry
from eaglegate.text.events import ContentDelta


def make_telemetry(groups: Sequence[Any] = GROUPS, clock: Any = None, **settings: Any) -> Telemetry:
    chosen = TelemetrySettings(**{"models": ("m",), **settings})
    return Telemetry(groups, chosen, **({} if clock is None else {"clock": clock}))


def begin(telemetry: Telemetry, *sequences: str, **facts: Any) -> RequestObservation:
    """A request with these sequences, ``r-0`` if none are named, that arrives and begins now."""
    now = telemetry.clock()
    values = {
        "id": "r",
        "api": "chat",
        "model": "m",
        "lane": "default",
        "workload": "chat",
        "template": "",
        "stream": True,
        "prompt_tokens": 5,
        "sequences": sequences or ("r-0",),
        "arrived": now,
        "admitted": now,
    }
    observation = telemetry.begin(RequestFacts(**values | facts))
    assert isinstance(observation, RequestObservation)
    return observation


def add_steps(observation: RequestObservation, steps: int) -> None:
    """Each step drafts three tokens, of which one is accepted; the newest step is settled last."""
    for _ in range(steps):
        observation.sequences["r-0"].add_step(Step((1, 2), decode=(DecodeStep(3, 1, 2),)))
        observation.choice("r-0")(ContentDelta("x"))


def ask(telemetry: Telemetry, steps: int, **facts: Any) -> None:
    """A whole request."""
    observation = begin(telemetry, **facts)
    add_steps(observation, steps)
    observation.end(Ending.COMPLETED)


def read(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    return telemetry.registry.get_sample_value(f"eaglegate_{name}", labels)


def read_page(telemetry: Telemetry) -> str:
    """/metrics."""
    return render_metrics(telemetry.registry).decode()
