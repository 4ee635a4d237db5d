"""A restart at the doctor's word: running answers continue, and the next engine is waited for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from eaglegate.engine.base import DropsBlocks
from eaglegate.engine.errors import EngineFailed
from eaglegate.engine.scripted import ScriptedEngine
from eaglegate.engine.supervision.policy import now
from eaglegate.engine.supervision.supervisor import SupervisedEngine
from eaglegate.engine.types import EngineRequest
from tests.engine.supervision.mortal import (
    Cradle,
    Mortal,
    ask,
    collect,
    following,
    supervised,
    tokens_of,
)


class Patient(Mortal, DropsBlocks):
    async def drop_prefix(self, request: EngineRequest | None) -> int:
        return 0 if request is None else len(request.prompt)


@dataclass
class Clinic(Cradle):
    def make(self) -> Mortal:
        self.lives.append(Patient(self, len(self.lives)))
        return self.lives[-1]


async def test_answers_continue_on_the_next_engine() -> None:
    clinic = Clinic(killed=True)
    engine, notes = supervised(clinic)
    await engine.start()
    request = ask(tokens=200)
    running = asyncio.create_task(collect(engine, request))
    await asyncio.sleep(0)
    await engine.restart("acceptance stays low")
    assert len(clinic.lives) == 2
    assert tokens_of(await running) == following(request)
    assert await engine.drop_prefix(request) == 3
    assert notes.back == 1
    await engine.aclose()


async def test_the_age_is_that_of_the_engine_after_a_crash() -> None:
    clinic = Clinic()
    engine, notes = supervised(clinic)
    assert engine.age_s == 0
    await engine.start()
    await asyncio.sleep(0.02)
    assert engine.age_s >= 0.02
    killed = now()
    clinic.lives[0].kill()
    while not notes.back:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    assert 0 <= engine.age_s <= now() - killed
    await engine.aclose()


async def test_engines_without_cures_say_so() -> None:
    engine = SupervisedEngine(ScriptedEngine)
    await engine.start()
    with pytest.raises(EngineFailed, match="cannot drop"):
        await engine.drop_prefix(None)
    with pytest.raises(EngineFailed, match="no restart"):
        await engine.restart("why not")
    await engine.aclose()
    with pytest.raises(EngineFailed):
        await engine.restart("closed")
