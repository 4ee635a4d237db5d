"""The price of the doctor's trials for requests beside them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from eaglegate.engine.errors import EngineFailed
from eaglegate.engine.types import EngineRequest, Sampling, Step, StepSink
from eaglegate.features.doctor.doctor import Doctor, Mode
from eaglegate.features.doctor.pace import ClientPace
from tests.features.doctor.clinic import INFO, Clinic


@pytest.mark.parametrize(
    ("alone", "beside", "share"),
    [
        ((60, 60.0), (20, 40.0), 0.5),  # each client makes half of its steps beside the trial
        ((60, 60.0), (40, 40.0), 0.2),  # they lose nothing: one trial among five requests
        ((60, 60.0), (80, 40.0), 0.2),
        ((60, 60.0), (0, 40.0), 1.0),
        ((60, 60.0), (0, 0.0), 1.0),  # no client
        ((0, 0.0), (20, 40.0), 1.0),  # nothing to compare with
    ],
)
async def test_trials_pay_for_the_pace_that_clients_lose(
    alone: tuple[int, float], beside: tuple[int, float], share: float
) -> None:
    """``alone`` and ``beside`` are clients' steps and request-seconds without the trial and in the
    10 s of it.
    """
    now = [0.0]
    clinic = Clinic()
    doctor = Doctor(Mode.CURE, clinic, lambda: True, clinic.reload, lambda: now[0])

    def run_clients(steps: int, request_s: float, seconds: float) -> None:
        with ExitStack() as running:
            for _ in range(round(request_s / seconds)):
                running.enter_context(doctor.pace.count_request())
            doctor.pace.count_steps(steps)
            now[0] += seconds

    async def generate(_: EngineRequest, sink: StepSink) -> None:
        run_clients(*beside, 10.0)
        sink.push(Step((1,), cached_tokens=10))

    doctor.attach(clinic, generate, INFO)
    run_clients(*alone, 20.0)
    await doctor._runner.run(EngineRequest("r", (1,), Sampling(64)), skips_cache=True)
    now[0] = 100.0
    assert doctor.describe()["engine_share"] == pytest.approx(share * 10.0 / 100.0)


async def test_an_old_pace_counts_less() -> None:
    now = [0.0]
    pace = ClientPace(lambda: now[0])
    with pace.count_request():
        for steps_per_s in (10, 1):
            for _ in range(6):
                pace.count_steps(steps_per_s * 400)
                now[0] += 400.0
                pace.begin_trials()
        pace.count_steps(10)
        now[0] += 10.0
        lost = pace.end_trials(1.0)
    assert 0.0 < lost < 0.2


async def test_a_trial_without_a_step_pays_all_its_time() -> None:
    now = [0.0]
    clinic = Clinic()
    doctor = Doctor(Mode.CURE, clinic, lambda: True, clinic.reload, lambda: now[0])

    async def generate(request: EngineRequest, sink: StepSink) -> None:
        now[0] += 10.0
        raise EngineFailed("no")

    doctor.attach(clinic, generate, INFO)
    with pytest.raises(EngineFailed):
        await doctor._runner.run(clinic.ask(), skips_cache=True)
    assert doctor.describe()["engine_share"] == pytest.approx(1.0)
