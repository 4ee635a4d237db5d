"""Draft inspection: what each good and each broken draft leads to."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from eaglegate.engine.speculation.drafts.inspection import (
    Severity,
    SpeculationReport,
    inspect_draft,
)
from tests.engine.speculation.draft_cases import BROKEN, GOOD, UNDECIDED, DraftCase
from tests.engine.speculation.draft_folder import DEMO, read_folder
from tests.engine.speculation.draft_kinds import gptq
from tests.engine.speculation.draft_rules import ALL_RULES
from tests.engine.speculation.speculators_cases import BROKEN as BROKEN_OF_THE_FORMAT

ALARMS = (Severity.ERROR, Severity.WARNING)


def inspect(case: DraftCase, where: Path) -> SpeculationReport:
    target, settings = case.build(where)
    return inspect_draft(
        target,
        settings,
        tensor_parallel_size=case.tensor_parallel_size,
        max_model_len=case.max_model_len,
    )


@pytest.mark.thorough
@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_broken_draft_is_found(case: DraftCase, tmp_path: Path):
    if case.rule == "acceptance-method" and find_spec("vllm") is None:
        pytest.skip("the installed vLLM decides")
    report = inspect(case, tmp_path)
    found = {(finding.rule, finding.severity) for finding in report.findings}
    assert (case.rule, Severity(case.severity)) in found, [str(one) for one in report.findings]


def test_every_rule_is_broken_by_a_draft():
    broken = {case.rule for case in (*BROKEN, *UNDECIDED, *BROKEN_OF_THE_FORMAT)}
    elsewhere = {
        "library", "weights-pickled", "tensor-quantised", "block-architecture", "method-loader",
        "medusa-depth", "medusa-tensors", "relaxed-acceptance",
    }  # fmt: skip
    assert ALL_RULES.keys() - broken == elsewhere


def test_a_quantised_draft_is_noted(tmp_path: Path):
    draft = read_folder(DEMO / "eagle3_1")
    gptq(draft)
    draft.write(tmp_path / "draft")
    settings = {"model": str(tmp_path / "draft"), "method": "eagle3", "num_speculative_tokens": 3}
    report = inspect_draft(DEMO / "target", settings)
    assert [(one.rule, one.severity) for one in report.findings] == [
        ("tensor-quantised", Severity.NOTE)
    ]


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.name)
def test_good_draft_raises_no_alarm(case: DraftCase, tmp_path: Path):
    report = inspect(case, tmp_path)
    assert [str(one) for one in report.findings if one.severity in ALARMS] == []
    assert report.ok and report.inspected


@pytest.mark.parametrize("installed", [True, False])
def test_ngram_needs_its_library(installed: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "eaglegate.engine.speculation.drafts.inspection.general_rules.find_spec",
        lambda name: object() if installed else None,
    )
    report = inspect_draft(DEMO / "target", {"method": "ngram", "num_speculative_tokens": 4})
    assert [one.rule for one in report.errors] == ([] if installed else ["library"])
    assert report.inspected and report.summary.startswith("n-gram lookup")


@pytest.mark.parametrize("case", UNDECIDED, ids=lambda case: case.name)
def test_undecided_draft_raises_no_alarm(case: DraftCase, tmp_path: Path):
    """Files cannot tell; should a rule learn to, the case belongs to BROKEN."""
    report = inspect(case, tmp_path)
    assert [one.rule for one in report.findings if one.severity in ALARMS] == []
    assert [one.rule for one in report.of(Severity.NOTE)] == ([case.rule] if case.rule else [])


def test_the_demo_is_described():
    settings = {
        "model": str(DEMO / "eagle3_1"),
        "method": "eagle3",
        "num_speculative_tokens": 3,
    }
    started = time.perf_counter()
    report = inspect_draft(DEMO / "target", settings)
    assert time.perf_counter() - started < 1
    assert report.summary.startswith("EAGLE 3.1: fc_norm x3, norm_output; 1 layer")
    assert report.summary.endswith("K=3")
    assert (report.method, report.depth) == ("eagle3.1", 3)
