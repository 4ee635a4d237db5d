"""Regret of the depth planner on real engines: fixed depths, no draft and auto take turns.

Two engines run: one without a draft, one with K = 7. Every phase is split into blocks of some
seconds, and every lane serves each block, so that a disturbance of the machine affects all lanes.
Each client sends one request after another, all of one kind, so that a batch stays mixed to its
end. The lane ``right`` gives each request the best fixed depth of its kind. Time is the CPU time of
the engine's process, which has one thread, because other programs may use the machine. Needs the
cost-scaled demo, on which a draft can pay:

    python -m eaglegate.lab.training.cost_scaled --identity-layers 32 --out DIR
    python -m eaglegate.lab.benchmarks.regret_engine DIR [--rounds 2] [--block-s 4] \\
        [--lanes none auto]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from eaglegate.engine.steps import read_steps
from eaglegate.engine.types import EngineRequest, Sampling
from eaglegate.engine.vllm_backend.arguments import make_demo_arguments
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from eaglegate.engine.vllm_backend.scheduler import DepthSchedulerBase, scheduler
from eaglegate.lab.benchmarks.wire import clock_of
from eaglegate.lab.training.evaluation_set import make_long_cases
from tests.engine.drive import run_engine

MOST = 7
FIXED = (0, 1, 3, 5, 7)
LANES = ("none", *(f"K={depth}" for depth in FIXED), "right", "auto")
RIGHT = {"friendly": 7, "long": 7, "hostile": 0, "unseeded": 0}
"""Best fixed depth of each kind."""
TOKENS = 64
LONG_TOKENS = 256
"""Tokens of an answer after a long prompt, so that not only the prompt is timed."""
KV_BYTES = 3 << 30
VOCABULARY = 2000
"""Number of tokens from which a hostile prompt is drawn."""
Maker = Callable[[int], EngineRequest]


@dataclass(frozen=True)
class Phase:
    """Phase with ``batch`` clients, which take the ``kinds`` in turn."""

    name: str
    kinds: tuple[str, ...]
    batch: int


PHASES = (
    Phase("friendly 1", ("friendly",), 1),
    Phase("friendly 4", ("friendly",), 4),
    Phase("hostile 4", ("hostile",), 4),
    Phase("long context 4", ("long",), 4),
    Phase("burst 1", ("friendly",), 1),
    Phase("burst 16", ("friendly",), 16),
    Phase("burst 1 again", ("friendly",), 1),
    Phase("mixed 8", ("friendly", "hostile"), 8),
    Phase("hostile 16", ("hostile",), 16),
    Phase("friendly at last", ("friendly",), 4),
    Phase("hostile 1", ("hostile",), 1),
    Phase("hostile 1 without seeds", ("unseeded",), 1),
    Phase("hostile 4 without seeds", ("unseeded",), 4),
    Phase("hostile 16 without seeds", ("unseeded",), 16),
)
THINGS = ("cat", "key", "river", "king", "garden", "bird", "ship", "clock", "mountain", "baker")


@dataclass
class Block:
    """Figures of one lane's block. ``arrivals`` are seconds since its beginning, and tokens."""

    phase: str
    lane: str
    seconds: float
    """CPU time of the engine's process, including prompts."""
    wall_s: float
    tokens: int
    began: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    tokens_by_kind: dict[str, int] = field(default_factory=dict)
    planner: dict[str, Any] = field(default_factory=dict)


class Traffic:
    """Requests by kind and number. Equal numbers give equal requests."""

    def __init__(self, renderer: VllmRenderer) -> None:
        pairs = itertools.permutations(THINGS, 2)
        self._stories = [f"Tell me a short story about a {a} and a {b}." for a, b in pairs]
        self._renderer = renderer
        self._history = [
            c.conversation.messages[:-1] for c in make_long_cases(6, 2, renderer.tokenizer)
        ]
        self._makers: dict[str, Maker] = {
            "friendly": self._make_friendly,
            "long": self._make_long,
            "hostile": _make_hostile,
            "unseeded": _make_unseeded,
        }

    def make(self, phase: Phase, block: int, client: int) -> Iterator[tuple[str, EngineRequest]]:
        """Yield the requests of a client, which are the same for every lane."""
        kind = phase.kinds[client % len(phase.kinds)]
        for number in itertools.count():
            yield kind, self.make_kind(kind, (block * 100 + client) * 100 + number)

    def make_kind(self, kind: str, number: int) -> EngineRequest:
        return self._makers[kind](number)

    def _make_friendly(self, number: int) -> EngineRequest:
        return self._tell(f"f{number}", number, [], TOKENS)

    def _make_long(self, number: int) -> EngineRequest:
        history = self._history[number % len(self._history)]
        return self._tell(f"l{number}", number, history, LONG_TOKENS)

    def _tell(
        self, name: str, number: int, history: list[dict[str, Any]], tokens: int
    ) -> EngineRequest:
        question = {"role": "user", "content": self._stories[number % len(self._stories)]}
        prompt = tuple(self._renderer.render_chat([*history, question], None))
        return EngineRequest(name, prompt, Sampling(tokens, temperature=0.0))


def _make_hostile(number: int) -> EngineRequest:
    draw = random.Random(number)
    prompt = tuple(draw.randrange(20, VOCABULARY) for _ in range(40))
    sampling = Sampling(TOKENS, temperature=1.6, seed=number, ignore_eos=True)
    return EngineRequest(f"h{number}", prompt, sampling)


def _make_unseeded(number: int) -> EngineRequest:
    request = _make_hostile(number)
    return replace(request, id=f"u{number}", sampling=replace(request.sampling, seed=None))


def describe_target(demo: Path) -> dict[str, Any]:
    """Return the target's arguments, with prefix-cache room for the long prompts."""
    folder = str(demo / "target")
    return {"model": folder, "max_model_len": 4096, "kv_cache_memory_bytes": KV_BYTES}


def cpu_time_scheduler(*args: Any, **kwargs: Any) -> DepthSchedulerBase:
    """Make a scheduler whose planner learns CPU time. ``scheduler_cls`` names this function."""
    depth_scheduler = scheduler(*args, **kwargs)
    depth_scheduler.planning.clock = time.process_time
    return depth_scheduler


async def serve(
    engine: VllmEngine,
    supply: Sequence[Iterator[tuple[str, EngineRequest]]],
    block_s: float,
    block: Block,
) -> None:
    """Run a closed loop of clients for ``block_s`` seconds of the engine's CPU time."""
    (process,) = engine._processes
    clock = clock_of(process.pid)
    start, start_s = time.perf_counter(), time.clock_gettime(clock)
    counts = block.tokens_by_kind

    async def send(requests: Iterator[tuple[str, EngineRequest]]) -> None:
        for kind, request in requests:
            async for step in read_steps(engine.generate, request):
                block.arrivals.append((time.perf_counter() - start, len(step.token_ids)))
                counts[kind] = counts.get(kind, 0) + len(step.token_ids)

    clients = [asyncio.create_task(send(requests)) for requests in supply]
    while (seconds := time.clock_gettime(clock) - start_s) < block_s:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    block.seconds, block.wall_s = seconds, time.perf_counter() - start
    block.tokens = sum(counts.values())
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)


async def serve_block(
    engines: dict[str, VllmEngine], traffic: Traffic, lane: str, number: int, block: Block, s: float
) -> None:
    engine = engines["none" if lane == "none" else "draft"]
    phase = next(item for item in PHASES if item.name == block.phase)
    if lane == "auto":
        await engine.set_planning("auto")
        start_planning = await engine.describe_planning(512)
    supply = [
        (
            (kind, route(request, lane, kind))
            for kind, request in traffic.make(phase, number, client)
        )
        for client in range(phase.batch)
    ]
    await serve(engine, supply, s, block)
    if lane == "auto":
        block.planner = subtract(await engine.describe_planning(512), start_planning)
        await engine.set_planning("off")


def route(request: EngineRequest, lane: str, kind: str) -> EngineRequest:
    """Give each kind its own workload and tenant."""
    fixed_depth = int(lane[2:]) if lane.startswith("K=") else None
    depth = RIGHT[kind] if lane == "right" else fixed_depth
    name = f"{request.id}@{lane}"
    return replace(request, id=name, depth=depth, cache_salt=lane, workload=kind, tenant=kind)


def subtract(end: dict[str, Any], start: dict[str, Any]) -> dict[str, Any]:
    """Return sums since ``start``, and everything else from ``end``."""
    difference = dict(end)
    for name in ("expected_tokens", "committed_tokens", "expected_s", "taken_s", "planning_s"):
        difference[name] = end[name] - start[name]
    difference["fixed_s"] = [a - b for a, b in zip(end["fixed_s"], start["fixed_s"], strict=True)]
    depths = zip(end["steps_by_depth"], start["steps_by_depth"], strict=True)
    difference["steps_by_depth"] = [a - b for a, b in depths]
    reasons = end["steps_by_reason"].items()
    difference["steps_by_reason"] = {
        name: n - start["steps_by_reason"][name] for name, n in reasons
    }
    steps = sum(difference["steps_by_depth"])
    difference["recent"] = end["recent"][-steps:]
    return difference


async def measure(options: argparse.Namespace) -> None:
    demo, lanes, out = options.demo, options.lanes, options.out
    target = describe_target(demo)
    draft_config = {"model": str(demo / "eagle3_1"), "num_speculative_tokens": MOST}
    traffic = Traffic(VllmRenderer(make_demo_arguments(**target)))
    phases = [phase for phase in PHASES if not options.phases or phase.name in options.phases]
    numbers = itertools.count()
    blocks: list[Block] = []
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
        engines = {"none": plain_engine, "draft": draft}
        start = time.perf_counter()
        for phase in phases:
            for turn in range(options.rounds):
                number = next(numbers)
                for lane in lanes[turn % len(lanes) :] + lanes[: turn % len(lanes)]:
                    block = Block(phase.name, lane, 0.0, 0.0, 0, time.perf_counter() - start)
                    await serve_block(engines, traffic, lane, number, block, options.block_s)
                    blocks.append(block)
            print_phase(phase.name, lanes, blocks)
            await asyncio.to_thread(write, blocks, out)


def write(blocks: list[Block], out: Path | None) -> None:
    if out is not None:
        out.write_text(json.dumps([asdict(block) for block in blocks]))


def print_phase(phase: str, lanes: Sequence[str], blocks: list[Block]) -> None:
    """Print tokens per second over those without a draft: in total, by pairs, and their median."""
    phase_blocks = [block for block in blocks if block.phase == phase]
    rates = {lane: [b.tokens / b.seconds for b in phase_blocks if b.lane == lane] for lane in lanes}
    ratios = {
        lane: [
            rate / max(base_rate, 1e-9)
            for rate, base_rate in zip(rates[lane], rates["none"], strict=True)
        ]
        for lane in lanes
    }
    cells = [f"{statistics.median(ratios[lane]):.3f}" for lane in lanes]
    auto = [b.planner for b in phase_blocks if b.lane == "auto"]
    depths = [sum(column) for column in zip(*(p["steps_by_depth"] for p in auto), strict=True)]
    reasons = {
        name: sum(p["steps_by_reason"][name] for p in auto) for name in auto[0]["steps_by_reason"]
    }
    expected_tokens = sum(p["expected_tokens"] for p in auto)
    committed_tokens = max(1, sum(p["committed_tokens"] for p in auto))
    seconds = sum(p["expected_s"] for p in auto) / max(1e-9, sum(p["taken_s"] for p in auto))
    planning = sum(p["planning_s"] for p in auto) / max(1, sum(depths)) * 1e6
    base_rate = statistics.median(rates["none"])
    print(
        f"| {phase} | {base_rate:.0f} | " + " | ".join(cells) + f" | {min(ratios['auto']):.3f} "
        f"| {max(map(count_recovery, auto))} | {compare_kinds(phase_blocks)} "
        f"| {expected_tokens / max(1, committed_tokens):.2f} "
        f"| {seconds:.2f} | {planning:.0f} | {depths} | {reasons} |",
        flush=True,
    )


def count_recovery(planner: dict[str, Any]) -> int:
    """Return the steps of a block until twenty reach 0.95 of the rate of its later half."""
    rows = [(step["seconds"], step["tokens"]) for step in planner["recent"]]
    half = rows[len(rows) // 2 :]
    target = 0.95 * sum(t for _, t in half) / max(1e-9, sum(s for s, _ in half))
    for start in range(len(rows) - 20):
        window = rows[start : start + 20]
        if sum(t for _, t in window) >= target * sum(s for s, _ in window):
            return start
    return len(rows)


def compare_kinds(blocks: list[Block]) -> dict[str, float]:
    """Return each kind's tokens per second with the planner, over the right depths if run."""
    ratios: dict[str, list[float]] = {}
    auto_blocks, right_blocks = (
        [b for b in blocks if b.lane == lane] for lane in ("auto", "right")
    )
    for block_auto, block_right in zip(auto_blocks, right_blocks, strict=bool(right_blocks)):
        for kind in block_auto.tokens_by_kind.keys() & block_right.tokens_by_kind.keys():
            rates = [
                block.tokens_by_kind[kind] / block.seconds for block in (block_auto, block_right)
            ]
            ratios.setdefault(kind, []).append(rates[0] / rates[1])
    return {kind: round(statistics.median(rates), 3) for kind, rates in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("demo", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--block-s", type=float, default=4.0, help="length of a block, in CPU seconds of the engine"
    )
    parser.add_argument("--phases", nargs="*", default=[])
    parser.add_argument(
        "--lanes",
        nargs="*",
        choices=LANES,
        default=LANES,
        help="lanes to compare; include none and auto",
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    print(
        "| phase | no draft, tokens/s | " + " | ".join(options.lanes) + " | auto, worst block "
        "| recovery, steps | auto over right, by kind | tokens expected/real "
        "| seconds expected/real | planning us | steps by depth | reasons |"
    )
    asyncio.run(measure(options))


if __name__ == "__main__":
    main()
