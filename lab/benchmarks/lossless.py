"""Greedy text with and without the draft over many prompts, depths and two dtypes.

The target's gap between its two best tokens at the first differing token explains every difference:
it is a near tie that another order of additions may turn, or a fault. Usage: ``python -m
eaglegate.lab.benchmarks.lossless [--prompts 100] [--dtype float32 bfloat16]``
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random

from eaglegate.engine.types import EngineRequest
from eaglegate.engine.vllm_backend.arguments import make_demo_arguments
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from tests.engine.drive import (
    Outcome,
    fix_depth,
    make_greedy,
    run,
    run_all,
    run_engine,
    speculation,
)

MOST = 7
DEPTHS = (0, 1, 2, 3, 5, 7)
TOKENS = 96
STARTS = ("Tell me about", "Count", "Explain", "Write a poem about", "What is", "List", "Repeat:")
THINGS = ("a cat", "rain", "the harbor", "12 plus 30", "Paris", "an old key", "numbers", "Emma")
NEAR_TIE = 0.05
"""Largest gap of a near tie, in nats. Float32 keeps the order of tokens further apart."""


def make_prompts(count: int) -> list[tuple[int, ...]]:
    """Make questions like those of the demo's training, and as many random token sequences."""
    renderer, dice = VllmRenderer(make_demo_arguments()), random.Random(0)
    pairs = itertools.cycle(itertools.product(STARTS, THINGS))
    chats = [
        tuple(renderer.render_chat([{"role": "user", "content": f"{start} {noun}."}], None))
        for start, noun in itertools.islice(pairs, count // 2)
    ]
    random_tokens = [
        tuple(dice.randrange(10, 2000) for _ in range(dice.randint(1, 200)))
        for _ in range(count - len(chats))
    ]
    return chats + random_tokens


async def measure_gap(engine: VllmEngine, request: EngineRequest, position: int) -> float:
    """Return the gap of the target's two best tokens where the texts differ."""
    probe = make_greedy("gap", request.prompt, position + 1, logprobs=2, ignore_eos=True)
    best_token, next_token = (await run(engine, probe)).logprobs[position].top[:2]
    return best_token.logprob - next_token.logprob


def find_parting(outcome: Outcome, reference: Outcome) -> int | None:
    pairs = itertools.zip_longest(outcome.token_ids, reference.token_ids)
    return next(
        (index for index, (token, reference_token) in enumerate(pairs) if token != reference_token),
        None,
    )


async def compare(dtype: str, prompts: list[tuple[int, ...]]) -> None:
    requests = [
        make_greedy(f"p{number}", prompt, TOKENS, ignore_eos=bool(number % 3))
        for number, prompt in enumerate(prompts)
    ]
    async with (
        run_engine(dtype=dtype, speculative_config=None) as plain_engine,
        run_engine(dtype=dtype, speculative_config=speculation(MOST)) as draft_engine,
    ):
        reference = await run_all(plain_engine, requests)
        for batch in (*DEPTHS, None):
            depths = itertools.cycle(DEPTHS if batch is None else (batch,))
            deep_requests = [
                fix_depth(depth, request) for depth, request in zip(depths, requests, strict=False)
            ]
            outcomes = await run_all(draft_engine, deep_requests)
            partings = [find_parting(*pair) for pair in zip(outcomes, reference, strict=True)]
            gaps = [
                await measure_gap(plain_engine, request, position)
                for request, position in zip(requests, partings, strict=True)
                if position is not None
            ]
            faults = sum(distance > NEAR_TIE for distance in gaps)
            name = "mixed" if batch is None else str(batch)
            max_gap = f"{max(gaps):.4f}" if gaps else ""
            print(
                f"| {dtype} | {name} | {len(prompts)} | {len(gaps)} | {max_gap} | {faults} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    options = parser.parse_args()
    prompts = make_prompts(options.prompts)
    print("| dtype | depth | prompts | differ | widest gap | not a near tie |")
    print("|---|---|---|---|---|---|")
    for dtype in options.dtype:
        asyncio.run(compare(dtype, prompts))


if __name__ == "__main__":
    main()
