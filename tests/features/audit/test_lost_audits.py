"""The loss of an engine during an audit: noticed at once, held against audits only where the engine
died by itself, and waited out by the audits that come next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from eaglegate.engine.errors import EngineDead, EngineError, EngineFailed
from eaglegate.engine.speculation.accounts.scores import (
    UNPACED,
    AnswerScores,
    AuditPace,
    ScoresAnswers,
)
from eaglegate.engine.supervision.policy import LossCause
from eaglegate.engine.types import EngineRequest
from tests.engine.supervision.mortal import Cradle, Mortal, ask, supervised


class Scored(Mortal, ScoresAnswers):
    async def score(
        self,
        request: EngineRequest,
        answer: Sequence[int],
        dtype: str,
        pace: AuditPace = UNPACED,
    ) -> AnswerScores:
        await pace.pause()
        self.kill()
        raise EngineDead(self.dead)


@dataclass
class Hospital(Cradle):
    def make(self) -> Mortal:
        self.lives.append(Scored(self, len(self.lives)))
        return self.lives[-1]


@pytest.mark.parametrize(("killed", "error"), [(False, EngineDead), (True, EngineFailed)])
async def test_one_loss_is_one_loss(killed: bool, error: type[EngineError]) -> None:
    engine, notes = supervised(Hospital(killed=killed))
    await engine.start()
    with pytest.raises(error):
        await engine.score(ask(), (7, 8), "float32")
    with pytest.raises(EngineFailed, match="being restarted"):
        await engine.score(ask(), (7, 8), "float32")
    assert notes.lost == [LossCause.DIED]
    assert not engine.is_live
    while not notes.back:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    assert engine.is_live
    await engine.aclose()
    assert not engine.is_live
