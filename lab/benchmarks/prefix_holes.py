"""Does a request at depth 0 hurt a later one that speculates from the same prefix?

Each way to treat the draft's KV cache at depth 0 gets an engine. Two cases, each against the same
requests on a prefix that was computed at full depth:

* prompt: a long prompt is first served at depth 0, then continued at full depth;
* answer: a long answer is generated at depth 0, then the conversation goes on at full depth.

Usage: ``python -m eaglegate.lab.benchmarks.prefix_holes [--rounds 6]``
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from typing import Any

from eaglegate.engine.speculation.totals import Totals
from eaglegate.engine.types import EngineRequest
from eaglegate.engine.vllm_backend.arguments import DEMO_DEPTH, make_demo_arguments
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from eaglegate.engine.vllm_backend.translate import read_decode_step
from eaglegate.engine.vllm_contract import SCHEDULER
from eaglegate.lab.benchmarks.drive import QUESTIONS, Outcome, at, greedy, run, running, speculation

WAYS = {
    "ours": SCHEDULER,
    "publish all": "eaglegate.lab.benchmarks.hole_schedulers.PublishAll",
    "skip all, publish all": "eaglegate.lab.benchmarks.hole_schedulers.SkipAll",
    "skip nothing": "eaglegate.lab.benchmarks.hole_schedulers.SkipNothing",
}
BLOCK = 32
ANSWER_TOKENS = 64


def salted(request: EngineRequest, salt: str) -> EngineRequest:
    """Requests share a prefix cache only with those of the same salt."""
    return replace(request, id=f"{request.id}/{salt}", cache_salt=salt)


async def conversation(
    engine: VllmEngine, renderer: VllmRenderer, start: int, depth: int | None, salt: str
) -> tuple[tuple[int, ...], Outcome]:
    """Five turns of questions and answers; the last prompt and what the last answer cost."""
    messages: list[dict[str, Any]] = []
    for turn in range(5):
        messages.append({"role": "user", "content": QUESTIONS[(start + turn) % len(QUESTIONS)]})
        prompt = tuple(renderer.render_chat(messages, None))
        last = DEMO_DEPTH if turn == 4 else depth
        request = salted(at(last, greedy(f"{start}-{turn}", prompt, 120)), salt)
        outcome = await run(engine, request)
        text = renderer.decode([token for token in outcome.token_ids if token != 3])
        messages.append({"role": "assistant", "content": text})
    return prompt, outcome


async def measure_prompt(
    engine: VllmEngine, prompt: tuple[int, ...], number: int, first: int
) -> Outcome:
    request = greedy(f"p{number}", prompt, ANSWER_TOKENS, ignore_eos=True)
    await run(engine, salted(at(first, replace(request, id=f"first{number}")), f"{first}"))
    return await run(engine, salted(at(DEMO_DEPTH, request), f"{first}"))


def sums(outcomes: list[Outcome]) -> str:
    totals = sum((outcome.totals for outcome in outcomes), Totals())
    cached = sum(outcome.cached_tokens for outcome in outcomes)
    return f"{totals.acceptance_length or 0:.3f} | {cached}"


async def measure(rounds: int, ways: list[str]) -> None:
    renderer = VllmRenderer(make_demo_arguments())
    print("| way | prefix | prompt: acceptance length | cached | answer: length | cached |")
    print("|---|---|---|---|---|---|")
    for way in ways:
        chosen = {"block_size": BLOCK, "scheduler_cls": WAYS[way]}
        async with running(**chosen, speculative_config=speculation(DEMO_DEPTH)) as engine:
            assert engine._outputs is not None
            engine._outputs._read = read_decode_step
            for first in (DEMO_DEPTH, 0):
                answers = [
                    await conversation(engine, renderer, start, first, f"talk-{first}-{start}")
                    for start in range(rounds)
                ]
                prompts = [
                    await measure_prompt(engine, prompt, number, first)
                    for number, (prompt, _) in enumerate(answers)
                ]
                told = [outcome for _, outcome in answers]
                print(f"| {way} | at depth {first} | {sums(prompts)} | {sums(told)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    options = parser.parse_args()
    asyncio.run(measure(options.rounds, options.ways))


if __name__ == "__main__":
    main()
