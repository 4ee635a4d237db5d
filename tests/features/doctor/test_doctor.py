"""The doctor on simulated traffic: faults are found, clean traffic is left alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from eaglegate.engine.speculation.drafts.versions import DraftVersion
from eaglegate.engine.steps import NullSink
from eaglegate.engine.types import DecodeStep, EngineRequest, Sampling, Step
from eaglegate.features.doctor import doctor as doctor_module
from eaglegate.features.doctor.diagnosis import Cause
from eaglegate.features.doctor.doctor import (
    PATIENCE_S,
    SAVED_S,
    SPARE_S,
    Doctor,
    DoctoredEngine,
    name_prefix,
)
from eaglegate.features.doctor.trial_runs import TRIAL_TOKENS
from eaglegate.features.doctor.trials import (
    ENOUGH,
    FEW,
    MOST,
    PairedTrial,
    TrialRun,
    differs_in_text,
    has_fallen,
    is_open,
    measure_fall,
)
from tests.features.doctor.clinic import (
    INFO,
    PREFIXES,
    Clinic,
    K,
    make,
    serve,
    serve_until_found,
    warm,
)


async def test_bad_blocks_are_found() -> None:
    clinic, doctor = make()
    await warm(clinic, doctor)
    bad = name_prefix(EngineRequest("r", PREFIXES[1], Sampling(1)))
    clinic.bad_prefixes.add(bad)
    assert await serve_until_found(clinic, doctor) <= 200
    found = clinic.diagnoses[-1]
    assert (found.cause, found.outcome) == (Cause.CACHE, "not treated")
    assert found.prefix in ("", bad)
    assert found.fall > 0.2


@pytest.mark.parametrize(("known", "weights"), [(0.0, 0.7), (0.97, 0.95)])
async def test_bad_weights_are_found(known: float, weights: float) -> None:
    """Also a small fall of a draft that nearly always accepts: from 0.97 to 0.92 by position."""
    clinic, doctor = make()
    clinic.known = known
    await warm(clinic, doctor)
    clinic.weights = weights
    await serve_until_found(clinic, doctor)
    found = clinic.diagnoses[-1]
    assert (found.cause, found.outcome) == (Cause.WEIGHTS, "not treated")


async def test_traffic_is_named() -> None:
    """Prompts begin with other prefixes: a template that changed."""
    clinic, doctor = make()
    await warm(clinic, doctor)
    clinic.hard_traffic = 0.6
    for _ in range(4):
        await serve(clinic, doctor, 50, base=5000)
    assert clinic.diagnoses
    assert {one.cause for one in clinic.diagnoses} == {Cause.TRAFFIC}


async def test_without_an_earlier_record_the_cause_is_unknown() -> None:
    clinic, doctor = make()
    request = clinic.ask()
    doctor.observe(request, clinic.answer(request, clinic.random))
    doctor._suspect("")
    assert (await doctor.examine("")).cause is Cause.UNKNOWN


async def test_texts_that_differ_from_their_earlier_run_compare_nothing() -> None:
    clinic, doctor = make()
    await warm(clinic, doctor)
    for earlier in [*doctor._record._runs.values()]:
        doctor._record.add(earlier.request, TrialRun((0, *earlier.other.tokens), 1))
    assert (await doctor.examine("")).cause is Cause.UNKNOWN


async def test_the_prefixes_of_one_key_do_not_displace_those_of_others() -> None:
    clinic, doctor = make()
    await warm(clinic, doctor)
    before = {*doctor.describe()["prefixes"]}
    step = DecodeStep(K, K, K + 1)
    for number in range(2 * doctor_module.PREFIXES):
        prompt = (*range(number, number + doctor_module.PREFIX_TOKENS),)
        doctor.observe(EngineRequest(f"m{number}", prompt, Sampling(1), tenant="many"), [step])
    prefixes = doctor.describe()["prefixes"]
    assert before < prefixes.keys()
    assert len(prefixes) == doctor_module.PREFIXES
    newest = EngineRequest("m", prompt, Sampling(1))
    assert name_prefix(newest) in prefixes


async def test_a_suspected_prefix_that_was_forgotten_is_examined_among_all() -> None:
    clinic, doctor = make()
    await warm(clinic, doctor)
    doctor._suspect("forgotten")
    assert (await doctor.examine("forgotten")).outcome == "nothing done"
    assert not doctor._suspected


@pytest.mark.thorough
async def test_clean_traffic_of_any_mix_has_no_fault() -> None:
    """20,000 answers, whose mix of prefixes and hard prompts changes all the time."""
    clinic, doctor = make()
    await warm(clinic, doctor)
    clinic.hard_traffic = 0.8
    for turn in range(100):
        for _ in range(10):
            await serve(clinic, doctor, 20, base=5000 * (turn % 3 == 0))
    assert {one.cause for one in clinic.diagnoses} <= {Cause.TRAFFIC}
    print(len(clinic.diagnoses), "suspicions")


async def test_a_trial_reads_the_cache_with_the_requests_own_salt_alone() -> None:
    clinic, doctor = make()
    request = EngineRequest("r", PREFIXES[0], Sampling(64), cache_salt="own", tenant="a")
    for fresh in (False, True):
        await doctor._runner.run((request, fresh))
    cached, fresh_one = clinic.requests
    assert cached.cache_salt == "own"
    assert fresh_one.cache_salt not in ("own", None)
    assert cached.sampling.temperature == fresh_one.sampling.temperature == 0.0
    assert cached.depth == K


async def test_another_draft_begins_anew() -> None:
    clinic, doctor = make()
    await warm(clinic, doctor)
    doctor.change_draft(DraftVersion("def", "", ""))
    assert doctor.describe()["prefixes"] == {}
    assert doctor.describe()["record"] == 0


def pair(now: int, other: int, texts: Sequence[Any] = (1, 1)) -> PairedTrial:
    request = EngineRequest("r", (1,), Sampling(1))
    return PairedTrial(request, TrialRun((texts[0],), now), TrialRun((texts[1],), other))


def test_trials_are_judged_by_the_steps_of_equal_texts() -> None:
    assert measure_fall([pair(20, 16), pair(99, 1, (1, 2))]) == pytest.approx(0.2)
    assert has_fallen([pair(20, 15)] * FEW)
    assert not has_fallen([pair(20, 15)] * (FEW - 1))
    assert not has_fallen([pair(20, 10, (1, 2))] * FEW)
    assert not has_fallen([pair(20, 18)] * 7)
    assert has_fallen([pair(20, 18)] * 8)
    assert not has_fallen([pair(20, 10), *[pair(20, 22)] * 6, pair(20, 18)])
    assert not has_fallen([pair(100, 97)] * MOST)
    assert not has_fallen([])
    assert differs_in_text([pair(1, 1, (1, 2))] * 2)
    assert not differs_in_text([pair(1, 1, (1, 2)), pair(1, 1)])


def test_texts_are_tried_until_a_fall_is_certain_or_unlikely() -> None:
    assert is_open([])
    assert is_open([pair(9, 9)] * (ENOUGH - 1))
    assert not is_open([pair(9, 9)] * ENOUGH)
    assert is_open([pair(10, 9), pair(9, 9)] * 4)
    assert is_open([pair(10, 9), pair(9, 9)] * 6 + [pair(9, 10)])
    assert not is_open([pair(10, 9), pair(9, 9)] * 8)
    assert not is_open([pair(20, 15)] * FEW)
    assert not is_open([pair(11, 9), pair(9, 10)] * (MOST // 2))


@pytest.mark.thorough
def test_runs_that_differ_by_chance_alone_seldom_look_like_a_fall() -> None:
    """Though each text is a new look: 2 % of 2,000 examinations."""
    draws, falls = random.Random(7), 0
    for _ in range(2000):
        trials = list[PairedTrial]()
        while is_open(trials):
            trials.append(pair(9 + draws.choice((0, 0, 1, 2)), 9 + draws.choice((0, 0, 1, 2))))
        falls += has_fallen(trials)
    assert falls <= 40


@pytest.mark.parametrize("fall", [0.1, 0.12, 0.15])
def test_a_small_fall_is_found_in_few_texts(fall: float) -> None:
    """About nine steps a text become ten."""
    draws, found, texts = random.Random(8), 0, 0
    for _ in range(500):
        trials = list[PairedTrial]()
        while is_open(trials):
            steps = draws.choice((8, 9, 9, 10))
            more = sum(draws.random() < fall / (1 - fall) for _ in range(steps))
            trials.append(pair(steps + more, steps))
        found += has_fallen(trials)
        texts += len(trials)
    print(fall, found / 500, texts / 500)
    assert found >= 450


async def test_an_answer_that_began_before_another_draft_tells_nothing() -> None:
    clinic, doctor = make()
    engine = DoctoredEngine(clinic, doctor)  # type: ignore[arg-type]
    await engine.generate(clinic.ask(), Swapping(doctor))
    assert doctor.describe()["all"]["answers"] == 0
    await engine.generate(clinic.ask(), NullSink())
    assert doctor.describe()["all"]["answers"] == 1


class Swapping(NullSink):
    """Another draft serves, and then the first one again, while the answer runs."""

    def __init__(self, doctor: Doctor) -> None:
        self.doctor = doctor

    def push(self, step: Step) -> None:
        del step
        for name in ("def", "abc"):
            self.doctor.change_draft(DraftVersion(name, "", ""))


async def test_trials_go_on_with_the_text_that_follows() -> None:
    clinic, doctor = make()
    clinic.known = 0.97
    await warm(clinic, doctor)
    request = clinic.ask()
    bad = name_prefix(request)
    doctor.observe(request, clinic.answer(request, clinic.random))
    prompts = {*doctor._prefixes[bad].recent}
    clinic.requests.clear()
    clinic.bad_prefixes.add(bad)
    clinic.cached = 0.95
    found = await doctor.examine(bad)
    assert (found.cause, found.outcome) == (Cause.CACHE, "not treated")
    assert len(prompts) < found.trials <= MOST
    later = [one.prompt for one in clinic.requests if one.prompt not in prompts]
    assert {prompt[:-TRIAL_TOKENS] for prompt in later} <= prompts


async def test_one_prompt_is_enough_for_a_prefix() -> None:
    clinic, doctor = make()
    await warm(clinic, doctor)
    alone = EngineRequest("r", tuple(range(9000, 9070)), Sampling(64))
    clinic.bad_prefixes.add(name_prefix(alone))
    doctor.observe(alone, clinic.answer(alone, clinic.random))
    found = await doctor.examine(name_prefix(alone))
    assert (found.cause, found.outcome) == (Cause.CACHE, "not treated")
    assert found.trials >= FEW


async def test_texts_end_before_the_context_does() -> None:
    clinic, doctor = make()
    clinic.known = 0.6
    doctor.attach(clinic.generate, replace(INFO, max_model_len=70 + 2 * TRIAL_TOKENS + 1))
    trials = await doctor._runner.try_cached(
        [EngineRequest("r", tuple(range(70)), Sampling(64))], covers_all=False
    )
    assert [len(one.request.prompt) for one in trials] == [70, 70 + TRIAL_TOKENS]


async def test_one_prefix_is_examined_before_all_of_them() -> None:
    clinic, doctor = make()
    await warm(clinic, doctor)
    name = next(iter(doctor._prefixes))
    doctor._suspect("")
    assert doctor._choose_suspicion() == ""
    doctor._suspect(name)
    assert doctor._choose_suspicion() == name


async def run_until_settled(doctor: Doctor) -> None:
    running = asyncio.create_task(doctor.run())
    async with asyncio.timeout(5):
        while doctor._suspected:  # noqa: ASYNC110
            await asyncio.sleep(0)
    running.cancel()


async def test_a_suspicion_is_patient_from_its_turn_on() -> None:
    """One that arose during a long examination is not dropped for the wait."""
    now = [0.0]
    clinic = Clinic()
    doctor = Doctor(clinic.diagnoses.append, lambda: True, lambda: now[0])
    doctor.attach(clinic.generate, INFO)
    request = clinic.ask()
    doctor.observe(request, clinic.answer(request, clinic.random))
    doctor._suspect(name_prefix(request))
    now[0] = 2 * PATIENCE_S
    await run_until_settled(doctor)
    assert len(clinic.diagnoses) == 1
    assert doctor.describe()["dropped"] == 0


async def test_a_suspicion_without_room_is_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor_module, "PATIENCE_S", 0.0)
    clinic, doctor = make()
    doctor._suspect("")
    doctor._arrived.set()
    await run_until_settled(doctor)
    assert clinic.diagnoses == []
    assert doctor.describe()["dropped"] == 1


async def test_the_earlier_record_leaves_time_for_examinations() -> None:
    clinic, doctor = make()
    request = clinic.ask()
    doctor.observe(request, clinic.answer(request, clinic.random))
    doctor._budget.spend(SAVED_S - SPARE_S + 1)
    await doctor._complete_record()
    assert doctor.describe()["record"] == 0
    assert doctor._budget.has_time()
    doctor._budget.spend(-2)
    await doctor._complete_record()
    assert doctor.describe()["record"] == 1
