"""Regret of the depth planner on real engines: fixed depths, no draft and auto take turns.

Two engines are up: one without a draft, one with K = 7. Every phase is dealt out in blocks; every
lane serves each block, so that what disturbs the machine disturbs all of them. On a machine that
others use, too, time is the CPU time of the engine's process: it has one thread. Needs the
cost-scaled demo, on which a draft can pay:

    python -m training.cost_scaled --identity-layers 32 --out DIR
    python -m benchmarks.regret_engine DIR [--rounds 4] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.drive import running
from engine.types import EngineRequest, Sampling
from engine.vllm_backend.arguments import make_demo_arguments
from engine.vllm_backend.engine import VllmEngine
from engine.vllm_backend.renderer import VllmRenderer
from engine.vllm_backend.scheduler import DepthSchedulerBase, scheduler
from training.evaluation_set import long

MOST = 7
FIXED = (0, 1, 3, 5, 7)
LANES = ("none", *(f"K={depth}" for depth in FIXED), "auto")
TOKENS = 64
VOCABULARY = 2000
"""Tokens that a hostile prompt is drawn from."""
Maker = Callable[[int], EngineRequest]


@dataclass(frozen=True)
class Phase:
    """``kinds`` by turns, ``batch`` requests at a time, ``requests`` of them in a block."""

    name: str
    kinds: tuple[str, ...]
    batch: int
    requests: int


PHASES = (
    Phase("friendly 1", ("friendly",), 1, 2),
    Phase("friendly 4", ("friendly",), 4, 8),
    Phase("hostile 4", ("hostile",), 4, 4),
    Phase("long context 4", ("long",), 4, 4),
    Phase("burst 1", ("friendly",), 1, 2),
    Phase("burst 16", ("friendly",), 16, 32),
    Phase("burst 1 again", ("friendly",), 1, 2),
    Phase("mixed 8", ("friendly", "hostile"), 8, 16),
    Phase("hostile 16", ("hostile",), 16, 16),
    Phase("friendly at last", ("friendly",), 4, 8),
)
THINGS = ("cat", "key", "river", "king", "garden", "bird", "ship", "clock", "mountain", "baker")


@dataclass
class Block:
    """What one lane did with one block. ``arrivals``: seconds since its begin, and tokens."""

    phase: str
    lane: str
    seconds: float
    """CPU time of the engine's process, prompts included."""
    wall_s: float
    tokens: int
    began: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    planner: dict[str, Any] = field(default_factory=dict)


class Traffic:
    """Requests by kind and number; equal numbers are equal requests."""

    def __init__(self, renderer: VllmRenderer) -> None:
        pairs = itertools.permutations(THINGS, 2)
        self._stories = [f"Tell me a short story about a {a} and a {b}." for a, b in pairs]
        self._renderer = renderer
        self._history = [c.conversation.messages[:-1] for c in long(6, 2, renderer.tokenizer)]
        self._makers: dict[str, Maker] = {
            "friendly": self._make_friendly,
            "long": self._make_long,
            "hostile": _make_hostile,
        }

    def make(self, phase: Phase, numbers: Iterator[int]) -> list[EngineRequest]:
        kinds = itertools.islice(itertools.cycle(phase.kinds), phase.requests)
        return [self._makers[kind](next(numbers)) for kind in kinds]

    def _make_friendly(self, number: int) -> EngineRequest:
        return self._tell(f"f{number}", number, [])

    def _make_long(self, number: int) -> EngineRequest:
        return self._tell(f"l{number}", number, self._history[number % len(self._history)])

    def _tell(self, name: str, number: int, history: list[dict[str, Any]]) -> EngineRequest:
        question = {"role": "user", "content": self._stories[number % len(self._stories)]}
        prompt = tuple(self._renderer.render_chat([*history, question], None))
        return EngineRequest(name, prompt, Sampling(TOKENS, temperature=0.0))


def _make_hostile(number: int) -> EngineRequest:
    draw = random.Random(number)
    prompt = tuple(draw.randrange(20, VOCABULARY) for _ in range(40))
    sampling = Sampling(TOKENS, temperature=1.6, seed=number, ignore_eos=True)
    return EngineRequest(f"h{number}", prompt, sampling)


def cpu_time_scheduler(*args: Any, **kwargs: Any) -> DepthSchedulerBase:
    """What ``scheduler_cls`` names: the planner learns CPU time, too."""
    made = scheduler(*args, **kwargs)
    made.planning.clock = time.process_time
    return made


def read_cpu_s(pid: int | None) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def serve(
    engine: VllmEngine, requests: list[EngineRequest], batch: int, block: Block
) -> None:
    """A closed loop of ``batch`` clients."""
    waiting = iter(requests)
    (process,) = engine._processes
    begin, begin_s = time.perf_counter(), read_cpu_s(process.pid)

    async def client() -> None:
        for request in waiting:
            async for step in engine.generate(request):
                block.arrivals.append((time.perf_counter() - begin, len(step.token_ids)))

    await asyncio.gather(*(client() for _ in range(batch)))
    block.seconds = read_cpu_s(process.pid) - begin_s
    block.wall_s = time.perf_counter() - begin
    block.tokens = sum(tokens for _, tokens in block.arrivals)


async def serve_block(
    engines: dict[str, VllmEngine],
    lane: str,
    phase: Phase,
    requests: list[EngineRequest],
    began: float,
) -> Block:
    block = Block(phase.name, lane, 0.0, 0.0, 0, time.perf_counter() - began)
    depth = int(lane[2:]) if lane.startswith("K=") else None
    engine = engines["none" if lane == "none" else "draft"]
    if lane == "auto":
        await engine.set_planning("auto")
        before = await engine.describe_planning(512)
    own = [
        replace(r, id=f"{r.id}@{lane}", depth=depth, cache_salt=lane, workload=r.id[0])
        for r in requests
    ]
    await serve(engine, own, phase.batch, block)
    if lane == "auto":
        block.planner = subtract(await engine.describe_planning(512), before)
        await engine.set_planning("off")
    return block


def subtract(after: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Sums since ``before``; everything else as it is now."""
    found = dict(after)
    for name in ("expected_tokens", "committed_tokens", "expected_s", "taken_s", "planning_s"):
        found[name] = after[name] - before[name]
    found["fixed_s"] = [a - b for a, b in zip(after["fixed_s"], before["fixed_s"], strict=True)]
    depths = zip(after["steps_by_depth"], before["steps_by_depth"], strict=True)
    found["steps_by_depth"] = [a - b for a, b in depths]
    reasons = after["steps_by_reason"].items()
    found["steps_by_reason"] = {name: n - before["steps_by_reason"][name] for name, n in reasons}
    steps = sum(found["steps_by_depth"])
    found["recent"] = after["recent"][-steps:]
    return found


async def measure(demo: Path, rounds: int, names: list[str], out: Path | None) -> None:
    target = {"model": str(demo / "target"), "max_model_len": 4096}
    drafted = {"model": str(demo / "eagle3_1"), "num_speculative_tokens": MOST}
    traffic = Traffic(VllmRenderer(make_demo_arguments(**target)))
    phases = [phase for phase in PHASES if not names or phase.name in names]
    numbers = itertools.count()
    blocks: list[Block] = []
    async with (
        running(**target, speculative_config=None) as plain,
        running(
            **target,
            speculative_config=drafted,
            planning="auto",
            scheduler_cls="benchmarks.regret_engine.cpu_time_scheduler",
        ) as draft,
    ):
        await draft.set_planning("off")
        engines = {"none": plain, "draft": draft}
        began = time.perf_counter()
        for phase in phases:
            for turn in range(rounds):
                requests = traffic.make(phase, numbers)
                order = LANES[turn % len(LANES) :] + LANES[: turn % len(LANES)]
                blocks += [
                    await serve_block(engines, lane, phase, requests, began) for lane in order
                ]
            print_phase(phase.name, blocks)
            await asyncio.to_thread(write, blocks, out)


def write(blocks: list[Block], out: Path | None) -> None:
    if out is not None:
        out.write_text(json.dumps([asdict(block) for block in blocks]))


def print_phase(phase: str, blocks: list[Block]) -> None:
    """Tokens per second over those without a draft: of all blocks, by pairs, their median."""
    mine = [block for block in blocks if block.phase == phase]
    rates = {lane: [b.tokens / b.seconds for b in mine if b.lane == lane] for lane in LANES}
    cells = []
    for lane in LANES:
        pairs = zip(rates[lane], rates["none"], strict=True)
        cells.append(f"{statistics.median(rate / none for rate, none in pairs):.3f}")
    auto = [b.planner for b in mine if b.lane == "auto"]
    depths = [sum(column) for column in zip(*(p["steps_by_depth"] for p in auto), strict=True)]
    reasons = {
        name: sum(p["steps_by_reason"][name] for p in auto) for name in auto[0]["steps_by_reason"]
    }
    expected = sum(p["expected_tokens"] for p in auto)
    committed = sum(p["committed_tokens"] for p in auto)
    seconds = sum(p["expected_s"] for p in auto) / max(1e-9, sum(p["taken_s"] for p in auto))
    planning = sum(p["planning_s"] for p in auto) / max(1, sum(depths)) * 1e6
    none = statistics.median(rates["none"])
    print(
        f"| {phase} | {none:.0f} | " + " | ".join(cells) + f" | {expected / committed:.2f} "
        f"| {seconds:.2f} | {planning:.0f} | {depths} | {reasons} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("demo", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--phases", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    print(
        "| phase | no draft, tokens/s | " + " | ".join(LANES) + " | tokens expected/real "
        "| seconds expected/real | planning us | steps by depth | reasons |"
    )
    asyncio.run(measure(options.demo, options.rounds, options.phases, options.out))


if __name__ == "__main__":
    main()
