"""The audits of a gateway: settings to auditor, and the auditor to the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

from eaglegate.engine.base import Engine
from eaglegate.engine.speculation.accounts.scores import ScoresAnswers
from eaglegate.engine.types import EngineInfo
from eaglegate.engine.vllm_parts import Promise, find_broken_promises
from eaglegate.features.audit.auditor import Auditor
from eaglegate.features.audit.files import EvidenceFolder
from eaglegate.features.audit.holds import AuditHolds
from eaglegate.features.audit.metrics import Audits
from eaglegate.features.audit.records import AuditRecord, EvidenceWriter, write_nothing
from eaglegate.features.audit.settings import AuditSettings
from eaglegate.features.audit.workers import WorkerPanel, make_text
from eaglegate.observability.facts import AnswerAudited
from eaglegate.observability.middleware import may_capture
from eaglegate.server.cli.feature import ActiveFeature, Core
from eaglegate.server.errors import ConfigError


class AuditFeature(ActiveFeature):
    """Audits of one gateway. It publishes each audit as an ``AnswerAudited``."""

    def __init__(self, core: Core, settings: AuditSettings) -> None:
        """Raises ConfigError if the engine or the folder for evidence cannot be used."""
        self._core, self._scorer = core, core.engine.capability(ScoresAnswers)
        fleet = core.backend.fleet
        if fleet is None and Promise.AUDITS in find_broken_promises():
            raise ConfigError("--audit-share: audits need parts in which this vLLM differs")
        if fleet is None and settings.audit_hold:
            raise ConfigError("--audit-hold holds workers: it needs --upstream")
        if fleet is None and self._scorer is None:
            raise ConfigError("--audit-share needs the engine in this process, or vLLM workers")
        renderer = core.backend.renderer
        self._panel: WorkerPanel | None = None
        if fleet is not None:
            text = make_text(renderer.encode)
            self._panel = WorkerPanel(fleet, text, core.has_room, settings.audit_hold)
        self.metrics = core.telemetry.add_group(
            lambda scope: Audits(scope, lambda: self.auditor.holds)
        )
        self.auditor = Auditor(
            settings.audit_share,
            AuditHolds(),
            self.record_audit,
            self.metrics.count_drop,
            renderer.decode,
            core.has_room,
            _open_evidence(settings.audit_evidence, core.backend.names[0]),
            is_idle=core.is_idle,
        )
        if (drafts := core.backend.drafts) is not None:
            drafts.follow(self.auditor.change_draft)
        core.policy.holds = self.auditor.holds.covers

    def wrap(self, engine: Engine) -> Engine:
        return self.auditor.watch(engine, may_capture)

    def describe(self) -> Mapping[str, object]:
        return {"audit": self.auditor.describe()}

    def list_problems(self) -> Iterable[str]:
        for workload in sorted(self.auditor.holds.holds):
            yield (
                f"An audit found answers of {workload} that are not the target's, and switched its "
                f"speculation off: eaglegate audit release {workload} (docs/audit.md)."
            )

    def start(self, info: EngineInfo) -> None:
        if self._panel is not None:
            self.auditor.attach_workers(self._panel, self._core.engine.generate)
        elif self._scorer is not None:
            self.auditor.attach(self._scorer, self._core.engine.generate, info)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.auditor.run())
            if self._panel is not None:
                group.create_task(self._panel.run())

    def record_audit(self, record: AuditRecord) -> None:
        self.metrics.count(record, self._core.telemetry.name_workload(record.workload))
        self._core.telemetry.facts.publish(
            AnswerAudited(record.request, record.outcome.value, record.to_json())
        )


def _open_evidence(folder: str | None, model: str) -> EvidenceWriter:
    """Raises ConfigError if the folder cannot be written."""
    if folder is None:
        return write_nothing
    path = Path(folder).expanduser()
    try:
        return EvidenceFolder(path, model)
    except OSError as error:
        raise ConfigError(f"--audit-evidence {path}: {error}") from None
