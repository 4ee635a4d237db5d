"""A fleet of real workers in this process, whose answers are audited without a limit on time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from eaglegate.engine.fleet.discovery import StaticSource
from eaglegate.engine.fleet.fleet import Fleet
from eaglegate.engine.remote.protocols import parse_upstream, remote_engine
from eaglegate.engine.remote.upstream import ConnectionSettings, LocalModel
from eaglegate.engine.steps import read_steps
from eaglegate.engine.types import EngineRequest, Sampling
from eaglegate.features.audit import audit_queue
from eaglegate.features.audit.auditor import AuditedEngine, Auditor
from eaglegate.features.audit.holds import AuditHolds
from eaglegate.features.audit.records import EvidenceWriter, write_nothing
from eaglegate.features.audit.workers import WorkerPanel, make_text
from eaglegate.text.rendering.renderer import ModelFiles, TemplateRenderer
from tests.features.audit.notes import Notes

WORDS = (
    "Tell me a story about a cat.", "What is 84 - 37?", "Count from one to ten.", "Name a colour.",
    "Write a function that adds two numbers.", "Describe the sea in winter.", "List three fruits.",
    "Why is the sky blue?", "Explain how a bicycle works.", "Write a poem about the rain.",
)  # fmt: skip
GREEDY = Sampling(max_tokens=48, temperature=0.0)
SAMPLED = Sampling(max_tokens=48, temperature=1.0)
KINDS = (
    GREEDY,
    SAMPLED,
    Sampling(max_tokens=48, temperature=0.7, top_p=0.8, top_k=20),
    Sampling(max_tokens=48, temperature=1.0, top_p=0.95),
    Sampling(max_tokens=48, temperature=0.4, top_k=8),
)
"""What requests ask for, of all ways that a worker's alternatives decide."""


@dataclass
class AuditedFleet(Notes):
    """Also the observer of its audits."""

    fleet: Fleet
    renderer: TemplateRenderer
    auditor: Auditor
    panel: WorkerPanel
    number: int = 0

    @property
    def settled(self) -> int:
        return len(self.records) + len(self.drops)

    async def answer(self, sampling: Sampling, **more: Any) -> list[int]:
        """Return the tokens of an answer to one of the questions, in turn."""
        self.number += 1
        words = f"{self.number}. {WORDS[self.number % len(WORDS)]}"
        prompt = self.renderer.render_chat([{"role": "user", "content": words}], None)
        request = EngineRequest(
            f"answer-{self.number}-{random.getrandbits(32)}", tuple(prompt), sampling, **more
        )
        engine = AuditedEngine(self.fleet, self.auditor)
        return [
            token async for step in read_steps(engine.generate, request) for token in step.token_ids
        ]

    async def settle(self, count: int, patience_s: float = 120) -> None:
        async with asyncio.timeout(patience_s):
            while self.settled < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@asynccontextmanager
async def audited_fleet(
    model: str, urls: Sequence[str], *, holds: bool = False, write: EvidenceWriter = write_nothing
) -> AsyncIterator[AuditedFleet]:
    """A fleet before ``urls`` that has probed them all. Raises TimeoutError."""
    audit_queue.BUDGET = 1e6
    files = ModelFiles.find(model, None, None)
    renderer = TemplateRenderer(files, None, False)
    local = LocalModel(
        "demo", renderer, files.vocab_size or renderer.vocab_size, files.max_model_len
    )
    fleet = Fleet(
        lambda url: remote_engine(parse_upstream(url), local, ConnectionSettings()),
        [StaticSource(urls)],
    )
    panel = WorkerPanel(fleet, make_text(renderer.encode), lambda: True, holds)
    audited = AuditedFleet(fleet, renderer, None, panel)  # type: ignore[arg-type]
    audited.auditor = Auditor(
        1.0, AuditHolds(), audited, renderer.decode, lambda: True, write, is_idle=lambda: True
    )
    audited.auditor.attach_workers(panel, fleet.generate)
    await fleet.start()
    tasks = [asyncio.create_task(work) for work in (audited.auditor.run(), panel.run())]
    try:
        async with asyncio.timeout(120):
            while len(panel.probed) < len(urls):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield audited
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await fleet.aclose()
