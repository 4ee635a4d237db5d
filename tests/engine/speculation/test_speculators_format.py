"""Inspection of the speculators format: no broken draft missed, no alarm for the library's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglegate.engine.speculation.drafts.inspection import (
    Severity,
    SpeculationReport,
    inspect_draft,
)
from tests.engine.speculation.draft_folder import DEMO, Folder
from tests.engine.speculation.speculators_cases import BROKEN, GOOD, FormatCase

ALARMS = (Severity.ERROR, Severity.WARNING)


def inspect(case: FormatCase, where: Path) -> SpeculationReport:
    return inspect_draft(DEMO / "target", case.build(where), max_model_len=1024)


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.name)
def test_a_draft_of_the_library_raises_no_alarm(case: FormatCase, tmp_path: Path):
    report = inspect(case, tmp_path)
    assert [str(one) for one in report.findings if one.severity in ALARMS] == []
    assert report.inspected


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_a_broken_draft_is_found(case: FormatCase, tmp_path: Path):
    report = inspect(case, tmp_path)
    found = {(finding.rule, finding.severity) for finding in report.findings}
    assert (case.rule, Severity(case.severity)) in found, [str(one) for one in report.findings]


def test_a_type_without_a_loader_is_told_the_way_out(tmp_path: Path):
    case = next(case for case in BROKEN if case.base == "mtp")
    [finding] = inspect(case, tmp_path).errors
    assert "stitch-mtp" in finding.advice and "0.32" in finding.advice


def test_acceptance_that_vllm_does_not_relax_is_noted(tmp_path: Path):
    case = FormatCase("relaxed", "eagle3", None, proposing_relaxed)
    found = inspect(case, tmp_path).findings
    assert [(one.rule, one.severity) for one in found] == [("relaxed-acceptance", Severity.NOTE)]


def proposing_relaxed(draft: Folder) -> None:
    [proposal] = draft.config["speculators_config"]["proposal_methods"]
    proposal |= {"verifier_accept_k": 5, "accept_tolerance": 1.0}
