"""What clients write for the auditor and the doctor to read later holds up nobody."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from eaglegate.engine.scripted import steps
from eaglegate.engine.speculation.drafts.versions import DraftVersion
from eaglegate.engine.speculation.policy.policy import SpeculationPolicy
from eaglegate.engine.types import Step
from eaglegate.features.audit.auditor import Auditor
from eaglegate.features.audit.holds import AuditHolds
from eaglegate.features.audit.records import write_nothing
from eaglegate.features.doctor.doctor import Doctor
from eaglegate.text.events import FinishReason
from tests.features.audit.notes import Notes as AuditNotes
from tests.features.audit.test_auditor import ScoringEngine
from tests.features.audit.test_grammar_judge import BEHIND_ANOTHER, DOUBLING, PLACES
from tests.server.conftest import EOS, Lab

HEALTH_S = 5.0
"""Far above a healthy answer, and far below what each attack took."""
DRAFT = DraftVersion("abc", "/drafts/abc", "/drafts/abc")


class Notes(AuditNotes):
    """Observer of the auditor and of the doctor."""

    def record_diagnosis(self, _: Any) -> None: ...

    def __len__(self) -> int:
        return len(self.records) + len(self.drops)


class WatchedLab(Lab):
    """A gateway with ``--audit-share 1 --doctor watch`` on the scripted engine."""

    def __init__(self) -> None:
        super().__init__(engine=ScoringEngine(), reasoning_parser=None)
        pipeline, self.notes = self.gateway.pipeline, Notes()
        self.auditor = Auditor(
            1.0, AuditHolds(), self.notes, self.renderer.decode, lambda: True, write_nothing
        )
        self.doctor = Doctor(self.notes, lambda: True)
        for part in (self.auditor, self.doctor):
            part.change_draft(DRAFT)
        self.auditor.attach(self.engine, self.engine.generate, pipeline.info)
        self.doctor.attach(self.engine.generate, pipeline.info)
        watched = self.auditor.watch(self.doctor.watch(self.engine), lambda: True)
        policy = SpeculationPolicy(holds=self.auditor.holds)
        self.gateway.open(replace(pipeline, engine=watched, policy=policy))

    def says_whole(self, text: str) -> None:
        """Answer ``text``, ended by the model's own end of text."""
        (end,) = self.renderer.encode(EOS, False)
        said = [structs.replace(step, finish=None) for step in steps(self.encode(text), (1, 3, 3))]
        self.engine.script = [*said, Step((end,), finish=FinishReason.STOP, stop_token=end)]

    def encode(self, text: str) -> list[int]:
        return self.renderer.encode(text, False)


def list_attacks(url: str, file: str) -> list[tuple[dict[str, Any], str]]:
    """Fields of requests, and the answers that their auditor is to judge."""
    schemas = [(make(uri), '{"n": [1]}') for make in PLACES.values() for uri in (url, file)]
    schemas += [(DOUBLING, "1"), (DOUBLING, '"a"')]
    schemas += [(schema, json.dumps(value)) for schema, value in BEHIND_ANOTHER]
    attacks: list[tuple[dict[str, Any], str]] = [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": s}}}, t)
        for s, t in schemas
    ]
    pattern = {"guided_regex": "(?:(?:a+)+x|a{60})y"}
    attacks += [(pattern, "a" * 60 + "y"), ({"guided_regex": "a^b$"}, "ab")]
    return attacks


async def measure_health(lab: Lab, rounds: Callable[[], bool]) -> list[float]:
    """Ask for /health until ``rounds`` is false; return the time between the answers."""
    times, before = [], time.monotonic()
    while rounds():
        assert (await lab.get("/health")).status == 200
        await asyncio.sleep(0.01)
        times.append(time.monotonic() - before)
        before = time.monotonic()
    return times


async def test_health_answers_while_audits_judge_what_clients_wrote(tmp_path: Path) -> None:
    lab = WatchedLab()
    file = tmp_path / "string.json"
    file.write_text('{"type": "string"}')
    work = [asyncio.create_task(part.run()) for part in (lab.auditor, lab.doctor)]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        sent, times = 0, list[float]()
        try:
            for fields, text in list_attacks(url, file.as_uri()):
                lab.says_whole(text)
                answer = await lab.chat(**fields)
                if answer.status != 200:
                    assert answer.status == 400
                    continue
                sent += 1
                times += await measure_health(lab, lambda: len(lab.notes) < sent)  # noqa: B023
            lab.says_whole("a plain answer")
            assert (await lab.chat(temperature=0)).status == 200
            times += await measure_health(lab, lambda: len(lab.notes) <= sent)
        finally:
            for task in work:
                task.cancel()
            await asyncio.wait(work)
        with pytest.raises(BlockingIOError):
            silent.accept()
    assert sent > 20
    assert max(times) < HEALTH_S
    assert {*lab.notes.drops} == {"unknown"}
    assert not [record for record in lab.notes.records if record.outcome != "lossless"]
    assert lab.notes.records[-1].choosing == "greedy", "audits go on"
    assert not [*lab.auditor.holds]
