"""The depth planner on realistic sessions, on real engines: the traffic of ``sessions``, shortened.

Two engines run: one without a draft, one with K = 7. Every lane serves each phase in turn, starting
with another lane each time, so that a disturbance of the machine affects all lanes. Time is the CPU
time of the engine's process, which has one thread, including prompts. ``--scale`` shortens the
phases, which increases the weight of every change of traffic. Acceptance is the demo's own:
``friendly`` and ``structured`` requests are greedy stories and objects, ``chat`` and ``creative``
requests sample at temperatures 0.7 and 1.2, and ``hostile`` requests sample at 1.6 after random
tokens. Needs the cost-scaled demo, on which a draft can pay:

    python -m eaglegate.lab.training.cost_scaled --identity-layers 32 --out DIR
    python -m eaglegate.lab.benchmarks.sessions_engine DIR [--seconds 240] [--scale 0.25] [--seed 0]
    python -m eaglegate.lab.benchmarks.sessions_engine DIR --laps 4 [--streams 1 4 16]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from eaglegate.engine.steps import read_steps
from eaglegate.engine.types import Constraint, EngineRequest, Sampling
from eaglegate.engine.vllm_backend.arguments import make_demo_arguments
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from eaglegate.lab.benchmarks.regret_engine import MOST, Traffic, describe_target, subtract
from eaglegate.lab.benchmarks.sessions import LAPS, LONG_S, PhaseResult, score
from eaglegate.lab.benchmarks.sessions_traffic import (
    SessionPhase,
    SessionRequest,
    make_laps,
    make_sessions,
)
from eaglegate.lab.benchmarks.wire import clock_of
from tests.engine.drive import WEATHER_TOOL, run_engine

LANES = ("none", "K=3", "K=7", "auto")
TEMPERATURES = {"chat": 0.7, "creative": 1.2, "hostile": 1.6}
"""Temperatures of the kinds that sample."""
CITIES = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Quito")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 60},
        "city": {"enum": list(CITIES)},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 4},
    },
    "required": ["name", "city", "tags"],
    "additionalProperties": False,
}
Send = Callable[[SessionRequest], EngineRequest]


class SessionTraffic:
    """Engine requests for the sessions' clients."""

    def __init__(self, renderer: VllmRenderer) -> None:
        self._renderer = renderer
        self._stories = Traffic(renderer)

    def make(self, item: SessionRequest) -> EngineRequest:
        draw = random.Random(item.name)
        number = draw.randrange(10_000)
        match item.kind:
            case "hostile":
                prompt = self._stories.make_kind("hostile", number).prompt
            case "long":
                prompt = self._stories.make_kind("long", number).prompt
            case "tools":
                question = f"What is the weather in {draw.choice(CITIES)}?"
                prompt = self._render(question, [WEATHER_TOOL])
            case _:
                prompt = self._stories.make_kind("friendly", number).prompt
        request = EngineRequest(
            item.name,
            prompt,
            Sampling(
                item.tokens,
                temperature=TEMPERATURES.get(item.kind, 0.0),
                seed=item.seed,
                ignore_eos=item.kind == "hostile",
            ),
            workload=item.application.workload,
            tenant=item.application.name,
        )
        if item.kind != "structured":
            return request
        return structs.replace(request, constraint=Constraint("json_schema", json.dumps(SCHEMA)))

    def _render(self, question: str, tools: list[dict[str, Any]]) -> tuple[int, ...]:
        message = {"role": "user", "content": question}
        return tuple(self._renderer.render_chat([message], tools))


@dataclass
class Lane:
    """``none``, ``K=3`` or ``auto``, on the engine that serves it."""

    name: str
    engine: VllmEngine
    planning_s: float = 0.0
    steps: int = 0

    async def serve(self, phase: SessionPhase, traffic: SessionTraffic) -> PhaseResult:
        if self.name != "auto":
            return await serve(self.engine, phase, self._direct(traffic))
        await self.engine.set_planning("auto")
        start_planning = await self.engine.describe_planning(0)
        result = await serve(self.engine, phase, self._direct(traffic))
        planning = subtract(await self.engine.describe_planning(0), start_planning)
        await self.engine.set_planning("off")
        result.depths = planning["steps_by_depth"]
        self.steps += sum(result.depths)
        self.planning_s += planning["planning_s"]
        return result

    def _direct(self, traffic: SessionTraffic) -> Send:
        depth = int(self.name[2:]) if self.name.startswith("K=") else None

        def make_request(item: SessionRequest) -> EngineRequest:
            request = traffic.make(item)
            name = f"{request.id}@{self.name}"
            return structs.replace(request, id=name, depth=depth, cache_salt=self.name)

        return make_request


async def serve(engine: VllmEngine, phase: SessionPhase, make_request: Send) -> PhaseResult:
    """Run every client of the phase, for its seconds of engine CPU or all of its requests."""
    (process,) = engine._processes
    clock = clock_of(process.pid or 0)
    result, begin_s = PhaseResult(phase), time.clock_gettime(clock)

    async def send(supply: Iterator[SessionRequest]) -> None:
        for item in supply:
            async for step in read_steps(engine.generate, make_request(item)):
                result.tokens += len(step.token_ids)

    clients = [
        asyncio.create_task(send(phase.send(number))) for number in range(len(phase.clients))
    ]
    while time.clock_gettime(clock) - begin_s < phase.seconds:
        _, pending_clients = await asyncio.wait(clients, timeout=0.02)
        if not pending_clients:
            break
    result.seconds = time.clock_gettime(clock) - begin_s
    for client in clients:
        client.cancel()
    for outcome in await asyncio.gather(*clients, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
    return result


async def measure(options: argparse.Namespace) -> None:
    demo, out = options.demo, options.out
    target = describe_target(demo)
    draft_config = {"model": str(demo / "eagle3_1"), "num_speculative_tokens": MOST}
    traffic = SessionTraffic(VllmRenderer(make_demo_arguments(**target)))
    async with (
        run_engine(**target, speculative_config=None) as plain_engine,
        run_engine(
            **target,
            speculative_config=draft_config,
            planning="auto",
            scheduler_cls="eaglegate.lab.benchmarks.regret_engine.cpu_time_scheduler",
        ) as draft,
    ):
        await draft.set_planning("off")
        lanes = [Lane(name, plain_engine if name == "none" else draft) for name in options.lanes]
        if options.laps:
            for streams, requests in LAPS:
                if options.streams and streams not in options.streams:
                    continue
                phases = make_laps(streams, requests, options.laps)
                results = await serve_all(lanes, phases, traffic, out)
                print_laps(streams, requests, results)
            return
        phases = [
            replace(phase, seconds=phase.seconds * options.scale)
            for phase in make_sessions(options.seed, options.seconds / options.scale)
        ]
        results = await serve_all(lanes, phases, traffic, out)
        print_sessions(results, lanes, LONG_S * options.scale)


async def serve_all(
    lanes: Sequence[Lane], phases: Sequence[SessionPhase], traffic: SessionTraffic, out: Path | None
) -> dict[str, list[PhaseResult]]:
    results: dict[str, list[PhaseResult]] = {lane.name: [] for lane in lanes}
    for turn, phase in enumerate(phases):
        offset = turn % len(lanes)
        for lane in (*lanes[offset:], *lanes[:offset]):
            results[lane.name].append(await lane.serve(phase, traffic))
        rates = {name: lane_results[-1].rate for name, lane_results in results.items()}
        cells = " | ".join(f"{rate / rates['none']:.3f}" for rate in rates.values())
        result = results["auto"][-1] if "auto" in results else results["none"][-1]
        print(f"| {phase.name} | {result.seconds:.1f} | {cells} | {result.depths} |", flush=True)
        if out is not None:
            table = {
                name: [asdict(phase_result) for phase_result in lane_results]
                for name, lane_results in results.items()
            }
            await asyncio.to_thread(out.write_text, json.dumps(table))
    return results


def print_sessions(
    results: dict[str, list[PhaseResult]], lanes: Sequence[Lane], long_s: float
) -> None:
    (auto,) = (lane for lane in lanes if lane.name == "auto")
    result = score(results, auto.planning_s / max(1, auto.steps) * 1e6, long_s)
    best_ratios = [ratio for ratio, *_ in result.ratios_over_best]
    plain_ratios = [ratio for ratio, _ in result.ratios_over_none]
    print(f"\nauto over the best fixed depth ({result.best_lane}): {result.total:.3f}")
    print(f"planning: {result.planning_us:.0f} us a step")
    for name, ratios in (("their own best fixed depth", best_ratios), ("no draft", plain_ratios)):
        if ratios:
            num_good = sum(ratio >= 0.95 for ratio in ratios)
            print(
                f"phases at 0.95 of {name}: {num_good} of {len(ratios)}, lowest {min(ratios):.3f}, "
                f"median {statistics.median(ratios):.3f}"
            )


def print_laps(streams: int, requests: int, results: dict[str, list[PhaseResult]]) -> None:
    """Print the tokens per second over no draft: all laps of a kind, and the range over laps."""
    for kind in ("friendly", "hostile"):
        cells = []
        for lane_results in results.values():
            kind_results = [
                phase_result for phase_result in lane_results if phase_result.phase.name == kind
            ]
            plain_results = [
                phase_result for phase_result in results["none"] if phase_result.phase.name == kind
            ]
            ratios = [a.rate / b.rate for a, b in zip(kind_results, plain_results, strict=True)]
            rate, base = (
                sum(phase_result.tokens for phase_result in group)
                / sum(phase_result.seconds for phase_result in group)
                for group in (kind_results, plain_results)
            )
            cells.append(f"{rate / base:.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        print(f"| {streams} | {requests} | {kind} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("demo", type=Path)
    parser.add_argument("--seconds", type=float, default=240.0, help="CPU seconds of each lane")
    parser.add_argument(
        "--scale", type=float, default=0.25, help="factor for a phase's 5 to 60 seconds"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--laps", type=int, default=0, help="number of friendly laps between hostile ones"
    )
    parser.add_argument(
        "--streams",
        type=int,
        nargs="*",
        choices=[streams for streams, _ in LAPS],
        default=[],
        help="with --laps: numbers of streams, instead of all",
    )
    parser.add_argument(
        "--lanes", nargs="*", default=LANES, help="lanes to compare: none, auto, K=N"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    print(f"| phase | auto's seconds | {' | '.join(options.lanes)} | auto's steps by depth |")
    asyncio.run(measure(options))


if __name__ == "__main__":
    main()
