"""How many suspicions of the doctor get trials beside load, how long one takes, and what it costs.

Clients ask for clean answers without pause, ``--at-once`` at a time, of four prefixes. A prefix is
suspected every ``--every-s`` seconds, without cause.

``--laps`` measures the price instead: laps without trials and laps of examinations without pause,
in turns. It prints the share of their pace that clients lose, and the share of the time charged.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from statistics import median

from eaglegate.engine.speculation.draft_versions import DraftVersion
from eaglegate.engine.steps import read_steps
from eaglegate.engine.types import EngineRequest, Sampling
from eaglegate.engine.vllm_backend.arguments import make_demo_arguments
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from eaglegate.engine.vllm_backend.translate import describe_engine
from eaglegate.features.doctor.diagnosis import Diagnosis
from eaglegate.features.doctor.doctor import Doctor, DoctoredEngine, Mode
from tests.engine.drive import render, run_engine, speculation

DEPTH = 3
PREFIXES = 4


class TimedDoctor(Doctor):
    """Notes how long each examination takes."""

    is_calm = False
    """True while nothing is suspected, whatever the answers."""
    since: float | None = None
    """The beginning of the current examination."""
    took_s: list[float]

    def _suspect(self, name: str) -> None:
        if not self.is_calm:
            super()._suspect(name)

    async def examine(self, name: str) -> Diagnosis:
        self.since = start = time.perf_counter()
        try:
            diagnosis = await super().examine(name)
        finally:
            self.since = None
        self.took_s.append(time.perf_counter() - start)
        return diagnosis

    def measure_all(self) -> float:
        """Seconds of examinations, the current one included."""
        current_s = 0.0 if self.since is None else time.perf_counter() - self.since
        return sum(self.took_s) + current_s


class Nobody:
    def record_diagnosis(self, diagnosis: Diagnosis) -> None: ...


class NoRemedies:
    """A doctor that watches applies none."""

    age_s = 0.0

    async def drop_prefix(self, request: EngineRequest | None) -> int:
        raise NotImplementedError

    async def restart(self, reason: str) -> None:
        raise NotImplementedError


class Load:
    """Clients in a closed loop, and the tokens that they get beside examinations and otherwise."""

    def __init__(self, engine: DoctoredEngine, doctor: TimedDoctor, seed: int) -> None:
        self._engine, self._doctor, self.draws = engine, doctor, random.Random(seed)
        prompts = render(VllmRenderer(make_demo_arguments()))
        texts = [prompt * (600 // len(prompt)) for prompt in prompts]
        self._prefixes, self._suffixes = texts[:PREFIXES], prompts
        self.tokens = {False: 0, True: 0}
        """By whether an examination was under way."""

    async def run(self, concurrency: int, deadline: float) -> None:
        await asyncio.gather(*(self._ask(deadline) for _ in range(concurrency)))

    async def _ask(self, deadline: float) -> None:
        while time.perf_counter() < deadline:
            draws = self.draws
            end = draws.choice(self._suffixes)
            prompt = (*draws.choice(self._prefixes), *end[draws.randrange(len(end) - 1) :])
            sampling = Sampling(draws.randint(16, 24), temperature=0.0, ignore_eos=True)
            request = EngineRequest(f"c{draws.random()}", prompt, sampling)
            async for step in read_steps(self._engine.generate, request):
                self.tokens[self._doctor.since is not None] += len(step.token_ids)


async def suspect(doctor: Doctor, every_s: float, draws: random.Random, deadline: float) -> int:
    """Suspect prefixes until then; returns how often."""
    count = 0
    while time.perf_counter() < deadline:
        name = draws.choice([*doctor._prefixes])
        count += name not in doctor._suspected
        doctor._suspect(name)
        doctor._arrived.set()
        await asyncio.sleep(every_s)
    return count


def print_outcome(doctor: TimedDoctor, suspicions: int, load: Load, took_s: float) -> None:
    diagnoses = doctor.describe()["diagnoses"]
    examined_s = doctor.measure_all()
    rate_beside = load.tokens[True] / max(examined_s, 1e-9)
    rate_alone = load.tokens[False] / max(took_s - examined_s, 1e-9)
    print(f"{suspicions} suspicions in {took_s:.0f} s: {len(diagnoses)} examined")
    for diagnosis, seconds in zip(reversed(diagnoses), doctor.took_s, strict=True):
        print(f"  {diagnosis['cause']}: {diagnosis['trials']} trials in {seconds:.1f} s")
    print(
        f"  an examination took {median(doctor.took_s or [0.0]):.1f} s (median); clients' tokens "
        f"per second: {rate_beside:.1f} beside examinations, {rate_alone:.1f} otherwise"
    )


LAP_S = 15.0


async def measure_price(doctor: TimedDoctor, load: Load, options: argparse.Namespace) -> None:
    """Laps with and without examinations, in turns."""

    async def run_lap() -> float:
        """Return clients' tokens per second."""
        start, start_tokens = time.perf_counter(), sum(load.tokens.values())
        await load.run(options.at_once, start + LAP_S)
        return (sum(load.tokens.values()) - start_tokens) / (time.perf_counter() - start)

    for _ in range(options.laps):
        doctor.is_calm = True
        doctor._suspected.clear()
        while doctor.since is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        rate_alone = await run_lap()
        doctor.is_calm = False
        start, spent_s = time.perf_counter(), doctor._budget._spent_s
        suspicion = asyncio.create_task(suspect(doctor, 0.2, load.draws, start + LAP_S))
        rate_beside = await run_lap()
        charge = (doctor._budget._spent_s - spent_s) / (time.perf_counter() - start)
        await suspicion
        print(
            f"clients' tokens per second: {rate_alone:.0f} without trials, {rate_beside:.0f} "
            f"beside examinations: {1 - rate_beside / rate_alone:.1%} lost, {charge:.1%} of the "
            "time charged"
        )


async def examine_beside(engine: VllmEngine, options: argparse.Namespace) -> None:
    """Fill the earlier record first, beside the same load."""
    doctor = TimedDoctor(Mode.WATCH, Nobody(), lambda: True)
    doctor.took_s = []
    assert engine._llm is not None
    doctor.change_draft(DraftVersion("demo", "", ""))
    doctor.attach(NoRemedies(), engine.generate, describe_engine(engine._llm.vllm_config))
    load = Load(DoctoredEngine(engine, doctor), doctor, options.seed)
    doctor_task = asyncio.create_task(doctor.run())
    doctor.is_calm = options.laps > 0
    await load.run(options.at_once, time.perf_counter() + options.warm_s)
    spent_s, start = doctor._budget._spent_s, time.perf_counter()
    print(f"{len(doctor._record)} runs in the record, charged {spent_s:.1f} s")
    if options.laps:
        await measure_price(doctor, load, options)
        doctor_task.cancel()
        return
    load.tokens = {False: 0, True: 0}
    deadline = start + options.minutes * 60
    draws = random.Random(options.seed)
    suspicions = asyncio.create_task(suspect(doctor, options.every_s, draws, deadline))
    await load.run(options.at_once, deadline)
    took_s = time.perf_counter() - start
    print(f"charged {doctor._budget._spent_s - spent_s:.1f} s")
    print_outcome(doctor, await suspicions, load, took_s)
    doctor_task.cancel()


async def measure(options: argparse.Namespace) -> None:
    settings = {"dtype": "float32", "max_model_len": 2048, "kv_cache_memory_bytes": 256 << 20}
    async with run_engine(**settings, speculative_config=speculation(DEPTH)) as engine:
        await examine_beside(engine, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--laps", type=int, default=0)
    parser.add_argument("--warm-s", type=float, default=60.0)
    parser.add_argument("--at-once", type=int, default=12)
    parser.add_argument("--every-s", type=float, default=45.0)
    parser.add_argument("--seed", type=int, default=1)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
