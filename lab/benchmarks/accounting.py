"""The account of many mixed requests against the engine's own counters, individually and in total.

The requests mix depths, limits, temperatures, seeds, stop tokens, constraints, log probabilities
and clients that leave. Usage: ``python -m eaglegate.lab.benchmarks.accounting [--requests 1000]
[--at-once 32]``
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from dataclasses import dataclass, field

from prometheus_client import REGISTRY

from eaglegate.engine.totals import Totals
from eaglegate.engine.types import Constraint, EngineRequest, Sampling
from eaglegate.engine.vllm_backend.arguments import DEMO_DEPTH, make_demo_arguments
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from tests.engine.drive import Outcome, render, run, run_engine, speculation

COUNTERS = {
    "verify_steps": "vllm:spec_decode_num_drafts_total",
    "proposed": "vllm:spec_decode_num_draft_tokens_total",
    "accepted": "vllm:spec_decode_num_accepted_tokens_total",
}
CONSTRAINTS = (
    Constraint("regex", r"[a-z ]{5,40}"),
    Constraint("choice", choices=("yes", "no", "perhaps later")),
    Constraint("json_schema", '{"type": "object", "properties": {"n": {"type": "integer"}}}'),
)


@dataclass
class Tally:
    """Totals of all requests. ``mismatches`` names every request whose account does not add up."""

    totals: Totals = field(default_factory=Totals)
    mismatches: list[str] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)

    def add(self, request: EngineRequest, outcome: Outcome, has_left: bool) -> None:
        totals = outcome.totals
        identity = totals.accepted + totals.decode_steps - totals.lost_bonus
        if totals.imbalance or identity != totals.tokens - totals.first_tokens:
            self.mismatches.append(request.id)
        if totals.tokens != len(outcome.token_ids):
            self.mismatches.append(request.id)
        if request.depth is not None and len(totals.proposed_at) > request.depth:
            self.mismatches.append(request.id)
        ending = "left" if has_left else str(outcome.finish)
        self.ends[ending] = self.ends.get(ending, 0) + 1
        self.totals += totals


def draw_mixed(number: int, prompts: list[tuple[int, ...]], dice: random.Random) -> EngineRequest:
    sampling = Sampling(
        max_tokens=dice.randint(1, 80),
        temperature=dice.choice((0.0, 0.0, 0.7, 1.0)),
        top_k=dice.choice((0, 0, 20)),
        seed=dice.choice((None, number)),
        stop_token_ids=tuple(dice.sample(range(200, 2000), dice.choice((0, 0, 60)))),
        ignore_eos=dice.random() < 0.2,
        logprobs=dice.choice((None, None, 2)),
        presence_penalty=dice.choice((0.0, 0.0, 0.5)),
    )
    return EngineRequest(
        id=f"mixed-{number}",
        prompt=dice.choice(prompts),
        sampling=sampling,
        constraint=dice.choice(CONSTRAINTS) if dice.random() < 0.1 else None,
        depth=dice.choice((None, 0, 1, 2, DEMO_DEPTH)),
    )


def count_drafts() -> dict[str, float]:
    labels = {"model_name": "demo", "engine": "0"}
    return {
        name: REGISTRY.get_sample_value(counter, labels) or 0.0
        for name, counter in COUNTERS.items()
    }


async def drive(engine: VllmEngine, requests: int, concurrency: int, seed: int) -> Tally:
    dice = random.Random(seed)
    prompts = render(VllmRenderer(make_demo_arguments()))
    tally = Tally()
    room = asyncio.Semaphore(concurrency)

    async def send(request: EngineRequest, leave_after: int) -> None:
        async with room:
            outcome = await run(engine, request, leave_after)
        tally.add(request, outcome, has_left=bool(leave_after) and outcome.finish is None)

    jobs = [
        (draw_mixed(number, prompts, dice), dice.choice((0, 0, 0, 0, dice.randint(1, 20))))
        for number in range(requests)
    ]
    await asyncio.gather(*(send(request, leave_after) for request, leave_after in jobs))
    return tally


async def measure(requests: int, concurrency: int, seed: int) -> None:
    async with run_engine(speculative_config=speculation(DEMO_DEPTH)) as engine:
        start_counts, start = count_drafts(), time.perf_counter()
        tally = await drive(engine, requests, concurrency, seed)
        took_s = time.perf_counter() - start
        outcome = await run(engine, EngineRequest("quiet", (5, 6), Sampling(max_tokens=1)))
        assert outcome.token_ids
        end_counts = count_drafts()
        totals = tally.totals + engine.unclaimed
    print(f"{requests} requests in {took_s:.1f} s: {tally.ends}, {totals.tokens} tokens")
    print(f"accounts that do not add up: {len(tally.mismatches)} {tally.mismatches[:5]}")
    print(f"{tally.totals}\nunclaimed: {engine.unclaimed}")
    for name, value in end_counts.items():
        account = getattr(totals, name) + (totals.cut if name == "accepted" else 0)
        print(f"{name}: ours {account}, the engine's counter {value - start_counts[name]:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    asyncio.run(measure(options.requests, options.at_once, options.seed))


if __name__ == "__main__":
    main()
