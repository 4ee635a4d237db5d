"""A doctor, and a scripted engine for it to examine."""

from __future__ import annotations

import random

from eaglegate.engine.speculation.drafts.versions import DraftVersion
from eaglegate.engine.types import (
    DecodeStep,
    EngineInfo,
    EngineRequest,
    Sampling,
    SpeculationInfo,
    Step,
    StepSink,
)
from eaglegate.features.doctor.diagnosis import Diagnosis
from eaglegate.features.doctor.doctor import Doctor, name_prefix
from eaglegate.features.doctor.suspicion import LEARN

K = 5
PREFIXES = [tuple(range(100 * at, 100 * at + 64)) for at in range(4)]


class Clinic:
    """An engine whose acceptance depends on the prompt, its cached blocks and the weights."""

    def __init__(self) -> None:
        self.prefixes = PREFIXES
        self.bad_prefixes: set[str] = set()
        self.weights = 1.0
        self.known = 0.0
        """Acceptance of all prompts alike."""
        self.cached = 0.6
        """Factor on acceptance from bad blocks."""
        self.hard_traffic = 1.0
        self.diagnoses: list[Diagnosis] = []
        self.requests: list[EngineRequest] = []
        self.random = random.Random(5)

    def rate(self, request: EngineRequest) -> float:
        known = self.known or 0.55 + random.Random(hash(request.prompt)).random() * 0.3
        cached = self.cached if name_prefix(request) in self.bad_prefixes else 1.0
        new = self.hard_traffic if request.prompt[0] >= 5000 else 1.0
        return known * self.weights * cached * new

    def answer(self, request: EngineRequest, draws: random.Random) -> list[DecodeStep]:
        tokens, steps, rate = 0, list[DecodeStep](), self.rate(request)
        while tokens < request.sampling.max_tokens:
            accepted = 0
            while accepted < K and draws.random() < rate:
                accepted += 1
            tokens += accepted + 1
            steps.append(DecodeStep(K, accepted, accepted + 1))
        return steps

    async def generate(self, request: EngineRequest, sink: StepSink) -> None:
        """The same text every time, with the same luck."""
        self.requests.append(request)
        steps = self.answer(request, random.Random(hash(request.prompt)))
        tokens = tuple(range(request.sampling.max_tokens))
        sink.push(Step(tokens, decode=tuple(steps)))

    def ask(self, base: int = 0) -> EngineRequest:
        prefix = self.random.choice(self.prefixes)
        prompt = (*(base + token for token in prefix), self.random.randrange(400))
        return EngineRequest("r", prompt, Sampling(64))


INFO = EngineInfo("m", 1024, 100, SpeculationInfo("eagle3", K))


def make() -> tuple[Clinic, Doctor]:
    clinic = Clinic()
    doctor = Doctor(clinic.diagnoses.append, lambda: True)
    doctor.change_draft(DraftVersion("abc", "", ""))
    doctor.attach(clinic.generate, INFO)
    return clinic, doctor


async def serve(clinic: Clinic, doctor: Doctor, answers: int, base: int = 0) -> int:
    """Serve until something was diagnosed; returns the answers that took."""
    known = len(clinic.diagnoses)
    for number in range(answers):
        request = clinic.ask(base)
        doctor.observe(request, clinic.answer(request, clinic.random))
        await doctor._complete_record()
        for name in [*doctor._suspected]:
            await doctor.examine(name)
        if len(clinic.diagnoses) > known:
            return number + 1
    return answers


async def warm(clinic: Clinic, doctor: Doctor) -> None:
    await serve(clinic, doctor, 8 * LEARN)
    clinic.diagnoses.clear()


async def serve_until_found(clinic: Clinic, doctor: Doctor, answers: int = 200) -> int:
    used = 0
    while used < answers:
        used += await serve(clinic, doctor, answers - used)
        if clinic.diagnoses and clinic.diagnoses[-1].fall > 0.04:
            return used
    raise AssertionError("nothing was found")
