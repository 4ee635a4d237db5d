"""How often a seed's text changes with the shape of the batch: ties within the logits' rounding.

The noise of a sample is the same in every step, but the bits of logits may depend on how many rows
a matrix product has. Every way of running the same requests is compared with one request at a time
without drafts; an answer counts up to its first other token, for what follows is another text.
Temperature 0 shows the same for greedy text.

    python -m eaglegate.lab.benchmarks.seeds [--requests 96] [--tokens 48] \\
        [--dtypes float32 bfloat16]
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from eaglegate.engine.types import EngineRequest, Sampling
from eaglegate.engine.vllm_backend.arguments import make_demo_arguments
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from eaglegate.lab.benchmarks.drive import at, render, run, run_all, running, speculation

MOST = 7
BATCH = 16
TEMPERATURES = (0.0, 0.7, 1.6)
WAYS: tuple[tuple[str, int, int | None], ...] = (
    ("alone, K=7", 1, MOST),
    ("16 at once, K=0", BATCH, 0),
    ("16 at once, K=3", BATCH, 3),
    ("16 at once, K=7", BATCH, MOST),
    ("16 at once, depths at random", BATCH, None),
)
Texts = list[tuple[int, ...]]


def make_requests(
    prompts: Sequence[tuple[int, ...]], temperature: float, count: int, tokens: int
) -> list[EngineRequest]:
    return [
        EngineRequest(
            f"s{number}",
            prompts[number % len(prompts)],
            Sampling(tokens, temperature=temperature, seed=number, ignore_eos=True),
        )
        for number in range(count)
    ]


async def generate(
    engine: VllmEngine, requests: Sequence[EngineRequest], batch: int, depth: int | None
) -> Texts:
    await engine.set_planning("random" if depth is None else "off")
    texts: Texts = []
    for begin in range(0, len(requests), batch):
        chosen = [at(depth, request) for request in requests[begin : begin + batch]]
        got = [await run(engine, chosen[0])] if batch == 1 else await run_all(engine, chosen)
        texts += [outcome.token_ids for outcome in got]
    await engine.set_planning("off")
    return texts


def compare(texts: Texts, wanted: Texts) -> tuple[int, int]:
    """Answers with another token, and tokens up to the first of those."""
    others = compared = 0
    for text, want in zip(texts, wanted, strict=True):
        same = next((n for n, (a, b) in enumerate(zip(text, want, strict=True)) if a != b), None)
        others += same is not None
        compared += len(want) if same is None else same + 1
    return others, compared


async def measure(dtype: str, count: int, tokens: int) -> None:
    small = {"dtype": dtype, "max_model_len": 1024, "kv_cache_memory_bytes": 64 << 20}
    prompts = render(VllmRenderer(make_demo_arguments(**small)))
    async with running(**small, speculative_config=speculation(MOST)) as engine:
        for temperature in TEMPERATURES:
            requests = make_requests(prompts, temperature, count, tokens)
            wanted = await generate(engine, requests, 1, 0)
            for name, batch, depth in WAYS:
                texts = await generate(engine, requests, batch, depth)
                others, compared = compare(texts, wanted)
                rate = 1e4 * others / compared
                print(
                    f"| {dtype} | {temperature} | {name} | {others} of {count} | {rate:.1f} |",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    options = parser.parse_args()
    print("| dtype | temperature | | answers that differ | ties per 10,000 tokens |")
    for dtype in options.dtypes:
        asyncio.run(measure(dtype, options.requests, options.tokens))


if __name__ == "__main__":
    main()
