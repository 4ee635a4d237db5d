"""Trial runs on the engine: greedy, at full depth, with or without the prefix cache."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from msgspec import structs

from eaglegate.engine.speculation.policy.time_budget import TimeBudget
from eaglegate.engine.steps import Generate, read_steps
from eaglegate.engine.types import LAST_PRIORITY, EngineInfo, EngineRequest, Sampling
from eaglegate.features.doctor.trials import PairedTrial, TrialRun, is_open

TRIAL_TOKENS = 48
AT_ONCE = 2
"""Number of runs that share the engine's steps, as the two runs of a pair do."""


class TrialRunner:
    """Runner of trials that charges their time to ``budget``."""

    def __init__(self, budget: TimeBudget, clock: Callable[[], float]) -> None:
        self._budget, self._clock = budget, clock
        self._generate: Generate | None = None
        self._depth = self._context = 0

    def attach(self, generate: Generate, info: EngineInfo) -> None:
        self._generate = generate
        self._depth, self._context = info.speculation.depth, info.max_model_len

    async def run(self, *runs: tuple[EngineRequest, bool]) -> list[TrialRun]:
        """Run requests at the same time, each without the prefix cache if its flag says so. Raises
        EngineError."""
        start = self._clock()
        try:
            return await asyncio.gather(
                *(self._run(request, skips_cache=skips_cache) for request, skips_cache in runs)
            )
        finally:
            self._budget.spend(self._clock() - start)

    async def _run(self, request: EngineRequest, *, skips_cache: bool) -> TrialRun:
        assert self._generate is not None
        name = f"doctor-{uuid.uuid4().hex}"
        text, steps = list[int](), 0
        trial_request = EngineRequest(
            name,
            request.prompt,
            Sampling(TRIAL_TOKENS, temperature=0.0, ignore_eos=True),
            depth=self._depth,
            priority=LAST_PRIORITY,
            workload=request.workload,
            tenant="doctor",
            teaches=False,
            cache_salt=name if skips_cache else request.cache_salt,
            adapter=request.adapter,
        )
        async with aclosing(read_steps(self._generate, trial_request)) as run_steps:
            async for step in run_steps:
                text += step.token_ids
                steps += len(step.decode)
        return TrialRun(tuple(text), steps)

    async def try_cached(
        self, requests: Sequence[EngineRequest], *, covers_all: bool
    ) -> list[PairedTrial]:
        """Compare runs with and without the prefix cache, until a fall is certain or unlikely.

        The texts are the answers of ``requests``, and then the continuations of the answers.
        ``covers_all`` runs at least one text of every request, so that no prefix at fault is
        missed.
        """
        queue, trials = deque(requests), list[PairedTrial]()
        while queue and (is_open(trials) or (covers_all and len(trials) < len(requests))):
            request = queue.popleft()
            trial = PairedTrial(request, *await self.run((request, False), (request, True)))
            trials.append(trial)
            prompt = trial.request.prompt + trial.now.tokens
            if trial.agrees and len(prompt) + TRIAL_TOKENS < self._context:
                queue.append(structs.replace(trial.request, prompt=prompt))
        return trials


class EarlierRecord:
    """Runs of the serving draft without the prefix cache, for later comparison."""

    def __init__(self, runner: TrialRunner) -> None:
        self._runner = runner
        self._runs: dict[tuple[int, ...], PairedTrial] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, request: EngineRequest) -> bool:
        return request.prompt in self._runs

    def add(self, request: EngineRequest, run: TrialRun) -> None:
        self._runs[request.prompt] = PairedTrial(request, run, run)

    def clear(self) -> None:
        self._runs.clear()

    async def try_again(self) -> list[PairedTrial]:
        """Run the recorded texts again until a fall is certain or unlikely."""
        queue, trials = deque(self._runs.values()), list[PairedTrial]()
        while queue and is_open(trials):
            batch = [queue.popleft() for _ in range(min(AT_ONCE, len(queue)))]
            runs = await self._runner.run(*((trial.request, True) for trial in batch))
            trials += [replace(trial, now=run) for trial, run in zip(batch, runs, strict=True)]
        return trials
