"""Judgement of finished answers in a child process with limits of time and memory."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from dataclasses import asdict

from eaglegate.engine.types import Constraint
from eaglegate.text.limited_child import ChildLost, LimitedChild

log = logging.getLogger(__name__)

JUDGE = "eaglegate.features.audit.grammars"
"""The module that the child runs."""
PATIENCE_S = 10.0
"""Longest wait for the child, which has a limit of its own on CPU seconds."""


class GrammarJudge(LimitedChild):
    """Judge of answers that a grammar constrained."""

    def __init__(self) -> None:
        super().__init__((sys.executable, "-m", JUDGE))
        self._turn = asyncio.Lock()

    async def find_breach(self, constraint: Constraint, text: str) -> str | None:
        """Return the rule that a finished answer breaks; empty if it breaks none, None if unknown.

        A judgement that exceeds a limit is unknown. See ``grammars.find_breach``.
        """
        question = json.dumps([asdict(constraint), text]).encode()
        async with self._turn:
            try:
                if not self._is_running:
                    await self._start()
                breach: str | None = await self._ask(question, PATIENCE_S)
            except (ChildLost, TimeoutError) as error:
                if not (isinstance(error, ChildLost) and error.status == -signal.SIGPROF):
                    log.warning("the process that judges answers ended: %s", error)
                return None
        return breach
