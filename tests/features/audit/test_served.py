"""Audits over HTTP: /admin/audit, its command, and a gateway that holds a workload."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eaglegate.engine.fleet.types import WorkerState
from eaglegate.engine.speculation.accounts.scores import AnswerScores
from eaglegate.engine.supervision.draft_blame import DraftHold
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import EngineRequest, Sampling
from eaglegate.engine.vllm_parts import Promise
from eaglegate.features.audit import command, feature
from eaglegate.features.audit.evidence import AuditOutcome
from eaglegate.features.audit.files import pack
from eaglegate.features.audit.holds import AuditHold
from eaglegate.features.audit.records import (
    AuditRecord,
    FinishedAnswer,
    write_nothing,
)
from eaglegate.features.audit.settings import AuditSettings
from eaglegate.observability.engine import SupervisionObserver
from eaglegate.observability.pages import summarize_speculation
from eaglegate.observability.problems import list_problems
from eaglegate.observability.telemetry import Telemetry
from eaglegate.server.apis.shared.gateway import Controls
from eaglegate.server.cli.client import complete_url
from eaglegate.server.cli.feature import build_features
from eaglegate.server.errors import ConfigError
from tests.features.audit.toy_workers import ToyWorker, toy_fleet
from tests.features.served import make_core
from tests.observability.scene import read_page

RECORD = AuditRecord(
    "chatcmpl-1", "chat", "greedy", "abc", 3, AuditOutcome.VIOLATED, "token 1 is wrong", 1.0, 0.1,
    2, "lookup",
)  # fmt: skip
ANSWER = FinishedAnswer(
    EngineRequest("chatcmpl-1", (1, 2), Sampling(4, temperature=0.0)),
    (7, 8),
    None,
    False,
    3,
    "abc",
    0.0,
)


@pytest.fixture
def audited(lab: Any, telemetry: Telemetry) -> Any:
    (lab.feature,) = build_features(make_core(lab, telemetry), [AuditSettings(1.0)])
    lab.auditor = lab.feature.auditor
    lab.holds = lab.auditor.holds
    return lab


async def test_without_audits_the_paths_say_how_to_begin(lab: Any) -> None:
    answer = await lab.get("/admin/audit")
    assert answer.status == 409
    assert "--audit-share" in answer.json["error"]["message"]


async def test_a_held_workload_is_shown_and_released(audited: Any, telemetry: Telemetry) -> None:
    audited.holds.add(AuditHold("chat", "token 1 is wrong", "abc", 1.0))
    audited.feature.record_audit(RECORD)
    audited.feature.metrics.count_drop("idle")
    shown = (await audited.get("/admin/audit")).json
    assert shown["holds"]["chat"]["reason"] == "token 1 is wrong"
    page = read_page(telemetry)
    assert 'eaglegate_audit_hold{workload="chat"} 1.0' in page
    labels = 'choosing="greedy",depth="3",draft="abc",drafter="lookup",outcome="violated"'
    assert labels in page
    assert 'eaglegate_audits_dropped_total{reason="idle"} 1.0' in page
    assert summarize_speculation(telemetry)["audit"]["holds"]["chat"]["draft"] == "abc"
    assert "eaglegate audit release chat" in " ".join(list_problems(telemetry, Totals()))
    wrong = await audited.call("POST", "/admin/audit/release", {"workload": "tools"})
    assert wrong.status == 400
    assert "(chat)" in wrong.json["error"]["message"]
    done = await audited.call("POST", "/admin/audit/release", {"workload": "chat"})
    assert done.json["holds"] == {}
    assert "chat" not in audited.holds


async def test_a_depth_that_is_held_off_is_shown_and_released(
    audited: Any, telemetry: Telemetry
) -> None:
    hold = DraftHold("eagle3", 5, 2, 1.0)
    observer = SupervisionObserver(telemetry)
    observer.record_draft_death("eagle3", 5)
    observer.record_draft_hold(hold, is_held=True)
    labels = '{depth="5",engine="default",method="eagle3"} 1.0'
    page = read_page(telemetry)
    assert f"eaglegate_draft_deaths_total{labels}" in page
    assert f"eaglegate_draft_hold{labels}" in page
    assert summarize_speculation(telemetry)["draft_holds"][0]["bound"] == 2
    held = [hold]

    def release() -> tuple[DraftHold, ...]:
        released = tuple(held)
        held.clear()
        return released

    async def nothing(*_: Any) -> Any:
        raise AssertionError

    audited.gateway.controls = Controls(nothing, nothing, release_drafts=release)
    done = await audited.call("POST", "/admin/speculation/release", {})
    assert done.json["released"][0]["depth"] == 5
    again = await audited.call("POST", "/admin/speculation/release", {})
    assert (again.status, again.json["error"]["code"]) == (409, "nothing_held")
    observer.record_draft_hold(hold, is_held=False)
    assert "eaglegate_draft_hold{" not in read_page(telemetry)


class Scorer:
    async def score(self, request: Any, answer: Any, dtype: str) -> AnswerScores:
        assert request.prompt == (1, 2)
        assert dtype == "float32"
        return AnswerScores((0.0, 1.5), (7, 9))


async def test_a_file_is_replayed(audited: Any) -> None:
    info = replace(audited.gateway.pipeline.info, details={"dtype": "float32"})
    audited.says("x")
    audited.auditor.attach(Scorer(), audited.engine.generate, info)
    content = json.loads(json.dumps(pack(ANSWER, RECORD, "m")))
    answer = await audited.call("POST", "/admin/audit/replay", content)
    assert answer.status == 200, answer.json
    lines = [*command.format_replay(content, answer.json)]
    assert lines[:3] == [
        "found: token 1 is wrong",
        "stored: violated, 2 tokens (greedy)",
        "  token 1: 8 instead of 9, 1.5 nats worse",
    ]
    assert [request.depth for request in audited.engine.requests[-2:]] == [3, 0]
    bad = await audited.call("POST", "/admin/audit/replay", {"prompt": []})
    assert (bad.status, bad.json["error"]["code"]) == (400, "bad_evidence")


def test_the_command_shows_what_there_is(audited: Any) -> None:
    audited.holds.add(AuditHold("chat", "token 1 is wrong", "abc", 1.0))
    lines = "\n".join(command.format_audits(audited.auditor.describe()))
    assert "chat: no speculation: token 1 is wrong (draft abc)" in lines


def test_addresses_need_no_scheme() -> None:
    assert complete_url("10.0.0.5:9000/") == "http://10.0.0.5:9000"
    assert complete_url("https://gateway.example") == "https://gateway.example"


def test_the_command_says_when_nobody_answers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert command.main(["show", "--url", "http://127.0.0.1:9"]) == 1
    assert command.main(["replay", str(tmp_path / "none.json")]) == 1
    assert capsys.readouterr().err.count("eaglegate audit: ") == 2


def test_audits_are_refused_with_a_vllm_that_differs_in_their_parts(
    lab: Any, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature, "find_broken_promises", lambda: frozenset({Promise.AUDITS}))
    with pytest.raises(ConfigError, match="parts in which this vLLM differs"):
        feature.AuditFeature(make_core(lab, telemetry), AuditSettings(audit_share=1.0))


async def test_a_worker_is_shown_and_released(lab: Any, telemetry: Telemetry) -> None:
    async with toy_fleet(ToyWorker(), ToyWorker(), holds=True) as town:
        core = make_core(lab, telemetry, town.fleet)
        core.backend.fleet = town.fleet
        (audited,) = build_features(core, [AuditSettings(1.0, audit_hold=True)])
        audited.auditor.attach_workers(town.panel, town.fleet.generate)
        record = replace(RECORD, worker="w0", scorer="w1")
        audited.record_audit(record)
        town.panel.accuse(replace(ANSWER, worker="w0"), record, write_nothing)
        shown = (await lab.get("/admin/audit")).json
        lines = "\n".join(command.format_audits(shown))
        assert "w0 (0.28.0): scores, near ties to 0.01 nats" in lines
        assert "token 1 is wrong (greedy, scored by w1" in lines
        assert 'eaglegate_worker_audits_total{outcome="violated",worker="w0"} 1.0' in (
            read_page(telemetry)
        )
        assert town.fleet.list_status()[0].state is WorkerState.HELD
        wrong = await lab.call("POST", "/admin/audit/release", {"workload": "w1"})
        assert wrong.status == 400 and "(w0)" in wrong.json["error"]["message"]
        done = await lab.call("POST", "/admin/audit/release", {"workload": "w0"})
        assert done.status == 200
        assert town.fleet.list_status()[0].state is WorkerState.SERVING


@pytest.mark.parametrize(
    "settings", [{"audit_hold": True}, {"audit_share": 2.0}, {"audit_evidence": "x"}]
)
def test_settings_that_make_no_sense_are_refused(settings: Any) -> None:
    with pytest.raises(ConfigError):
        AuditSettings(**settings)


def test_holding_workers_needs_workers(lab: Any, telemetry: Telemetry) -> None:
    with pytest.raises(ConfigError, match="--upstream"):
        build_features(make_core(lab, telemetry), [AuditSettings(1.0, audit_hold=True)])
