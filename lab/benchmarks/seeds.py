"""Comparison of seeded text between ways of generating it, and the frequency of rounding ties.

It uses 200 prompts of 8 to 700 tokens at each temperature. The reference is an engine without a
draft that reads each prompt whole, 16 requests at once. Every row of the table is another way to
the same text: a depth, the planner, no draft, one request at a time, prompts read in chunks of 128
tokens, a draft exchanged in mid-stream, and an engine killed in mid-stream.

The noise of a sample is the same in every step, but the last bits of logits may depend on the
number of rows in a matrix product. If two tokens are closer than that rounding, either may be
written: a *tie*. Each answer counts up to its first different token, because the rest follows from
it. Any other difference is a *fault*. Margins are in nats, including temperature and noise
(``eaglegate.lab.prove.texts``).

    python -m eaglegate.lab.benchmarks.seeds [--prompts 200] [--tokens 16] [--batches 1 16]
        [--dtypes float32 bfloat16] [--temperatures 0.7 1.6]
        [--ways whole chunked exchange kill] [--depths 0 1 3 7 auto random]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import signal
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from msgspec import structs

from eaglegate.engine.steps import read_steps
from eaglegate.engine.supervision.supervisor import SupervisedEngine
from eaglegate.engine.types import EngineRequest, Sampling, StepSink
from eaglegate.engine.vllm_backend.arguments import DEMO, make_demo_arguments
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.position_noise import draw_noise
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from eaglegate.lab.prove.lane import ProofAnswer
from eaglegate.lab.prove.texts import Difference, Kind, compare
from tests.engine.draft_copies import make_noise
from tests.engine.drive import (
    QUESTIONS,
    fix_depth,
    render,
    run,
    run_all,
    run_engine,
    speculation,
)

MOST = 7
BATCH = 16
CROWD = 100
"""Number of running requests when a draft is exchanged or an engine is killed."""
CHUNK = BATCH * (MOST + 1)
"""Prompt tokens of a step if prompts are read in chunks."""
VOCABULARY = 2048
THINGS = ("cat", "key", "river", "king", "garden", "bird", "ship", "clock", "mountain", "baker")
DEPTHS: tuple[int | str, ...] = (0, 1, 3, MOST, "auto", "random")
WAYS = ("whole", "chunked", "exchange", "kill")
Texts = list[tuple[int, ...]]
Answer = Callable[[list[EngineRequest]], Awaitable[Texts]]


class Generates(Protocol):
    """Engine, supervised or not."""

    async def generate(self, request: EngineRequest, sink: StepSink) -> None: ...


@dataclass
class Way:
    """Comparison of one way's answers with the reference."""

    answers: int = 0
    tokens: int = 0
    differences: list[Difference] = field(default_factory=list)

    def count(self, kind: Kind) -> int:
        return sum(difference.kind is kind for difference in self.differences)

    def describe(self) -> str:
        faults = len(self.differences) - self.count(Kind.TIE)
        margins = [
            abs(difference.margin)
            for difference in self.differences
            if difference.margin is not None
        ]
        max_margin = f"{max(margins):.4f}" if margins else ""
        rate = 1e4 * self.count(Kind.TIE) / max(1, self.tokens)
        return f"{self.answers} | {faults} | {self.count(Kind.TIE)} | {rate:.2f} | {max_margin}"


def make_prompts(renderer: VllmRenderer, count: int) -> Texts:
    """Make stories, questions, questions after long texts, and random tokens, all different."""
    pairs = itertools.permutations(THINGS, 2)
    stories = render(renderer, [f"Tell me a short story about a {a} and a {b}." for a, b in pairs])
    questions = render(renderer, QUESTIONS)
    draw = random.Random(0)

    def make_prompt(number: int) -> tuple[int, ...]:
        kind, index = number % 4, number // 4
        if kind == 0:
            return stories[index % len(stories)] + stories[index // len(stories)][:index]
        if kind == 1:
            return (*draw.sample(range(20, VOCABULARY - 48), 8), *questions[index % 6])
        if kind == 2:
            words = itertools.chain.from_iterable(stories[index % 40 :])
            return (*itertools.islice(words, 150 + 11 * index), *questions[index % 6])
        return tuple(draw.randrange(20, VOCABULARY - 48) for _ in range(8 + 2 * index))

    return [make_prompt(number) for number in range(count)]


def make_requests(prompts: Texts, temperature: float, tokens: int) -> list[EngineRequest]:
    return [
        EngineRequest(
            f"s{number}",
            prompt,
            Sampling(tokens, temperature=temperature, seed=number, ignore_eos=True),
        )
        for number, prompt in enumerate(prompts)
    ]


def configure(dtype: str, chunked: bool) -> dict[str, Any]:
    """Configure an engine without a prefix cache: every prompt is read in every way."""
    return {
        "dtype": dtype,
        "max_model_len": 1024,
        "max_num_seqs": BATCH if chunked else CROWD,
        "max_num_batched_tokens": CHUNK if chunked else 32768,
        "kv_cache_memory_bytes": 512 << 20,
        "enable_prefix_caching": False,
        "max_logprobs": VOCABULARY,
    }


async def generate(
    engine: VllmEngine, requests: Sequence[EngineRequest], batch: int, depth: int | str | None
) -> Texts:
    """Generate in groups of ``batch``. ``depth`` is a planning mode or every request's depth."""
    mode = depth if isinstance(depth, str) else "off"
    fixed_depth = depth if isinstance(depth, int) else None
    if await engine.set_planning(mode) != mode:
        raise RuntimeError(f"the engine does not plan: {mode}")
    texts: Texts = []
    for start in range(0, len(requests), batch):
        group = [fix_depth(fixed_depth, request) for request in requests[start : start + batch]]
        texts += [outcome.token_ids for outcome in await run_all(engine, group)]
    await engine.set_planning("off")
    return texts


async def disturb(
    engine: Generates, requests: Sequence[EngineRequest], act: Callable[[], Awaitable[None]]
) -> tuple[Texts, int]:
    """Call ``act`` once each request has a token. Return the texts and the continued streams."""
    starts = [asyncio.Event() for _ in requests]

    async def follow(request: EngineRequest, event: asyncio.Event) -> tuple[int, ...]:
        tokens: list[int] = []
        async with aclosing(read_steps(engine.generate, request)) as steps:
            async for step in steps:
                tokens += step.token_ids
                event.set()
        return tuple(tokens)

    pairs = zip(requests, starts, strict=True)
    streams = [asyncio.create_task(follow(request, event)) for request, event in pairs]
    await asyncio.gather(*(event.wait() for event in starts))
    await act()
    num_continued = sum(not stream.done() for stream in streams)
    return list(await asyncio.gather(*streams)), num_continued


class Comparison:
    """Reference texts of one data type, on an engine that keeps running, and a table of ways."""

    def __init__(
        self, dtype: str, engine: VllmEngine, requests: dict[float, list[EngineRequest]]
    ) -> None:
        self.dtype, self.requests = dtype, requests
        self._engine = engine
        self._texts: dict[float, Texts] = {}
        self._references: dict[str, ProofAnswer] = {}

    async def write_reference(self) -> None:
        for temperature, requests in self.requests.items():
            self._texts[temperature] = await generate(self._engine, requests, BATCH, None)

    async def add(
        self, name: str, answer: Callable[[list[EngineRequest]], Awaitable[Texts]]
    ) -> None:
        """Print a row for each temperature."""
        for temperature, requests in self.requests.items():
            texts = await answer(requests)
            way = await self._compare(requests, texts, self._texts[temperature])
            print(f"| {self.dtype} | {temperature} | {name} | {way.describe()} |", flush=True)

    async def _compare(
        self, requests: list[EngineRequest], texts: Texts, reference_texts: Texts
    ) -> Way:
        way = Way()
        for request, text, reference_text in zip(requests, texts, reference_texts, strict=True):
            way.answers += 1
            way.tokens += len(reference_text)
            if text == reference_text:
                continue
            reference = await self._explain(request, reference_text)
            answer = replace(reference, token_ids=text)
            difference = compare(reference, answer, self.dtype, draw_noise)
            assert difference is not None
            way.tokens += difference.token + 1 - len(reference_text)
            way.differences.append(difference)
        return way

    async def _explain(self, request: EngineRequest, text: tuple[int, ...]) -> ProofAnswer:
        """Return the reference answer with the log probability of every token."""
        name = f"{request.id}/{request.sampling.temperature}"
        if name not in self._references:
            logprob_request = structs.replace(
                request, sampling=structs.replace(request.sampling, logprobs=VOCABULARY)
            )
            outcome = await run(
                self._engine, structs.replace(logprob_request, id=f"{name}/logprobs")
            )
            if outcome.token_ids != text:
                raise RuntimeError(f"{name}: the reference does not repeat")
            self._references[name] = ProofAnswer(
                request, outcome.token_ids, outcome.logprobs, outcome.account, 0.0, 0.0
            )
        return self._references[name]


async def add_plain(
    table: Comparison, engine: VllmEngine, prefill: str, batches: Sequence[int]
) -> None:
    for batch in batches:

        async def answer(requests: list[EngineRequest], batch: int = batch) -> Texts:
            return await generate(engine, requests, batch, None)

        await table.add(f"no draft, batch {batch}, {prefill}", answer)


async def add_depths(
    table: Comparison,
    engine: VllmEngine,
    prefill: str,
    batches: Sequence[int],
    depths: Sequence[int | str],
) -> None:
    for depth, batch in itertools.product(depths, batches):

        async def answer(
            requests: list[EngineRequest], depth: int | str = depth, batch: int = batch
        ) -> Texts:
            return await generate(engine, requests, batch, depth)

        name = depth if isinstance(depth, str) else f"K={depth}"
        await table.add(f"{name}, batch {batch}, {prefill}", answer)


async def add_exchange(table: Comparison, engine: VllmEngine, folder: Path) -> None:
    """Exchange the demo's draft for one of noise, and back for the next requests."""
    drafts = itertools.cycle((str(DEMO / "eagle3_1"), str(make_noise(folder / "noise"))))
    draft = next(drafts)

    async def exchange() -> None:
        nonlocal draft
        last_draft, draft = draft, next(drafts)
        await engine.swap_draft(draft, last_draft)

    async def answer(requests: list[EngineRequest]) -> Texts:
        return await answer_disturbed(engine, requests, exchange)

    await engine.set_planning("auto")
    await table.add("auto, draft exchanged in mid-stream", answer)
    await engine.set_planning("off")
    if draft != str(DEMO / "eagle3_1"):
        await exchange()


async def add_kill(table: Comparison, dtype: str) -> None:
    engines: list[VllmEngine] = []

    def make_engine() -> VllmEngine:
        arguments = make_demo_arguments(
            **configure(dtype, chunked=False), speculative_config=speculation(MOST)
        )
        engines.append(VllmEngine(arguments, planning="auto"))
        return engines[-1]

    async def kill() -> None:
        for process in engines[-1]._processes:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)

    supervised = SupervisedEngine(make_engine)
    await supervised.start()

    async def answer(requests: list[EngineRequest]) -> Texts:
        return await answer_disturbed(supervised, requests, kill)

    try:
        await table.add("auto, engine killed in mid-stream", answer)
    finally:
        await supervised.aclose()
    print(f"({len(engines)} engines)", flush=True)


async def answer_disturbed(
    engine: Generates, requests: list[EngineRequest], act: Callable[[], Awaitable[None]]
) -> Texts:
    """Generate in crowds, and print how many streams continued after ``act``."""
    texts: Texts = []
    num_continued = 0
    for start in range(0, len(requests), CROWD):
        group_texts, count = await disturb(engine, requests[start : start + CROWD], act)
        texts += group_texts
        num_continued += count
    print(f"({num_continued} of {len(requests)} streams continued)", flush=True)
    return texts


async def measure(dtype: str, options: argparse.Namespace) -> None:
    prompts = make_prompts(VllmRenderer(make_demo_arguments()), options.prompts)
    requests = {t: make_requests(prompts, t, options.tokens) for t in options.temperatures}
    whole_settings, chunked_settings = (
        configure(dtype, chunked=False),
        configure(dtype, chunked=True),
    )
    async with run_engine(**whole_settings, speculative_config=None) as engine:
        table = Comparison(dtype, engine, requests)
        await table.write_reference()
        if "whole" in options.ways:
            await add_plain(table, engine, "whole", options.batches)
        if "kill" in options.ways:
            await add_kill(table, dtype)
        if {"whole", "exchange"} & set(options.ways):
            async with run_engine(
                **whole_settings, speculative_config=speculation(MOST)
            ) as draft_engine:
                if "exchange" in options.ways:
                    with tempfile.TemporaryDirectory() as folder:
                        await add_exchange(table, draft_engine, Path(folder))
                if "whole" in options.ways:
                    await add_depths(table, draft_engine, "whole", options.batches, options.depths)
        if "chunked" in options.ways:
            async with run_engine(**chunked_settings, speculative_config=None) as draft_engine:
                await add_plain(table, draft_engine, "chunked", options.batches)
            async with run_engine(
                **chunked_settings, speculative_config=speculation(MOST)
            ) as draft_engine:
                await add_depths(table, draft_engine, "chunked", options.batches, options.depths)


def read_depth(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--temperatures", type=float, nargs="*", default=[0.7, 1.6])
    parser.add_argument("--batches", type=int, nargs="*", default=[1, BATCH])
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=WAYS)
    parser.add_argument("--depths", nargs="*", type=read_depth, choices=DEPTHS, default=DEPTHS)
    options = parser.parse_args()
    print("| dtype | temperature | way | answers | faults | ties | per 10,000 tokens | margin |")
    print("|---" * 8 + "|")
    for dtype in options.dtypes:
        asyncio.run(measure(dtype, options))


if __name__ == "__main__":
    main()
