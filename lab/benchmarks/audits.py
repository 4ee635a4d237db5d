"""Outcomes of audits on clean answers, and the cost of audits.

``python -m eaglegate.lab.benchmarks.audits clean`` generates answers of every kind with the demo
model and its draft, scores all of them, and counts the outcomes. With ``--adapters``, two thirds of
the answers are those of two LoRA adapters. ``... cost`` serves laps with and without audits in
turns, and prints the ratio of their tokens per second.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from msgspec.structs import replace

from eaglegate.engine.base import Engine
from eaglegate.engine.speculation.rounding import find_tie
from eaglegate.engine.speculation.scores import AnswerScores
from eaglegate.engine.steps import read_steps
from eaglegate.engine.types import EngineRequest, Sampling
from eaglegate.engine.vllm_backend.arguments import make_demo_arguments
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from eaglegate.engine.vllm_backend.translate import describe_engine
from eaglegate.features.audit.auditor import AuditedEngine, Auditor
from eaglegate.features.audit.evidence import (
    AuditOutcome,
    SequentialTest,
    judge_margins,
)
from eaglegate.features.audit.holds import AuditHolds
from eaglegate.features.audit.records import AuditRecord, write_nothing
from eaglegate.server.generation.job import derive_seed
from tests.engine.drive import Outcome, render, run, run_engine, speculation
from tests.engine.vllm_backend.lora import make_adapter

DEPTH = 5
LENGTHS = (8, 16, 32, 64)
ADAPTERS = ("one", "two")
TEMPERATURES = (0.0, 0.3, 0.7, 1.0, 1.5, 2.0)
RULES: tuple[dict[str, Any], ...] = (
    {}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.05}, {"top_k": 50, "top_p": 0.95},
    {"presence_penalty": 0.6, "frequency_penalty": 0.4}, {"repetition_penalty": 1.2},
    {"logit_bias": {300: 4.0, 224: -4.0}}, {"min_tokens": 24}, {"bad_words": ("the", "rain")},
)  # fmt: skip


def draw_request(
    rng: random.Random, number: int, prompts: list[tuple[int, ...]], adapters: Sequence[str]
) -> EngineRequest:
    prompt = rng.choice(prompts)
    start = rng.randrange(len(prompt) // 2)
    sampling = Sampling(
        max_tokens=rng.choice(LENGTHS),
        temperature=rng.choice(TEMPERATURES),
        seed=rng.choice((None, rng.randrange(1 << 40))),
        **({"min_tokens": 0} | rng.choice(RULES)),
    )
    tokens = sampling.max_tokens
    sampling = replace(sampling, min_tokens=min(sampling.min_tokens, tokens))
    return EngineRequest(
        f"a{number}",
        prompt[start:],
        sampling,
        depth=rng.choice((None, None, 1, 3)),
        adapter=rng.choice((None, *adapters)),
    )


def draw_requests(
    rng: random.Random,
    start: int,
    concurrency: int,
    prompts: list[tuple[int, ...]],
    adapters: Sequence[str],
) -> list[EngineRequest]:
    """Draw ``at_once`` choices, a third of which are pairs from requests with n = 2."""
    requests = []
    for number in range(start, start + concurrency - concurrency // 6):
        request = draw_request(rng, number, prompts, adapters)
        requests.append(request)
        if number < start + concurrency // 6:
            seed = request.sampling.seed
            choice_seed = None if seed is None else derive_seed(seed, 1)
            sampling = replace(request.sampling, seed=choice_seed)
            requests.append(replace(request, id=f"{request.id}-1", sampling=sampling))
    return requests


@asynccontextmanager
async def run_adapted_engine(
    names: Sequence[str], **settings: Any
) -> AsyncGenerator[VllmEngine, None]:
    """Run an engine with LoRA adapters of random weights."""
    with tempfile.TemporaryDirectory() as folder:
        adapters = {
            name: str(make_adapter(Path(folder) / name, seed)) for seed, name in enumerate(names)
        }
        lora = {"enable_lora": True, "max_loras": len(names), "max_lora_rank": 8} if names else {}
        async with run_engine(adapters=adapters, **lora, **settings) as engine:
            yield engine


async def score_all(
    engine: VllmEngine, requests: Sequence[EngineRequest], outcomes: Sequence[Outcome], dtype: str
) -> list[AnswerScores]:
    pairs = zip(requests, outcomes, strict=True)
    return await asyncio.gather(
        *(engine.score(request, outcome.token_ids, dtype) for request, outcome in pairs)
    )


async def count_clean(
    dtype: str, answers: int, seed: int, limit_s: float, at_once: int, adapters: Sequence[str]
) -> None:
    rng = random.Random(seed)
    config = {"dtype": dtype, "speculative_config": speculation(DEPTH)}
    prompts = render(VllmRenderer(make_demo_arguments(dtype=dtype)))
    outcomes: Counter[tuple[str, str]] = Counter()
    tests = {temperature: SequentialTest() for temperature in TEMPERATURES}
    margins: list[float] = []
    num_drafted = num_adapted = tokens = num_judged = alarms = 0
    audit_s, deadline = 0.0, time.monotonic() + limit_s
    async with run_adapted_engine(adapters, **config) as engine:
        for number in range(0, answers, at_once):
            if time.monotonic() > deadline:
                break
            requests = draw_requests(rng, number, at_once, prompts, adapters)
            outcomes_of_requests = await asyncio.gather(*(run(engine, item) for item in requests))
            start = time.perf_counter()
            all_scores = await score_all(engine, requests, outcomes_of_requests, dtype)
            audit_s += time.perf_counter() - start
            for request, answer, scores in zip(
                requests, outcomes_of_requests, all_scores, strict=True
            ):
                outcome = judge_margins(scores, find_tie(dtype))
                kind = "sampled" if scores.evidence else "by a maximum"
                outcomes[kind, outcome] += 1
                num_adapted += request.adapter is not None
                margins += [item for item in scores.margins if item > 0]
                num_drafted += answer.totals.verify_steps > 0
                tokens += len(answer.token_ids)
                if outcome is AuditOutcome.VIOLATED:
                    print(f"  violated: {request.sampling}, {scores.worst}", flush=True)
                if scores.evidence:
                    num_judged += scores.judged
                    test = tests[request.sampling.temperature]
                    alarms += test.add(scores.evidence, scores.judged)
    answers = outcomes.total()
    print(f"{dtype}: {answers} answers, {tokens} tokens, {num_drafted} answers with drafts, "
          f"{num_adapted} of adapters")  # fmt: skip
    for (kind, name), count in sorted(outcomes.items()):
        print(f"  {kind}: {name} {count}")
    top_margins = sorted(margins)[-5:]
    print(f"  {len(margins)} tokens were not the first choice; greatest margins {top_margins}")
    print(f"  {num_judged} sampled tokens judged, {alarms} alarms; nats by temperature:")
    print("  ", {t: round(test.log_evidence, 2) for t, test in tests.items() if test.answers})
    print(f"  {1000 * audit_s / answers:.1f} ms for an audit")


class LapClock:
    """Clock of the seconds that its laps have taken."""

    def __init__(self) -> None:
        self._before_s, self._start = 0.0, 0.0
        self.runs = False

    def __call__(self) -> float:
        return self._before_s + (time.monotonic() - self._start if self.runs else 0.0)

    def switch(self, is_on: bool) -> None:
        """Begin a lap or end it."""
        self._before_s, self._start, self.runs = self(), time.monotonic(), is_on


class Counts:
    """``AuditObserver`` that counts."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def record_audit(self, record: AuditRecord) -> None:
        self.counts[record.outcome.value] += 1

    def record_audit_drop(self, reason: str) -> None:
        self.counts[f"dropped: {reason}"] += 1


@dataclass(frozen=True)
class Lap:
    tokens: int
    wall_s: float
    cpu_s: float
    """CPU seconds of the engine's processes, which other load on the machine hardly affects."""

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.wall_s

    @property
    def cpu_s_per_token(self) -> float:
        return self.cpu_s / self.tokens


def sum_costs(laps: list[Lap]) -> float:
    return sum(lap.cpu_s for lap in laps) / sum(lap.tokens for lap in laps)


def read_cpu_s() -> float:
    """CPU time of this process's children, in seconds (Linux)."""
    ticks = 0
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def measure_lap(engine: Engine, prompts: list[tuple[int, ...]], name: str, s: float) -> Lap:
    """Measure four streams in a closed loop."""
    deadline, tokens = time.perf_counter() + s, 0

    async def stream(number: int) -> None:
        nonlocal tokens
        turn = 0
        while time.perf_counter() < deadline:
            turn += 1
            sampling = Sampling(max_tokens=64, temperature=0.0, ignore_eos=True)
            request = EngineRequest(
                f"{name}-{number}-{turn}", prompts[turn % len(prompts)], sampling
            )
            async with aclosing(read_steps(engine.generate, request)) as steps:
                async for step in steps:
                    tokens += len(step.token_ids)

    start, cpu_s = time.perf_counter(), read_cpu_s()
    await asyncio.gather(*(stream(number) for number in range(4)))
    return Lap(tokens, time.perf_counter() - start, read_cpu_s() - cpu_s)


async def measure_cost(share: float, laps: int, lap_s: float) -> None:
    """Compare laps with and without audits. The audit budget grows only in laps with audits."""
    prompts = render(VllmRenderer(make_demo_arguments()))
    counts, clock = Counts(), LapClock()
    async with run_engine(dtype="bfloat16", speculative_config=speculation(DEPTH)) as engine:
        auditor = Auditor(
            share,
            AuditHolds(),
            counts,
            str,
            lambda: clock.runs,
            write_nothing,
            clock,
            lambda: False,
        )
        assert engine._llm is not None
        auditor.attach(engine, engine.generate, describe_engine(engine._llm.vllm_config))
        audited_engine = AuditedEngine(engine, auditor)
        await measure_lap(engine, prompts, "warm", lap_s)
        auditing = asyncio.create_task(auditor.run())
        laps_of: dict[str, list[Lap]] = {"with": [], "without": []}
        for lap in range(laps):
            for side in ("with", "without") if lap % 2 else ("without", "with"):
                lap_engine: Engine = audited_engine if side == "with" else engine
                clock.switch(side == "with")
                laps_of[side].append(await measure_lap(lap_engine, prompts, f"{side}{lap}", lap_s))
                clock.switch(False)
        auditing.cancel()
    pairs = [*zip(laps_of["with"], laps_of["without"], strict=True)]
    ratios = [lap_with.tokens_per_s / lap_without.tokens_per_s for lap_with, lap_without in pairs]
    print(f"share {share:.0%}: tokens per second with audits over without: median "
          f"{median(ratios):.3f}, laps {[round(lap_with, 3) for lap_with in ratios]}")  # fmt: skip
    costs = [
        lap_with.cpu_s_per_token / lap_without.cpu_s_per_token for lap_with, lap_without in pairs
    ]
    print(f"  CPU time per token of the engine, with over without: median {median(costs):.4f}, all "
          f"{sum_costs(laps_of['with']) / sum_costs(laps_of['without']):.4f}")  # fmt: skip
    print(
        f"  {dict(counts.counts)}; audits took {auditor.describe()['engine_share']:.3%} of the time"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("clean", "cost"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--answers", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=16, help="answers in a batch of clean")
    parser.add_argument("--adapters", action="store_true", help="clean: with two LoRA adapters")
    parser.add_argument("--limit-s", type=float, default=900.0, help="longest run of clean")
    parser.add_argument("--share", type=float, default=0.02)
    parser.add_argument("--laps", type=int, default=8)
    parser.add_argument("--lap-s", type=float, default=8.0)
    options = parser.parse_args()
    if options.what == "clean":
        adapters = ADAPTERS if options.adapters else ()
        asyncio.run(
            count_clean(
                options.dtype,
                options.answers,
                options.seed,
                options.limit_s,
                options.at_once,
                adapters,
            )
        )
    else:
        asyncio.run(measure_cost(options.share, options.laps, options.lap_s))


if __name__ == "__main__":
    main()
