"""Trial runs on the engine: greedy, at full depth, with or without the prefix cache."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace

from msgspec import structs

from eaglegate.engine.speculation.time_budget import TimeBudget
from eaglegate.engine.steps import Generate, read_steps
from eaglegate.engine.types import LAST_PRIORITY, EngineInfo, EngineRequest, Sampling
from eaglegate.features.doctor.pace import ClientPace
from eaglegate.features.doctor.trials import PairedTrial, TrialRun, is_open

TRIAL_TOKENS = 48
AT_ONCE = 2
"""Number of runs that share the engine's steps, as the two runs of a pair do."""


class TrialRunner:
    """Runner of trials that charges their share of the engine's time to ``budget``."""

    def __init__(self, budget: TimeBudget, clock: Callable[[], float]) -> None:
        self._budget, self._clock = budget, clock
        self.pace = ClientPace(clock)
        self._trial_s = 0.0
        """Time of all runs so far, in request-seconds."""
        self._generate: Generate | None = None
        self._depth = self._context = 0

    def attach(self, generate: Generate, info: EngineInfo) -> None:
        self._generate = generate
        self._depth, self._context = info.speculation.depth, info.max_model_len

    async def run(self, request: EngineRequest, *, skips_cache: bool) -> TrialRun:
        """Run a request, without the prefix cache if ``skips_cache``. Raises EngineError."""
        with self._charge():
            return await self._run(request, skips_cache=skips_cache)

    @contextmanager
    def _charge(self) -> Iterator[None]:
        """Charge the trials' share of the time in the context."""
        start, ran_s = self._clock(), self._trial_s
        self.pace.begin_trials()
        try:
            yield
        finally:
            share = self.pace.end_trials(self._trial_s - ran_s)
            self._budget.spend((self._clock() - start) * share)

    async def _run(self, request: EngineRequest, *, skips_cache: bool) -> TrialRun:
        assert self._generate is not None
        name = f"doctor-{uuid.uuid4().hex}"
        text, steps, start = list[int](), 0, self._clock()
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
        try:
            async with aclosing(read_steps(self._generate, trial_request)) as run_steps:
                async for step in run_steps:
                    text += step.token_ids
                    steps += len(step.decode)
        finally:
            self._trial_s += self._clock() - start
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
            trial = await self._compare(queue.popleft())
            trials.append(trial)
            prompt = trial.request.prompt + trial.now.tokens
            if trial.agrees and len(prompt) + TRIAL_TOKENS < self._context:
                queue.append(structs.replace(trial.request, prompt=prompt))
        return trials

    async def _compare(self, request: EngineRequest) -> PairedTrial:
        with self._charge():
            runs = self._run(request, skips_cache=False), self._run(request, skips_cache=True)
            return PairedTrial(request, *await asyncio.gather(*runs))

    async def try_again(
        self, trials: Sequence[PairedTrial], *, skips_cache: bool
    ) -> list[PairedTrial]:
        """Run the texts again, without the prefix cache if ``skips_cache``."""
        room = asyncio.Semaphore(AT_ONCE)

        async def run(trial: PairedTrial) -> PairedTrial:
            async with room:
                return replace(trial, now=await self._run(trial.request, skips_cache=skips_cache))

        with self._charge():
            return await asyncio.gather(*map(run, trials))


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
            trials += await self._runner.try_again(batch, skips_cache=True)
        return trials
