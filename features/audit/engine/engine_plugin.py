"""Scores of answers, from an engine in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eaglegate.engine.errors import EngineFailed
from eaglegate.engine.speculation.accounts.scores import (
    PIECE,
    UNPACED,
    AnswerScores,
    AuditPace,
    ScoresAnswers,
    split_audit,
)
from eaglegate.engine.steps import NullSink
from eaglegate.engine.types import EngineRequest
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.engine_plugin import EnginePlugin
from eaglegate.engine.vllm_parts import Promise, find_broken_promises


class VllmScores(ScoresAnswers):
    """Scores of one engine."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine

    async def score(
        self,
        request: EngineRequest,
        answer: Sequence[int],
        dtype: str,
        pace: AuditPace = UNPACED,
    ) -> AnswerScores:
        """See ``eaglegate.engine.speculation.accounts.scores.ScoresAnswers``."""
        caches = self._engine.vllm_config.cache_config.enable_prefix_caching
        parts = []
        for piece, key in split_audit(request, answer, dtype, PIECE if caches else None):
            await pace.pause()
            await self._engine.generate(piece, NullSink(), pace.charge)
            if key:
                parts.append(AnswerScores.from_fields(await self._take_scores(key)))
        return AnswerScores.join(parts)

    async def _take_scores(self, key: str) -> Mapping[str, Any]:
        """Return an audit's scores and remove them from the worker. Raises EngineError."""
        replies = await self._engine.call_workers("take_scores", key)
        fields: Mapping[str, Any] = next(
            (reply for reply in replies if reply is not None), {"error": "no worker has them"}
        )
        if "error" in fields:
            raise EngineFailed(f"The answer was not scored: {fields['error']}")
        return fields


class ScoringPlugin(EnginePlugin):
    """Offers scores, unless the installed vLLM differs in parts that they need."""

    def offer(self, engine: VllmEngine) -> VllmScores | None:
        return None if Promise.AUDITS in find_broken_promises() else VllmScores(engine)


PLUGIN = ScoringPlugin()
