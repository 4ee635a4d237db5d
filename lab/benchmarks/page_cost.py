"""CPU time that an open page costs the server, with every list full and a full day.

    python -m eaglegate.lab.benchmarks.page_cost

It measures the work of the routes, including JSON, in this process by ``time.process_time``,
without an engine or a socket. HTTP adds the cost of ``GET /health``.
"""

from __future__ import annotations

import asyncio
import time
from statistics import median
from types import SimpleNamespace
from typing import Any

import httpx
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from eaglegate.engine.events import Ending, Finish, RequestFacts, Usage
from eaglegate.engine.types import (
    DecodeStep,
    EngineInfo,
    EngineRequest,
    Sampling,
    SpeculationInfo,
    Step,
)
from eaglegate.features.explanations.feature import follow
from eaglegate.features.explanations.ring import ExplanationRing
from eaglegate.features.explanations.routes import router
from eaglegate.observability.facts import EngineStarted
from eaglegate.observability.history import SLOT_S, SLOTS
from eaglegate.observability.labels import TelemetrySettings
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.pages import make_routes
from eaglegate.observability.telemetry import Telemetry
from eaglegate.server.apis.shared.gateway import Gateway
from eaglegate.text.events import ContentDelta

POLLS = {
    "/debug/speculation": 2.0,
    "/debug/requests": 2.0,
    "/debug/history": 20.0,
}
"""Paths that the page polls, and the seconds between two polls."""
WORKLOADS = ("chat", "tools", "structured", "reasoning")
ROUNDS = 50


def fill_day(telemetry: Telemetry, clock: list[float]) -> None:
    """Record two requests of each workload in every slot of a day, with twelve templates."""
    info = EngineInfo("m", 4096, 2048, SpeculationInfo("eagle3.1", 3, "draft", "K = 3"))
    telemetry.facts.publish(EngineStarted("default", info, 12.0))
    for slot in range(SLOTS):
        clock[0] = slot * SLOT_S
        for number in range(2 * len(WORKLOADS)):
            answer(
                telemetry,
                clock,
                f"r{slot}-{number}",
                WORKLOADS[number % 4],
                f"t{(slot + number) % 12}",
            )
        telemetry.settle()


def answer(
    telemetry: Telemetry, clock: list[float], name: str, workload: str, template: str
) -> None:
    """Record one request of 30 verify steps."""
    facts = RequestFacts(
        name, "chat", "m", "default", workload, template, True, 700, (name,), clock[0], clock[0]
    )
    observation = telemetry.begin(facts)
    sequence, _ = telemetry.open_sequence(EngineRequest(name, (1,), Sampling(max_tokens=99)), "m")
    publish = observation.choice(name)
    for number in range(31):
        clock[0] += 0.01
        account = (DecodeStep(3, number % 4, number % 4 + 1),) if number else ()
        sequence.add_step(Step((1,) * (number % 4 + 1 if number else 1), account))
        publish(ContentDelta("x"))
    publish(Finish("stop", Usage(prompt=700, completion=sequence.tokens)))
    observation.end(Ending.COMPLETED)


async def measure(app: Any) -> dict[str, float]:
    """Return the median CPU milliseconds of a poll by path, minus those of an unknown path."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        costs = {}
        for path in ("/unknown", *POLLS):
            times = []
            for _ in range(ROUNDS):
                start = time.process_time()
                await client.get(path)
                times.append(1000 * (time.process_time() - start))
            costs[path] = median(times)
    base = costs.pop("/unknown")
    return {path: max(0.0, ms - base) for path, ms in costs.items()}


def main() -> None:
    clock = [0.0]
    telemetry = Telemetry(
        GROUPS, TelemetrySettings(models=("m",)), CollectorRegistry(), lambda: clock[0]
    )
    telemetry.history.set_wall_clock(lambda: clock[0])
    ring = ExplanationRing()
    follow(ring, telemetry.facts)
    gateway = Gateway(models=("m",), created=1)
    gateway.features["explanations"] = SimpleNamespace(ring=ring, telemetry=telemetry)
    fill_day(telemetry, clock)
    app = Starlette(routes=[*make_routes(telemetry), *router(gateway).routes])
    costs = asyncio.run(measure(app))
    share = sum(costs[path] / 1000 / seconds for path, seconds in POLLS.items())
    for path, ms in costs.items():
        print(f"{path:20} {ms:6.2f} ms every {POLLS[path]:g} s")
    print(f"{share:.2%} of one core")


if __name__ == "__main__":
    main()
