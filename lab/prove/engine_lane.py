"""The engine under test: the operations that checks need."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from eaglegate.engine.supervision.policy import RecoveryObserver, SupervisionTimeouts
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import EngineInfo, EngineRequest, Execution, StepSink
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.server.backends.in_process import InProcessBackend
from eaglegate.server.backends.line import CommandLine
from eaglegate.server.flags import make_part

SHORT_FLAGS = ("spec_method", "spec_model", "spec_tokens")
"""Parts of ``--speculative-config`` that are also flags of vLLM."""
Say = Callable[[str], None]


class ProofBackend(InProcessBackend):
    """Backend that remembers the running engine."""

    engine: VllmEngine

    def make_engine(self) -> VllmEngine:
        self.engine = super().make_engine()
        return self.engine

    @property
    def has_draft(self) -> bool:
        names = ("speculative_config", *SHORT_FLAGS)
        return any(getattr(self._arguments, name, None) for name in names)

    @property
    def reports_raw_logprobs(self) -> bool:
        """True if log probabilities are the target's, before temperature and other parameters."""
        return str(self._arguments.logprobs_mode).startswith("raw")


class Lane:
    """One engine, with or without a draft. It survives the loss of its process."""

    info: EngineInfo

    def __init__(self, line: CommandLine, say: Say) -> None:
        self.backend = ProofBackend(line, say)
        timeouts = make_part(SupervisionTimeouts, line.settings)
        self._engine = self.backend.create_engine(timeouts, RecoveryObserver())

    async def start(self) -> None:
        """Start the engine. Raises EngineStartError."""
        self.info = await self._engine.start()

    async def generate(self, request: EngineRequest, sink: StepSink) -> None:
        await self._engine.generate(request, sink)

    async def describe_execution(self) -> Execution | None:
        return await self.backend.engine.describe_execution()

    def count_drafts(self) -> Totals | None:
        """Return the engine's own counters of drafts; None without any."""
        return self.backend.engine.count_drafts()

    @property
    def unclaimed(self) -> Totals:
        """Steps made for requests whose clients had left."""
        return self._engine.unclaimed

    async def freeze_planning(self, depth: int | None) -> bool:
        """Hold the planner at a depth, or release it; return False without a planner."""
        return await self._engine.freeze_planning(depth)

    @property
    def draft_folder(self) -> Path | None:
        """Folder of a draft that can be exchanged; None for other methods."""
        drafts = self.backend.drafts
        draft = drafts.serving if drafts is not None else None
        return None if draft is None else Path(draft.path)

    async def exchange_draft(self, folder: Path) -> float:
        """Serve another draft on trial. Return the seconds without a step."""
        assert self.backend.drafts is not None
        return (await self.backend.drafts.swap(str(folder), trial=True)).pause_s

    async def restore_draft(self) -> float:
        """Serve the draft from before the exchange."""
        assert self.backend.drafts is not None
        return (await self.backend.drafts.rollback()).pause_s

    def kill(self) -> int:
        """End the engine's processes with SIGKILL. Return their number."""
        # vLLM logs the traceback of an engine's death, which is the purpose here.
        logging.getLogger("vllm.v1.engine.async_llm").setLevel(logging.CRITICAL)
        return self.backend.engine.kill()

    async def aclose(self) -> None:
        await self._engine.aclose()
        await self.backend.aclose()
